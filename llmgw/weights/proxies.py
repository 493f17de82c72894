"""Which proxy a download goes through, by the environment.

Only weights take it: the link, health checks and engines never look (T34). NO_PROXY
is read with networks in it, 10.0.0.0/8 say, which most programs pass over in silence.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from llmgw.errors import WeightsError


def proxy_for(url: str, environ: Mapping[str, str]) -> SplitResult | None:
    """The proxy for *url*, or None to go direct."""
    parts = urlsplit(url)
    written = _variable(environ, f"{parts.scheme}_proxy") or _variable(
        environ, "all_proxy"
    )
    host = parts.hostname or ""
    if not written or _is_exempt(host, parts.port, _variable(environ, "no_proxy")):
        return None
    proxy = _address(written, f"{parts.scheme}_proxy")
    if proxy.scheme not in ("http", "https") or not proxy.hostname:
        raise WeightsError(
            f"a proxy of the kind {proxy.scheme}:// is not known here",
            where=f"{parts.scheme}_proxy",
            fix="an http:// proxy does for https:// downloads too",
        )
    return proxy


def _address(written: str, name: str) -> SplitResult:
    try:
        proxy = urlsplit(written if "://" in written else f"http://{written}")
        _ = proxy.port  # a port that is no number is only noticed when asked for
    except ValueError as error:
        raise WeightsError(
            "is no address of a proxy",
            where=name,
            fix=f"export {name}=http://HOST:PORT",
        ) from error
    return proxy


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.upper()) or ""


def _is_exempt(host: str, port: int | None, exempt: str) -> bool:
    if host == "localhost" or _is_loopback(host):
        # A proxy on another machine cannot reach this one's loopback.
        return True
    return any(
        _matches(host, port, entry) for entry in exempt.replace(",", " ").split()
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _matches(host: str, port: int | None, entry: str) -> bool:
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(
            entry.strip("[]"), strict=False
        )
    except ValueError:
        pass  # one of them is a name
    name, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdigit():
        if port is not None and int(wanted) != port:
            return False
        entry = name
    suffix = entry.lstrip("*").lstrip(".").lower()
    return bool(suffix) and (
        host.lower() == suffix or host.lower().endswith(f".{suffix}")
    )
