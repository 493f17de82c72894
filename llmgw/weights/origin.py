"""Where the bytes of a file are read from: a server, or a path on this machine."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from llmgw.weights.answers import Body, Meta
from llmgw.weights.faults import Again, Denied
from llmgw.weights.http import STALL_TIMEOUT, Access, Client
from llmgw.weights.sources import masked

ReadInto = Callable[[memoryview], int]


class Origin(Protocol):
    """One place a file can be had from."""

    def probe(self, client: Client) -> Meta:
        """What is there now. Again, or Denied for good."""
        ...

    def open(self, client: Client, start: int, end: int) -> "Opened":
        """Bytes *start* to *end* of what `probe` found. Changed if it is not that."""
        ...

    def open_all(self, client: Client) -> "Opened":
        """All of it from the start, for want of ranges."""
        ...

    @property
    def is_authentic(self) -> bool:
        """Whether what comes from it cannot have been changed on the way."""
        ...

    def __str__(self) -> str: ...


class Opened(Struct, frozen=True, kw_only=True):
    """An answer being read. *close* is told whether it was read to its end.

    *length* None: it ends where it ends. *is_framed*: an early end is noticed.
    *sha256*: what the server says these bytes hash to.
    """

    read_into: ReadInto
    close: Callable[[bool], None]
    length: int | None = None
    is_framed: bool = True
    sha256: str | None = None


class Reader:
    """What one thread reads with: its connections, kept from range to range."""

    def __init__(self, stall: float = STALL_TIMEOUT) -> None:
        self.client = Client(stall)

    @contextmanager
    def range(self, origin: Origin, start: int, end: int) -> Generator[Opened]:
        opened = origin.open(self.client, start, end)
        whole = False
        try:
            yield opened
            whole = True
        finally:
            opened.close(whole)


class Server:
    """A file behind a URL."""

    def __init__(self, url: str, access: Access) -> None:
        self.url = url
        self.access = access
        self.meta: Meta | None = None

    def probe(self, client: Client) -> Meta:
        self.meta = client.probe(self.url, self.access)
        return self.meta

    def open(self, client: Client, start: int, end: int) -> Opened:
        assert self.meta is not None, "probed first"
        try:
            body, url = client.read(self.meta, start, end, self.access)
        except Denied:
            if self.meta.url == self.url:
                raise
            # A signed address is good for some minutes; a large file takes hours.
            fresh = client.probe(self.url, self.access)
            self.meta = Meta(
                url=fresh.url, size=self.meta.size, validator=self.meta.validator
            )
            body, url = client.read(self.meta, start, end, self.access)
        return self._opened(client, body, url)

    def open_all(self, client: Client) -> Opened:
        assert self.meta is not None, "probed first"
        whole = Meta(url=self.url, size=self.meta.size, validator=self.meta.validator)
        return self._opened(client, *client.read_all(whole, self.access))

    def _opened(self, client: Client, body: Body, url: str) -> Opened:
        def close(whole: bool) -> None:
            if whole:
                client.done(body)
            else:
                client.drop(url)

        return Opened(
            read_into=body.readinto,
            close=close,
            length=body.length,
            is_framed=body.is_framed,
            sha256=body.sha256,
        )

    @property
    def is_authentic(self) -> bool:
        return self.meta is not None and self.meta.url.startswith("https:")

    def __str__(self) -> str:
        return masked(self.url)


class OnDisk:
    """A file of this machine's, on another file system for example."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def probe(self, client: Client) -> Meta:
        try:
            found = self.path.stat()
        except OSError as error:
            fix = "correct the path" if isinstance(error, FileNotFoundError) else ""
            raise Denied(f"cannot be read: {error.strerror}", fix=fix) from error
        stamp = f"{found.st_ino}-{found.st_mtime_ns}"
        return Meta(url="", size=found.st_size, validator=stamp)

    def open(self, client: Client, start: int, end: int) -> Opened:
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Denied(f"cannot be read: {error.strerror}") from error
        at = start

        def read_into(view: memoryview) -> int:
            nonlocal at
            view = view[: end - at]
            try:
                count = os.preadv(file, [view], at)
            except OSError as error:
                raise Again(f"reading broke: {error.strerror}") from error
            at += count
            return count

        def close(_: bool) -> None:
            os.close(file)

        return Opened(read_into=read_into, close=close, length=end - start)

    def open_all(self, client: Client) -> Opened:
        return self.open(client, 0, self.probe(client).size or 0)

    @property
    def is_authentic(self) -> bool:
        return True

    def __str__(self) -> str:
        return str(self.path)
