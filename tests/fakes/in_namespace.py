"""Run in a namespace: what the agent finds there. JSON in, JSON out."""

import json
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from llmgw.agent.resolve import read
from llmgw.config.address import Complaint, parse
from llmgw.discovery.node import Here, interface_of, toward
from llmgw.errors import ConfigError
from tests.fakes import names
from tests.oracle import vectors


def main() -> None:
    given = json.load(sys.stdin)
    if isinstance(given["dns"], dict):
        _serve_names(given["dns"])
    elif given["dns"] == "silent":
        _bound()
    json.dump([_answer(question) for question in given["questions"]], sys.stdout)


def _answer(question: dict[str, Any]) -> Any:
    match question["ask"]:
        case "links":
            return [link.name for link in Here().links()]
        case "interface_of":
            return interface_of(question["addr"])
        case "addr_toward":
            address = parse(question["server"])
            if isinstance(address, Complaint):
                return None
            way = toward(address, Here())
            return None if way.source is None else str(way.source)
        case "impatient":
            address = parse(question["server"])
            assert not isinstance(address, Complaint)
            started = time.monotonic()
            way = toward(address, Here(limit=question["limit"]))
            return {"reason": way.reason, "after": time.monotonic() - started}
        case "tcp_source":
            with socket.socket() as probe:
                probe.setblocking(False)
                probe.connect_ex((question["to"][0], question["to"][1]))
                return probe.getsockname()[0]
        case _:
            return _resolve(question)


def _resolve(question: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = vectors.save(question["case"], Path(folder))
        try:
            found = read(path, Here(), without_files=True)
        except ConfigError as error:
            return {"faults": [fault.what for fault in error.faults]}
    return {
        "mgmt_addr": found.config.mgmt_addr,
        "mgmt_interface": found.config.mgmt_interface,
        "warnings": [fault.what for fault in found.warnings],
    }


def _bound() -> socket.socket:
    """A name server that hears everything; kept, or it would be closed and refuse."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    _HEARD.append(server)
    return server


_HEARD: list[socket.socket] = []


def _serve_names(table: dict[str, list[str]]) -> None:
    server = _bound()

    def run() -> None:
        while True:
            question, client = server.recvfrom(4096)
            server.sendto(names.answer(question, table), client)

    threading.Thread(target=run, daemon=True).start()


if __name__ == "__main__":
    main()
