"""How busy the node is, sampled between two heartbeats: CPUs, memory, and its cards."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

from llmgw.discovery import load
from llmgw.discovery.child import Hung
from llmgw.discovery.gpu_load import is_busy
from llmgw.discovery.standing import Standing
from llmgw.wire import GpuLoad, Load

log = logging.getLogger(__name__)

INTERVAL = 5.0
# Opening the driver of eight cards costs it tens of milliseconds; nobody waits for
# news of cards that nobody uses.
IDLE_INTERVAL = 15.0
GPU_LIMIT = 3.0

Ask = Callable[[dict[str, Any], float], list[dict[str, Any]] | None]


class Sampler:
    """`load` answers without waiting; `run` keeps it fresh.

    *cards*: those of the last survey, with what it saw of their load. *ask*: what a
    test answers in the driver's stead.
    """

    def __init__(
        self,
        root: Path,
        cards: Callable[[], list[dict[str, Any]]],
        ask: Ask | None = None,
    ) -> None:
        self._root = root
        self._cards = cards
        self._standing = Standing("llmgw.discovery.gpu_load", "sample")
        self._ask = ask or self._standing.ask
        self._samples: tuple[load.Sample, load.Sample] | None = None
        self._gpus: list[dict[str, Any]] | None = None
        self._gpus_at = 0.0
        self._is_silent = False

    async def run(
        self,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._sample)
                group.start_soon(self._sample_gpus)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._standing.close)

    async def _sample(self) -> None:
        last = await anyio.to_thread.run_sync(load.sample, self._root)
        while True:
            self._samples = (self._samples[1] if self._samples else last, last)
            await anyio.sleep(INTERVAL)
            last = await anyio.to_thread.run_sync(load.sample, self._root)

    async def _sample_gpus(self) -> None:
        while True:
            if self._cards():
                await self.sample_gpus()
            busy = self._gpus is not None and is_busy(self._gpus)
            await anyio.sleep(INTERVAL if busy else IDLE_INTERVAL)

    async def sample_gpus(self) -> None:
        """Once; a driver that hangs is said to be silent, and stays out of the way."""
        try:
            found = await anyio.to_thread.run_sync(
                self._ask,
                {"root": str(self._root)},
                GPU_LIMIT,
                abandon_on_cancel=True,
                limiter=anyio.CapacityLimiter(1),
            )
        except Hung:
            if not self._is_silent:
                log.warning("load of GPUs is not to be had, the driver hangs")
            self._is_silent = True
        except (OSError, RuntimeError) as error:  # no process, no thread is to be had
            log.warning("load of GPUs is not to be had why=%s", error)
            self._gpus = None
        else:
            self._is_silent = False
            self._gpus, self._gpus_at = found, time.monotonic()

    def load(self) -> Load:
        cpu = used = None
        if self._samples is not None:
            cpu = load.share(*self._samples)
            used = self._samples[1].memory_used
        return Load(cpu=cpu, memory_used=used, gpus=tuple(self._gpu_load()))

    def _gpu_load(self) -> list[GpuLoad]:
        """Of the newest sample, else of the survey; unknown while the driver hangs."""
        fresh = time.monotonic() - self._gpus_at < 2 * IDLE_INTERVAL
        newest = {one["uuid"]: one for one in self._gpus or () if fresh}
        found: list[GpuLoad] = []
        for card in self._cards():
            if "uuid" not in card:
                continue
            seen = {} if self._is_silent else newest.get(card["uuid"], _surveyed(card))
            found.append(
                GpuLoad(
                    uuid=card["uuid"],
                    utilization=seen.get("utilization"),
                    memory_used=seen.get("memory_used"),
                )
            )
        return found


def _surveyed(card: dict[str, Any]) -> dict[str, Any]:
    now, total = card.get("now", {}), card.get("memory")
    free = now.get("memory_free")
    used = None if free is None or total is None else max(0, total - free)
    return {"utilization": now.get("utilization"), "memory_used": used}
