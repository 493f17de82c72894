"""Make .venv beside the checkout, from the locked versions, with nothing but python3.

    python3 packaging/bootstrap.py [--dev]

Debian splits pip out of python3: where `ensurepip` is missing, the pip wheel named
below is taken from the package index ($PIP_INDEX_URL, else PyPI) and run from the
file. Safe to repeat; what is already there is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.request
import venv
from pathlib import Path
from urllib.parse import urljoin

AGAIN = "run it again: what is there is kept"
INDEX = "name a package index that can be reached in PIP_INDEX_URL"
ROOT = Path(__file__).resolve().parent.parent
PIP = (
    "pip-25.3-py3-none-any.whl",
    "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd",
)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--dev", action="store_true", help="what tests need, too")
    dev = arguments.parse_args().dev
    if sys.version_info < (3, 11):
        print(f"{sys.executable} is Python {sys.version.split()[0]}: 3.11 is needed")
        return 1
    into = ROOT / ".venv"
    lock = ROOT / ("requirements-dev.lock" if dev else "requirements.lock")
    packages = sum(line[:1].isalnum() for line in lock.read_text().splitlines())
    print(f"set-up: {packages} packages of {lock.name} into {into} (once)", flush=True)
    began = time.monotonic()
    python = into / "bin" / "python"
    if not python.exists():
        venv.create(into, symlinks=True)
    install = [str(python), *pip(into), "install", "--no-input", "--quiet"]
    install += ["--disable-pip-version-check", "--no-warn-script-location"]
    if sys.stdout.isatty():
        install.remove("--quiet")
    subprocess.run([*install, "--require-hashes", "-r", str(lock)], check=True)
    editable = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    subprocess.run([*install, *editable], check=True)
    if dev:  # tests fetch a real engine with it, `make lock` a resolver
        subprocess.run([*install, "--no-deps", str(into / PIP[0])], check=True)
    print(f"set-up: done in {time.monotonic() - began:.0f} s", flush=True)
    return 0


def pip(into: Path) -> list[str]:
    """How to call a pip that installs into that venv."""
    name, digest = PIP
    wheel = into / name
    if not wheel.exists() or hashlib.sha256(wheel.read_bytes()).hexdigest() != digest:
        wheel.write_bytes(fetch(name, digest))
    return [str(wheel / "pip")]


def fetch(name: str, digest: str) -> bytes:
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    page = f"{index}/{name.split('-')[0]}/"
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    with opened(urllib.request.Request(page, headers=accept)) as answer:
        data = answer.read()
    try:
        links = {file["filename"]: file["url"] for file in json.loads(data)["files"]}
        url = urljoin(page, links[name])
    except (ValueError, LookupError, TypeError):
        raise SystemExit(f"set-up: {page} has no {name}: {INDEX}") from None
    with opened(urllib.request.Request(url)) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise SystemExit(f"{url} is not the file that was pinned: nothing is installed")
    return content


def opened(request: urllib.request.Request) -> http.client.HTTPResponse:
    try:
        return urllib.request.urlopen(request, timeout=60)
    except OSError as error:
        raise SystemExit(f"set-up: {request.full_url}: {error}: {INDEX}") from None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print(f"\nset-up: interrupted; {AGAIN}", file=sys.stderr)
        sys.exit(130)
    except subprocess.CalledProcessError:
        sys.exit(f"set-up: pip said above what is wrong; once that is mended, {AGAIN}")
    except OSError as error:
        sys.exit(f"set-up: {error}; once that is mended, {AGAIN}")
