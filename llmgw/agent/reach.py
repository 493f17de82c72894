"""On which address and interface engines are reached, and how that was found."""

from collections.abc import Iterator

from msgspec import Struct, field

from llmgw.config.address import Address, Complaint, masked, parse
from llmgw.config.keys import Config
from llmgw.discovery.netlink import IP, Link
from llmgw.discovery.node import (
    Machine,
    Way,
    by_name,
    holder,
    holders,
    parsed,
    toward,
)

_UNREACHABLE = "engines here cannot be reached from another machine"
_SAY = "set mgmt_addr to the address others reach this machine on"


def in_dns(host: str) -> str:
    """The fix where a control plane's name cannot be resolved."""
    return f"see that DNS here, or /etc/hosts, knows {host}, or write its address"


class Answer(Struct):
    """Values by key with how they were found, and warnings: key, what, fix."""

    found: dict[str, tuple[str | None, str]] = field(
        default_factory=dict[str, tuple[str | None, str]]
    )
    warnings: list[tuple[str, str, str]] = field(
        default_factory=list[tuple[str, str, str]]
    )

    def warn(self, key: str, what: str, fix: str = "") -> None:
        self.warnings.append((key, what, fix))


def find(config: Config, machine: Machine) -> Answer:
    answer = Answer()
    links = _links(machine, answer)
    if config.mgmt_addr is None:
        way, zone = _by_route(config, machine, answer)
        ip = way.source
    else:
        ip, zone = _given(config.mgmt_addr, machine, answer)
        way = _first_way(config, machine) if _is_open(config, ip, links) else Way(None)
    if config.mgmt_interface is None:
        _interface(ip, zone, way, links, answer)
    elif by_name(config.mgmt_interface, links) is None:
        what = f'there is no interface "{config.mgmt_interface}"; kept as it is written'
        answer.warn("mgmt_interface", what)
    return answer


def _links(machine: Machine, answer: Answer) -> tuple[Link, ...]:
    try:
        return machine.links()
    except OSError as error:
        answer.warn(
            "mgmt_interface",
            f"the interfaces cannot be listed: {error.strerror}",
            "allow AF_NETLINK in the unit's RestrictAddressFamilies",
        )
        return ()


def _addresses(config: Config) -> Iterator[Address]:
    for server in config.servers:
        address = parse(server)
        assert not isinstance(address, Complaint), "servers were judged when loaded"
        yield address


def _first_way(config: Config, machine: Machine) -> Way:
    """The way to the first server that has one."""
    for address in _addresses(config):
        way = toward(address, machine)
        if way.source is not None:
            return way
    return Way(None)


def _is_open(config: Config, ip: IP | None, links: tuple[Link, ...]) -> bool:
    """Whether the route has a say in which interface it is.

    Only then is it asked for: a given mgmt_addr needs no look-up of the servers.
    """
    if config.mgmt_interface is not None or ip is None:
        return False
    found = holders(ip, links)
    return len(found) > 1 or any(link.is_loopback for link in found)


def _by_route(
    config: Config, machine: Machine, answer: Answer
) -> tuple[Way, str | None]:
    reasons: list[str] = []
    unknown: list[str] = []
    for address in _addresses(config):
        way = toward(address, machine)
        shown = masked(address.text)
        if way.source is None:
            reasons.append(f"{shown}: {way.reason}")
            unknown += [address.host] if way.is_unresolved else []
            continue
        for reason in reasons:
            what = f"not found towards {reason}; the next was asked"
            answer.warn("mgmt_addr", what, in_dns(unknown[0]) if unknown else "")
        source = str(way.source)
        answer.found["mgmt_addr"] = (source, f"source address on the way to {shown}")
        _say_where(way.source, shown, answer)
        return way, address.zone
    answer.warn(
        "mgmt_addr",
        "not found: " + "; ".join(reasons) + ". Asked again at each connection",
        in_dns(unknown[0]) if unknown else _SAY,
    )
    return Way(None), None


def _say_where(ip: IP, server: str, answer: Answer) -> None:
    if ip.is_loopback:
        what = f"{ip}, found towards {server}, is loopback: {_UNREACHABLE}"
        answer.warn("mgmt_addr", what, _SAY)
    elif ip.is_link_local:
        what = f"{ip}, found towards {server}, is link-local: good on one network only"
        answer.warn("mgmt_addr", what, _SAY)


def _given(text: str, machine: Machine, answer: Answer) -> tuple[IP | None, str | None]:
    literal, _, zone = text.partition("%")
    ip = parsed(literal)
    if ip is not None:
        return ip, zone or None
    what = f"{text} is a host name; others must know it as well"
    answer.warn("mgmt_addr", what, "write its address")
    try:
        return machine.lookup(text)[0], None
    except (OSError, IndexError) as error:
        reason = getattr(error, "strerror", None) or "it has no address"
        answer.warn("mgmt_interface", f"{text} is not found here: {reason}")
        return None, None


def _interface(
    ip: IP | None,
    zone: str | None,
    way: Way,
    links: tuple[Link, ...],
    answer: Answer,
) -> None:
    named = by_name(zone, links) if zone else None
    if named is not None:
        answer.found["mgmt_interface"] = (named.name, f"the zone %{zone}")
        return
    link = holder(ip, links, way.link) if ip is not None else None
    if link is None:
        _fall_back(ip, links, answer)
        return
    assert ip is not None, "a link holds it"
    if link in holders(ip, links):
        detail = f"holds {ip}"
    else:
        detail = f"the route leaves by it; {ip} is on lo"
        answer.warn("mgmt_interface", f"{ip} is held by lo; {link.name} leads out")
    answer.found["mgmt_interface"] = (link.name, detail)
    if link.is_paired:
        what = (
            f"{ip} is on {link.name}, whose other end is in another network namespace: "
            f"if this is a container with a network of its own, {_UNREACHABLE}"
        )
        answer.warn("mgmt_addr", what, "run on the host's network, or set mgmt_addr")
    if not link.is_up:
        answer.warn("mgmt_interface", f"{link.name}, which holds {ip}, is down")
    elif link.is_loopback and not ip.is_loopback:
        answer.warn("mgmt_interface", f"{ip} is an address of this machine on lo")


def _fall_back(ip: IP | None, links: tuple[Link, ...], answer: Answer) -> None:
    if ip is None:
        why = "no address was found"
    elif far := next((link for link in links if ip in link.peers), None):
        why = f"{ip} is the other end of {far.name}"
    else:
        why = f"nothing here holds {ip}"
    eth0 = by_name("eth0", links)
    if eth0 is None:
        what = f"{why}, and there is no eth0: left unset"
        answer.warn("mgmt_interface", what, "set mgmt_interface")
        return
    bridge = next((link for link in links if link.index == eth0.master), None)
    port = f", though it is only a port of {bridge.name}" if bridge else ""
    answer.found["mgmt_interface"] = ("eth0", f"{why}; eth0 exists{port}")
    what = f"{why}: eth0 is chosen{port}"
    right = "correct mgmt_addr; if it is right, set mgmt_interface"
    fix = "see to the address, or set mgmt_interface" if ip is None else right
    answer.warn("mgmt_interface", what, fix)
