"""The rules between keys: one list of servers, tls whole or not at all, and so on.

Normalising what is normalised changes nothing. A value is never half changed: what is
returned is new, and what is wrong is in the report.
"""

import posixpath
from collections.abc import Mapping
from typing import Any, cast

from llmgw.config.address import Complaint, quote
from llmgw.config.fields import known_keys
from llmgw.config.keys import Engines, Fabric, Mirror, Supervisor, Tls, Weights
from llmgw.config.report import SERVERS, TLS, Report
from llmgw.config.servers import Entry, judge
from llmgw.config.units import show_duration

WEIGHTS = "/var/lib/llmgw-weights"


def normalise(
    values: Mapping[str, Any], written: Mapping[str, Any], report: Report
) -> dict[str, Any]:
    """The values of Config's fields. *written* are those of the file, as they stand."""
    found = dict(values)
    secure = _tls(found.get("tls", Tls()), written, report)
    server = found.pop("server", "")
    found["servers"] = _servers(
        server, found.get("servers", ()), secure, written, report
    )
    _fabrics(found.get("fabrics", ()), report)
    _mirrors(found.get("weights", Weights()).mirrors, report)
    found |= _directories(found)
    found |= _intervals(found, report)
    _supervisor(found.get("supervisor", Supervisor()), written, report)
    _engines(found.get("engines", Engines()), report)
    return found


def _engines(engines: Engines, report: Report) -> None:
    if engines.command.enabled and engines.command.path is None:
        what = "is enabled and names no program: there is nothing that it may run"
        report.warn(("engines", "command"), Complaint(what, "set engines.command.path"))


def _section(written: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = written.get(name)
    return cast("dict[str, Any]", section) if isinstance(section, dict) else {}


def _tls(tls: Tls, written: Mapping[str, Any], report: Report) -> bool:
    """Whether TLS is meant to be on: any of the three says so."""
    files = {
        "cert_file": tls.cert_file,
        "key_file": tls.key_file,
        "ca_file": tls.ca_file,
    }
    section = _section(written, "tls")
    # A file that is there but was refused is not missing, it is wrong.
    missing = [
        name for name, file in files.items() if file is None and not section.get(name)
    ]
    meant = any(key.startswith("tls") for key in report.meant)
    if 0 < len(missing) < len(files) and not meant:
        report.fault(
            ("tls",),
            Complaint(
                "tls needs cert_file, key_file and ca_file together; missing "
                + ", ".join(missing),
                "set " + " and ".join(f"tls.{name}" for name in missing),
            ),
            TLS,
        )
    return len(missing) < len(files) or meant


def _servers(
    server: str,
    servers: tuple[str, ...],
    secure: bool,
    written: Mapping[str, Any],
    report: Report,
) -> tuple[str, ...]:
    entries = [Entry("server", server)] if server else []
    places: list[tuple[str | int, ...]] = [("server",)] if server else []
    numbers = _numbers(written.get("servers"))
    for number, text in zip(numbers, servers, strict=True):
        entries.append(Entry(f"servers[{number}]", text))
        places.append(("servers", number))
    judged = judge(entries, secure)
    for number, complaint in judged.faults:
        report.fault(places[number], complaint, SERVERS)
    for number, complaint in judged.warnings:
        report.warn(places[number], complaint)
    wrong = any(_is_wrong(written.get(name)) for name in ("server", "servers"))
    if not entries and not wrong and not report.meant & {"server", "servers"}:
        report.fault(
            (),
            Complaint("server is required", 'write servers = ["HOST:PORT"]'),
            SERVERS,
        )
    return tuple(address.text for address in judged.addresses)


def _numbers(written: Any) -> list[int]:
    """Where the entries that are text stand in the list as written."""
    entries = cast("list[Any]", written) if isinstance(written, list) else []
    return [number for number, entry in enumerate(entries) if _is_text(entry)]


def _is_text(entry: Any) -> bool:
    return isinstance(entry, str) and not any("\ud800" <= c <= "\udfff" for c in entry)


def _is_wrong(written: Any) -> bool:
    """Whether something was written that could not be taken."""
    return written not in (None, "", [])


def _fabrics(fabrics: tuple[Fabric, ...], report: Report) -> None:
    names: set[str] = set()
    hcas: dict[str, str] = {}
    for number, fabric in enumerate(fabrics):
        here = ("fabrics", number)
        if fabric.name in names:
            what = f"there is a fabric {quote(fabric.name)} already"
            report.fault((*here, "name"), Complaint(what, "list its HCAs in one place"))
        names.add(fabric.name)
        for place, hca in enumerate(fabric.hcas):
            if hca in hcas:
                what = f"{quote(hca)} is on the fabric {quote(hcas[hca])} already"
                report.fault(
                    (*here, "hcas", place), Complaint(what, "remove it in one")
                )
            hcas[hca] = fabric.name


def _mirrors(mirrors: tuple[Mirror, ...], report: Report) -> None:
    for number, mirror in enumerate(mirrors):
        if (mirror.cert_file is None) != (mirror.key_file is None):
            missing = "cert_file" if mirror.cert_file is None else "key_file"
            what = f"needs cert_file and key_file together; missing {missing}"
            fix = f"write {missing} as well, or neither"
            report.fault(("weights", "mirrors", number), Complaint(what, fix))


def _directories(found: Mapping[str, Any]) -> dict[str, Any]:
    """Each directory once, in its first spelling; the cache is always one of them."""
    written: tuple[str, ...] = found.get("model_dirs", ())
    cache: str = found.get("weights_cache") or (written[0] if written else WEIGHTS)
    # When they were two settings, a node could fill its disk with weights that nobody
    # looked for. A new list: the one that was given belongs to whoever gave it.
    kept: dict[str, str] = {}
    for directory in (*written, cache):
        kept.setdefault(cleaned(directory), directory)
    return {"model_dirs": tuple(kept.values()), "weights_cache": cache}


def cleaned(path: str) -> str:
    """One spelling of a path. `..` stays: it may pass through a link."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return ("/" if path.startswith("/") else "") + posixpath.join("", *parts)


def default(*path: str) -> float:
    return known_keys()[path].default


def cap(base: float, most: float | None, usual: float) -> float:
    """The longest wait: what is written unless it is under the base."""
    if most is not None and most >= base:
        return most
    return usual if most is None and usual >= base else max(base, usual)


def _intervals(found: Mapping[str, Any], report: Report) -> dict[str, Any]:
    base = found.get("reconnect_base", default("reconnect_base"))
    most = found.get("reconnect_max")
    result = cap(base, most, default("reconnect_max"))
    if most is not None and result != most:
        _say_cap(("reconnect_max",), most, base, result, report)
    return {"reconnect_max": result}


def _supervisor(
    settings: Supervisor, written: Mapping[str, Any], report: Report
) -> None:
    section = _section(written, "supervisor")
    if settings.restart_max < settings.restart_base:
        name = "restart_max" if "restart_max" in section else "restart_base"
        base, most = settings.restart_base, settings.restart_max
        what = (
            f"restart_max {show_duration(most)} is less than restart_base "
            f"{show_duration(base)}"
        )
        fix = f'write restart_max = "{show_duration(base)}" or more'
        report.fault(("supervisor", name), Complaint(what, fix))


def _say_cap(
    place: tuple[str, ...], most: float, base: float, result: float, report: Report
) -> None:
    what = (
        f"{show_duration(most)} is less than reconnect_base {show_duration(base)}; "
        f"{show_duration(result)} is used"
    )
    report.warn(place, Complaint(what, f'write "{show_duration(result)}" or more'))
