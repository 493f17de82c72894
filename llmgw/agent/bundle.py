"""An archive for those who help: findings, facts and settings, without secrets."""

import io
import re
import tarfile
from pathlib import Path
from typing import Any, cast

import msgspec

# What must not leave the node, wherever it stands: in a value under a telling name, in
# an address with a password, in a header, in a token of a known shape, in a PEM block.
_NAMES = r"(?:pass(?:word|wd)?|secret|token|api[_-]?key|credential|authorization)"
_NAME = re.compile(rf"(?i){_NAMES}")
_VALUE = r'("(?:[^"\\]|\\.)*"|[^\s,}]+)'
_MASKS = (
    (re.compile(r"(?i)((?:Bearer|Basic)\s+)\S+"), r"\1***"),
    (
        re.compile(
            rf'(?i)("?[\w.-]*{_NAMES}[\w.-]*"?\s*[:=]\s*)(?:(?:Bearer|Basic)\s+)?{_VALUE}'
        ),
        r"\1***",
    ),
    (re.compile(rf"(?i)(--[\w-]*{_NAMES}[\w-]*[= ])\S+"), r"\1***"),
    # A list of arguments, as a file has it.
    (
        re.compile(rf'(?i)("--?[\w-]*{_NAMES}[\w-]*"\s*,\s*)"(?:[^"\\]|\\.)*"'),
        r'\1"***"',
    ),
    (re.compile(r"(\w+://)[^/\s@\"]+@"), r"\1***@"),
    (re.compile(r"\b(?:hf|sk|ghp)[_-][A-Za-z0-9_-]{8,}"), "***"),
    (
        re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END[^\n]*|\Z)"),
        "*** private key ***",
    ),
)


def masked(text: str) -> str:
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return text


def _clean(value: Any) -> Any:
    """Each text by itself: within JSON its quotes would hide what it holds."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {
            key: "***" if isinstance(one, str) and _NAME.search(key) else _clean(one)
            for key, one in pairs.items()
        }
    if isinstance(value, list | tuple):
        entries = cast("list[Any]", value)
        before: list[Any] = ["", *entries]
        return [
            "***" if _is_flag(flag) and isinstance(one, str) else _clean(one)
            for flag, one in zip(before, entries, strict=False)
        ]
    return value


def _is_flag(value: Any) -> bool:
    """Whether what comes next in a list of arguments is a secret."""
    return (
        isinstance(value, str)
        and value.startswith("-")
        and "=" not in value
        and _NAME.search(value) is not None
    )


def write(path: Path, documents: dict[str, Any]) -> None:
    """A .tar.gz that only its owner may read. OSError if it cannot be written."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    with path.open("wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, document in documents.items():
            content = _clean(msgspec.to_builtins(document))
            if not isinstance(content, str):
                content = msgspec.json.format(msgspec.json.encode(content)).decode()
            data = content.encode()
            entry = tarfile.TarInfo(f"llmgw-doctor/{name}")
            entry.size = len(data)
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(data))
