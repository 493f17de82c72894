"""What of a file is on this disk already, so that a crash costs nothing twice.

A line for every block written, and one when a sync has come back. After a power cut
only what was synced counts. After a process that died the kernel still has the rest,
and so a journal of this very boot is believed to its last whole line.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct


class Begun(Struct, frozen=True, kw_only=True):
    """The first line: which file this is the progress of."""

    size: int
    piece: int
    validator: str | None
    sha256: str | None
    boot: str


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Journal:
    """Append-only. One writer: whoever owns the part file beside it."""

    def __init__(self, path: Path, begun: Begun, upto: list[int]) -> None:
        """Begin *path* anew with the progress *upto*, which must be on disk."""
        beside = path.with_name(path.name + ".new")
        lines = [msgspec.json.encode(begun)]
        lines += [b"w %d %d" % (n, end) for n, end in enumerate(upto) if end]
        self.written = len(lines) - 1
        lines.append(b"s %d" % self.written)
        with beside.open("wb") as file:
            file.write(b"\n".join(lines) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def wrote(self, piece: int, upto: int) -> None:
        """The first *upto* bytes of *piece* are in the part file."""
        os.write(self._file, b"w %d %d\n" % (piece, upto))
        self.written += 1

    def synced(self, lines: int) -> None:
        """What the first *lines* entries say is on the disk itself."""
        os.write(self._file, b"s %d\n" % lines)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read(path: Path, boot: str) -> tuple[Begun, dict[int, int]] | None:
    """What can be believed, as bytes by piece; None if there is no such journal."""
    try:
        head, *lines = path.read_bytes().split(b"\n")
        begun = msgspec.json.decode(head, type=Begun)
    except (FileNotFoundError, ValueError, msgspec.DecodeError):
        return None
    wrote: list[tuple[int, int]] = []
    durable = 0
    for line in lines[:-1]:  # what follows the last newline was cut off
        match line.split(b" "):
            case [b"w", piece, upto] if piece.isdigit() and upto.isdigit():
                wrote.append((int(piece), int(upto)))
            case [b"s", count] if count.isdigit():
                durable = int(count)
            case _:
                break  # torn by a power cut: nothing after it means anything
    believed = wrote if begun.boot == boot else wrote[:durable]
    reached: dict[int, int] = {}
    for number, end in believed:
        reached[number] = max(end, reached.get(number, 0))
    return begun, reached
