# What the scripts say of the fleet, in a person's words; it comes before each of them.
import json
import shlex
from typing import Any

# The driver does not name its classes to a script; tests/vm checks with the real one.
Node = Any

AGENT = "llmgw-agent.service"
CONTROL = "llmgw-control.service"


def status(node: Node) -> dict[str, Any]:
    """What the agent says of itself."""
    said: dict[str, Any] = json.loads(
        node.succeed("llmgw status --json 2>/dev/null", timeout=10)
    )
    return said


def link_of(node: Node) -> dict[str, Any]:
    """How the agent stands with the control plane; {} while it cannot be asked."""
    code, said = node.execute("llmgw status --json 2>/dev/null", timeout=10)
    link: dict[str, Any] = json.loads(said)["link"] if code == 0 else {}
    return link


def joined(node: Node, server: str, timeout: int = 30) -> None:
    """Waits until the node is with that control plane."""

    def is_there(last: bool) -> bool:
        link = link_of(node)
        if last:
            node.log(f"its link: {link}")
        server_of = str(link.get("server"))
        return link.get("state") == "connected" and f"//{server}:" in server_of

    retry(is_there, timeout)
    node.log(f"is with {server}")


def role(control: Node, line: str) -> None:
    """Who leads is what the file says: "leader EPOCH", "standby" or "off"."""
    control.succeed(f"echo {line} > /run/llmgw-role")


def pid(node: Node) -> str:
    return node.get_unit_property(AGENT, "MainPID")


def replicas(node: Node) -> dict[str, dict[str, Any]]:
    said: list[dict[str, Any]] = status(node)["replicas"]
    return {replica["id"]: replica for replica in said}


def serving(node: Node, id: str, timeout: int = 30) -> int:
    """Waits until that engine serves; its process."""
    process = 0

    def is_ready(last: bool) -> bool:
        nonlocal process
        code, said = node.execute("llmgw status --json 2>/dev/null", timeout=10)
        there: list[dict[str, Any]] = json.loads(said)["replicas"] if code == 0 else []
        for replica in there:
            if replica["id"] == id and replica["state"] in ("ready", "busy"):
                process = replica["pid"]
                return True
        if last:
            node.log(f"its replicas: {there}")
        return False

    retry(is_ready, timeout)
    return process


def answers(node: Node, id: str) -> None:
    """The engine itself is asked, not the agent."""
    replica = replicas(node)[id]
    url = f"http://{replica['address']}:{replica['ports']['api']}/health"
    node.succeed(f"curl -sf --max-time 5 {shlex.quote(url)}", timeout=10)


def lives(node: Node, process: int) -> None:
    node.succeed(f"test -d /proc/{process}")


def bring(control: Node, name: str, node: Node, authority: str = "/root/pki") -> None:
    """That name's certificate, key and CA, to where the node's units look for them."""
    pki = f"llmgw pki --dir {authority}"
    packed = control.succeed(f"{pki} bundle {name} | base64 -w0")
    node.succeed(
        "mkdir -p -m 700 /run/secrets",
        f"echo {packed} | base64 -d | tar -x -C /run/secrets",
    )


def can(node: Node, command: str, what: str) -> bool:
    """Whether this kind of machine can do that; if not, what is left out is said."""
    if node.execute(command)[0] == 0:
        return True
    node.log(f"SKIPPED here: {what}")
    return False
