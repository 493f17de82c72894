"""A real mount that stops to answer: FUSE, spoken to the kernel without a library.

Who waits for an answer that the kernel has handed over cannot be killed any more: its
state is D, as on a dead NFS server, until the answer comes or the mount is gone.
"""

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

_HEAD = struct.Struct("=IIQQIIII")  # length, operation, unique, node, …
_LOOKUP, _GETATTR, _OPEN, _READ, _STATFS, _INIT, _OPENDIR, _READDIR = (
    1, 3, 14, 15, 17, 26, 27, 28,
)  # fmt: skip
# They have no answer, or only that it was well.
_SILENT, _DONE = (2, 36, 42), (18, 25, 29)
_ROOT, _FILE = 1, 2
_DETACH = 2


def why_not() -> str:
    """Why none can be mounted here; empty: it can."""
    if os.geteuid() != 0:
        return "mounts: run as root"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse: modprobe fuse"
    return ""


class HungMount:
    """One folder with one file in it, on a file system of this process."""

    def __init__(self, folder: Path, name: str, content: bytes) -> None:
        self.folder = folder
        self._name, self._content = name.encode(), content
        self._fd = -1
        self._hangs = False
        self._lock = threading.Lock()
        self._unanswered: list[bytes] = []
        self._calls: dict[int, Callable[[int, bytes], bytes]] = {
            _LOOKUP: self._lookup,
            _GETATTR: lambda node, _: struct.pack("=QII", 0, 0, 0) + self._attr(node),
            _OPEN: lambda _, __: bytes(16),
            _OPENDIR: lambda _, __: bytes(16),
            _READ: self._read,
            _READDIR: self._readdir,
            _STATFS: lambda _, __: struct.pack(
                "=QQQQQIIII24x", 1 << 20, 1 << 19, 1 << 19, 9, 9, 4096, 255, 4096, 0
            ),
            _INIT: lambda _, __: struct.pack(
                "=IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 12, 9, 4096, 1, 0, 0, 0
            ),
        }

    def __enter__(self) -> Self:
        """OSError if it is not permitted."""
        self.folder.mkdir()
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        where = os.fsencode(self.folder)
        if libc.mount(b"hung", where, b"fuse.hung", 0, options):
            number = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(number, os.strerror(number))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wake()
        ctypes.CDLL(None).umount2(os.fsencode(self.folder), _DETACH)
        self._thread.join(5)
        os.close(self._fd)

    def hang(self) -> None:
        with self._lock:
            self._hangs = True

    def wake(self) -> None:
        """Answer what has waited, and from now on."""
        with self._lock:
            self._hangs = False
            for request in self._unanswered:
                self._answer(request)
            self._unanswered.clear()

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, 1 << 18)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # it was taken back
                    continue
                return
            with self._lock:
                if self._hangs:
                    self._unanswered.append(request)
                else:
                    self._answer(request)

    def _answer(self, request: bytes) -> None:
        _, operation, unique, node, *_ = _HEAD.unpack_from(request)
        if operation in _SILENT:
            return
        call = self._calls.get(operation)
        content, fault = b"", 0
        if call is not None:
            try:
                content = call(node, request[_HEAD.size :])
            except OSError as error:
                fault = -(error.errno or errno.EIO)
        elif operation not in _DONE:
            fault = -errno.ENOSYS
        head = struct.pack("=IiQ", 16 + len(content), fault, unique)
        try:
            os.write(self._fd, head + content)
        except OSError:
            pass  # who asked is gone

    def _attr(self, node: int) -> bytes:
        mode = 0o40755 if node == _ROOT else 0o100644
        size = 0 if node == _ROOT else len(self._content)
        times = (1_000_000_000,) * 3
        return struct.pack(
            "=QQQQQQIIIIIIIIII",
            node,
            size,
            1,
            *times,
            0,
            0,
            0,
            mode,
            1,
            0,
            0,
            0,
            4096,
            0,
        )

    def _lookup(self, _: int, name: bytes) -> bytes:
        if name.rstrip(b"\0") != self._name:
            raise FileNotFoundError(errno.ENOENT, "")
        return struct.pack("=QQQQII", _FILE, 0, 0, 0, 0, 0) + self._attr(_FILE)

    def _read(self, _: int, asked: bytes) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", asked)
        return self._content[offset : offset + size]

    def _readdir(self, _: int, asked: bytes) -> bytes:
        if struct.unpack_from("=QQ", asked)[1]:
            return b""
        entry = struct.pack("=QQII", _FILE, 1, len(self._name), 8) + self._name
        return entry + bytes(-len(entry) % 8)
