"""What a test's description says is on a machine, as files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import toml


def place(root: Path, name: str, about: Mapping[str, Any]) -> None:
    """Write them below *root*, which may be empty or a whole system."""
    etc = root / "etc"

    def write(path: str, text: str) -> None:
        file = etc / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("hostname", f"{name}\n")
    write("hosts", f"127.0.0.1 localhost\n::1 localhost\n{about['hosts']}")
    for unit, text in about["units"].items():
        write(f"systemd/system/{unit}", text)
    wants = etc / "systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    for unit in about["wants"]:
        (wants / unit).symlink_to(f"/etc/systemd/system/{unit}")
    for path, text in about["etc"].items():
        write(path, text)
    if about["config"] is not None:
        write("llmgw/agent.toml", toml.dumps(about["config"]))
    write("polkit-1/rules.d/10-llmgw.rules", about["polkit"])
    write("tmpfiles.d/llmgw.conf", "\n".join(about["tmpfiles"]) + "\n")
    write(
        "sysusers.d/llmgw.conf",
        "".join(
            f'u {user} - "" {it["home"]}\n'
            + "".join(f"m {user} {group}\n" for group in it["groups"])
            for user, it in about["users"].items()
        ),
    )
