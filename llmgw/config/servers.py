"""The list of control planes: one list however it is written, each address judged."""

from collections.abc import Iterable

from msgspec import Struct

from llmgw.config.address import (
    Address,
    Complaint,
    masked,
    parse,
    quote,
    unmapped,
    with_scheme,
)


class Entry(Struct, frozen=True):
    """One address as written, and where: `server` or `servers[2]`."""

    key: str
    text: str


class Judged(Struct, frozen=True):
    """What is kept, in order, and what is said of the rest, by the entry's number."""

    addresses: tuple[Address, ...]
    faults: tuple[tuple[int, Complaint], ...]
    warnings: tuple[tuple[int, Complaint], ...]


def judge(entries: Iterable[Entry], secure: bool) -> Judged:
    """Judge all entries, keep each address once and in its first spelling."""
    kept: dict[object, Address] = {}
    faults: list[tuple[int, Complaint]] = []
    warnings: list[tuple[int, Complaint]] = []
    for number, entry in enumerate(entries):
        address = judge_one(entry, secure)
        if isinstance(address, Complaint):
            faults.append((number, address))
        elif address.key not in kept:
            kept[address.key] = address
            warnings += [(number, odd) for odd in oddities(address)]
    return Judged(tuple(kept.values()), tuple(faults), tuple(warnings))


def judge_one(entry: Entry, secure: bool) -> Address | Complaint:
    text = entry.text
    if not text.strip():
        return Complaint(f"{entry.key} is empty", "write an address or remove it")
    if text[0].isspace() or text[-1].isspace():
        return Complaint(
            f"server {quote(masked(text))} has white space around it", "remove it"
        )
    complete = with_scheme(text, secure)
    if isinstance(complete, Complaint):
        return complete
    address = parse(complete)
    if isinstance(address, Complaint):
        return Complaint(f"server {quote(masked(text))} {address.what}", address.fix)
    return address


def oddities(address: Address) -> list[Complaint]:
    """What is legal and most likely not meant."""
    found: list[Complaint] = []
    text = quote(masked(address.text))
    ip = address.ip and unmapped(address.ip)
    if address.host == "" or (ip is not None and ip.is_unspecified):
        found.append(
            Complaint(
                f"server {text} names no host, which means this machine",
                "write localhost if that is meant",
            )
        )
    elif ip is not None and ip.is_link_local:
        found.append(
            Complaint(f"server {text} is link-local: it is good on one network only")
        )
    elif ip is not None and ip.version == 4 and str(ip).endswith(".0"):
        found.append(Complaint(f"server {text} looks like a network, not a machine"))
    elif address.host == "0":
        found.append(Complaint(f'server {text} is looked up as a host called "0"'))
    written = address.text.partition("://")[2].rpartition("@")[2].partition("/")[0]
    if ip is None and address.host and not written.startswith(address.host):
        found.append(Complaint(f"server {text} is looked up as {quote(address.host)}"))
    elif ip is not None and not written.isascii():
        found.append(Complaint(f"server {text} is read as {address.host}"))
    if address.is_exposed:
        found.append(
            Complaint(
                f"server {text} is dialled without TLS: whoever is on the network in "
                "between can read and change what this node is told",
                "use it on a trusted network only, or configure tls",
            )
        )
    return found
