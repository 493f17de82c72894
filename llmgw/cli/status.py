"""`llmgw status`: how this node stands."""

import argparse
import time
from math import ceil
from typing import Any

import msgspec

from llmgw.agent.door import ask_once
from llmgw.cli._socket import add_socket, understood
from llmgw.config.units import show_duration
from llmgw.supervisor.watch import described
from llmgw.weights.space import shown
from llmgw.wire import Exit


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "status",
        help="how this node stands: link, replicas, problems",
        epilog="example: llmgw status --watch",
    )
    parser.add_argument("--json", action="store_true", help="as the agent says it")
    parser.add_argument("--watch", action="store_true", help="again every second")
    add_socket(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    while True:
        status = ask_once(arguments.socket, "status")
        if arguments.json:
            print(msgspec.json.encode(status).decode(), flush=True)
        else:
            with understood(arguments.socket):
                text = "\n".join(lines(status))
            if arguments.watch:
                print("\033[H\033[J", end="")
            print(text, flush=True)
        if not arguments.watch:
            return 0
        time.sleep(1)  # noqa: TID251 -- a person watches; there is no loop to block


def lines(status: dict[str, Any]) -> list[str]:
    """What a person reads: the node, its link, its replicas, what is wrong."""
    link = status["link"]
    where = f" to {link['server']}" if link.get("server") else ""
    said = [
        f"node      {status['node_id']} (llmgw {status['version']})",
        f"engines   {status['engines_held']}",
        f"link      {link['state']}{where} for {span(link['since'])}",
    ]
    if link.get("mgmt_addr"):
        interface = link.get("mgmt_interface") or "an unknown interface"
        said.append(f"address   {link['mgmt_addr']} on {interface}")
    said += [f"passed    {url}: {why}" for url, why in link.get("tried", {}).items()]
    if status["drain"]:
        first, *more = drained(status["drain"])
        said.append(f"draining  {first}")
        said += [f"          {line}" for line in more]
    for source, progress in status["fetching"].items():
        said.append(f"fetching  {source}" + (share(progress) if progress else ""))
    said += [_replica(replica) for replica in status["replicas"]]
    for name in status["held"]:
        said.append(f"held      {name} is wanted, and stopped by a person here")
        said.append(f"          `llmgw engines start {name}` lets it run again")
    for wait in _unseen(status):
        word = "held" if wait["action"] == "hold" else "waits"
        said.append(f"{word:<9} {wait['name']}: {wait['why']}")
        if wait.get("fix"):
            said.append(f"          {wait['fix']}")
    if not status["replicas"]:
        said.append("replicas  none")
    for problem in status["problems"]:
        place = f"{problem['where']}: " if problem.get("where") else ""
        said.append(f"{problem['severity']:<9} {place}{problem['what']}")
        if problem.get("fix"):
            said.append(f"          fix: {problem['fix']}")
    return said


def _unseen(status: dict[str, Any]) -> list[dict[str, str]]:
    """Of what is wanted and does not start, that of which no other line tells."""
    seen = {replica["id"] for replica in status["replicas"]}
    return [
        one
        for one in status["waits"]
        if one["name"] not in status["held"]
        and (one["action"] == "hold" or one["name"] not in seen)
    ]


def drained(drain: dict[str, Any]) -> list[str]:
    """What a drain does to this node, and when it ends what runs."""
    who = "" if drain["by_person"] else "the control plane wants it: "
    said = [f"{who}nothing new is started here; `llmgw undrain` ends it"]
    left = drain["ends_in_s"]
    if left is None:
        said.append("what runs goes on, and is started again if it falls")
    elif left > 0:
        limit = show_duration(drain["stop_after_s"])
        said.append(
            f"what still runs in {span(ceil(left))} is stopped (--stop-after {limit})"
        )
    else:
        said.append("its time is up: what still ran is stopped")
    return said


def _replica(replica: dict[str, Any]) -> str:
    said = f"replica   {replica['id']} {replica['state']}"
    api = replica.get("ports", {}).get("api")
    if api:
        said += f" at {replica.get('address')}:{api}"
    if replica.get("pid"):
        said += f" pid {replica['pid']}"
    if replica.get("adopted"):
        said += " adopted"
    said += _falls(replica)
    progress = replica.get("progress")
    if progress:
        said += f" ({progress['what']}{share(progress)})"
    if replica.get("reason"):
        said += f": {replica['reason']}"
    return said


def _falls(replica: dict[str, Any]) -> str:
    """How often it fell, and how the last time, if no reason follows that says it."""
    if not replica.get("restarts"):
        return ""
    count = replica["restarts"]
    said = f" restarted {count} time" + ("s" if count > 1 else "")
    if replica.get("exit") and not replica.get("reason"):
        said += f" (the last {described(msgspec.convert(replica['exit'], Exit))})"
    return said


def share(progress: dict[str, Any]) -> str:
    """How far it is: in percent where the whole is known, else how much came."""
    if progress.get("total"):
        return f" {100 * progress['done'] // progress['total']} %"
    return f", {shown(progress['done'])}" if progress["done"] else ""


def span(seconds: float) -> str:
    """Seconds, as a person says them."""
    whole = int(seconds)
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= size:
            return f"{whole // size} {name}"
    return f"{whole} s"
