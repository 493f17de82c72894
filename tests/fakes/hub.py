"""A hub: repositories with revisions, gated ones, and files behind signed addresses.

It answers what huggingface_hub asks (`HF_ENDPOINT`), and serves large files from
another host after a redirect, as the real one does. What is asked with a token, and
of which of the two hosts, is kept.
"""

import dataclasses
import hashlib
import http.server
import json
import threading
from typing import Self
from urllib.parse import unquote

from tests.fakes.weights_server import WeightsServer


@dataclasses.dataclass
class Repo:
    """One commit of a repository; *small* files are git's own, the others LFS."""

    commit: str
    files: dict[str, bytes]
    gated: bool = False
    branches: tuple[str, ...] = ("main",)
    # A server in place of the hub may not know how long they are.
    says_sizes: bool = True


class FakeHub:
    """The hub at `url`, and `cdn`, the server its signed addresses lead to."""

    def __init__(self, *, token: str = "hf_right") -> None:
        self.repos: dict[str, Repo] = {}
        self.token = token
        self.asked: list[tuple[str, str | None]] = []
        self.status: int | None = None
        self.signatures = 0
        # A name, and not the address the hub has: another host.
        self.cdn = WeightsServer(host="localhost")
        owner = self

        class Handler(_Handler):
            hub = owner

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self.cdn.__enter__()
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.cdn.__exit__(None, None, None)

    def add(self, name: str, files: dict[str, bytes], *, gated: bool = False) -> Repo:
        """A repository; files of 1 KiB and more are kept as LFS does."""
        text = json.dumps({n: hashlib.sha256(c).hexdigest() for n, c in files.items()})
        commit = hashlib.sha1(text.encode()).hexdigest()
        repo = self.repos[name] = Repo(commit=commit, files=files, gated=gated)
        for file, content in files.items():
            self.cdn.put(f"/{name}/{file}", content)
        return repo


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.hub.asked.append((path, self.headers.get("Authorization")))
        if self.hub.status is not None:
            self._json(self.hub.status, {"error": "not now"})
            return
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._info("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
        else:
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def _repo(self, name: str, revision: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None:
            self._json(404, {"error": "Repository not found"}, "RepoNotFound")
        elif repo.gated and self._token() != self.hub.token:
            self._json(403, {"error": "Access is restricted"}, "GatedRepo")
        elif revision not in (*repo.branches, repo.commit):
            self._json(404, {"error": "Invalid rev id"}, "RevisionNotFound")
        else:
            return repo
        return None

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _info(self, name: str, revision: str) -> None:
        repo = self._repo(name, revision)
        if repo is None:
            return
        siblings: list[dict[str, object]] = []
        for file, content in repo.files.items():
            entry: dict[str, object] = {"rfilename": file, "blobId": _git(content)}
            if repo.says_sizes:
                entry["size"] = len(content)
            if len(content) >= 1024 and repo.says_sizes:
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {
                    "sha256": sha256,
                    "size": len(content),
                    "pointerSize": 9,
                }
            siblings.append(entry)
        self._json(200, {"id": name, "sha": repo.commit, "siblings": siblings})

    def _file(self, name: str, revision: str, file: str) -> None:
        repo = self._repo(name, revision)
        if repo is None:
            return
        if file not in repo.files:
            self._json(404, {"error": "Entry not found"}, "EntryNotFound")
            return
        self.hub.signatures += 1
        to = self.hub.cdn.url(f"/{name}/{file}?signature={self.hub.signatures}")
        self.send_response(302)
        self.send_header("Location", to)
        self.send_header("X-Repo-Commit", repo.commit)
        if len(repo.files[file]) >= 1024:
            sha256 = hashlib.sha256(repo.files[file]).hexdigest()
            self.send_header("X-Linked-ETag", f'"{sha256}"')
            self.send_header("X-Linked-Size", str(len(repo.files[file])))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, status: int, answer: object, code: str = "") -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _git(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
