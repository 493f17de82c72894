"""What Prometheus may scrape, where the file gives it an address (`metrics.listen`).

Everything is read from the agent at the moment it is asked for, in its own loop.
Names follow Prometheus' rules: base units, a unit in the name, `_total` for counters.
"""

import logging
from collections.abc import Callable, Iterator

import anyio
import anyio.abc
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from llmgw import aio, version
from llmgw.agent.run import Agent
from llmgw.backoff import delays

log = logging.getLogger(__name__)

PATIENCE = 5.0
AT_ONCE = 16
LONGEST = 16 * 1024
ELSEWHERE = b"only GET /metrics is answered here\n"


class AgentMetrics(Collector):
    """The state of one agent as metrics."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        yield from self._link()
        yield from self._replicas()
        yield from self._weights()
        yield from self._problems()
        yield from self._facts()

    def _link(self) -> Iterator[Metric]:
        status = self._agent.link.status.value
        info = GaugeMetricFamily(
            "llmgw_agent_info", "The agent, always 1.", labels=["version", "node_id"]
        )
        info.add_metric([version(), self._agent.resolved.config.node_id or ""], 1)
        yield info
        yield GaugeMetricFamily(
            "llmgw_link_connected",
            "Whether a control plane has accepted this node.",
            value=float(status.state == "connected"),
        )
        yield GaugeMetricFamily(
            "llmgw_link_epoch", "The epoch of the leader.", value=status.epoch
        )
        yield CounterMetricFamily(
            "llmgw_link_sessions", "Sessions opened.", value=status.sessions
        )
        certificates = self._agent.certificates
        expires = certificates.expires_s if certificates else None
        if expires is not None:
            yield GaugeMetricFamily(
                "llmgw_certificate_expires_seconds",
                "Until this node's certificate expires.",
                value=expires,
            )

    def _replicas(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "llmgw_replica_state",
            "1 for the state a replica is in.",
            labels=["replica", "state"],
        )
        restarts = CounterMetricFamily(
            "llmgw_replica_restarts",
            "Times the engine was started again.",
            labels=["replica"],
        )
        done = GaugeMetricFamily(
            "llmgw_replica_progress_ratio",
            "How much of the weights is here.",
            labels=["replica"],
        )
        for replica in self._agent.view.statuses():
            state.add_metric([replica.id, replica.state], 1)
            restarts.add_metric([replica.id], replica.restarts)
            if replica.progress and replica.progress.total:
                share = replica.progress.done / replica.progress.total
                done.add_metric([replica.id], share)
        yield from (state, restarts, done)

    def _weights(self) -> Iterator[Metric]:
        weights = self._agent.weights
        yield GaugeMetricFamily(
            "llmgw_weights_fetching", "Fetches under way.", value=len(weights.fetching)
        )
        yield CounterMetricFamily(
            "llmgw_weights_fetched_bytes",
            "Bytes of weights that came, whatever became of them.",
            value=weights.tally.came,
        )
        ended = CounterMetricFamily(
            "llmgw_weights_fetches", "Fetches that ended.", labels=["result"]
        )
        ended.add_metric(["done"], weights.fetched.value)
        ended.add_metric(["failed"], weights.tally.failed)
        yield ended

    def _problems(self) -> Iterator[Metric]:
        problems = GaugeMetricFamily(
            "llmgw_problem",
            "1 for each problem there is.",
            labels=["code", "severity"],
        )
        agent = self._agent
        seen = {
            (problem.code, problem.severity)
            for problem in (*agent.view.problems(), *agent.link.problems())
        }
        for code, severity in sorted(seen):
            problems.add_metric([code, severity], 1)
        yield problems

    def _facts(self) -> Iterator[Metric]:
        ages = GaugeMetricFamily(
            "llmgw_fact_age_seconds", "Since a fact was found.", labels=["fact"]
        )
        for name, fact in self._agent.view.facts().facts.items():
            ages.add_metric([name], fact.age_s)
        yield ages
        duration = GaugeMetricFamily(
            "llmgw_probe_duration_seconds", "Of its last run.", labels=["probe"]
        )
        success = GaugeMetricFamily(
            "llmgw_probe_success", "Whether its last run answered.", labels=["probe"]
        )
        for name, run in self._agent.inventory.runs().items():
            duration.add_metric([name], run.duration_s)
            success.add_metric([name], float(run.ok))
        yield from (duration, success)


async def serve(agent: Agent, listen: str) -> None:
    """Answer scrapes on *listen* (`HOST:PORT`) until cancelled.

    A port that is held, by an agent that still leaves for example, is tried again; who
    holds it is said once (T67). Metrics are never a reason to stop an agent.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AgentMetrics(agent))
    listener = await _listener(agent, listen)
    async with listener:
        await aio.serve(
            listener,
            lambda stream: _answer(stream, lambda: _page(registry)),
            at_once=AT_ONCE,
        )


async def _listener(
    agent: Agent, listen: str
) -> anyio.abc.Listener[anyio.abc.SocketStream]:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    for delay in delays(0.25, 15.0):
        try:
            listener = await anyio.create_tcp_listener(
                local_host=host or None, local_port=int(port)
            )
        except OSError as error:
            agent.say_problem(
                "metrics",
                f"metrics are not served, {listen} is not to be had: {error.strerror}",
                fix=f"ss -tlnp 'sport = :{port}' says who has it",
            )
            await anyio.sleep(delay)
        else:
            agent.say_problem("metrics", None)
            return listener
    raise AssertionError("delays are endless")


def _page(registry: CollectorRegistry) -> bytes:
    return generate_latest(registry)


async def _answer(stream: anyio.abc.SocketStream, page: Callable[[], bytes]) -> None:
    """One request, one answer: all that a scrape needs."""
    async with stream:
        asked = b""
        try:
            with anyio.fail_after(PATIENCE):
                while b"\r\n\r\n" not in asked and len(asked) < LONGEST:
                    asked += await stream.receive()
                if asked.startswith((b"GET /metrics ", b"GET /metrics?")):
                    answer = _http("200 OK", CONTENT_TYPE_LATEST, page())
                else:
                    answer = _http("404 Not Found", "text/plain", ELSEWHERE)
                await stream.send(answer)
        except (TimeoutError, anyio.EndOfStream, anyio.BrokenResourceError):
            log.debug("scrape broken off")


def _http(status: str, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
