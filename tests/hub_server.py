"""A hub on loopback: as much of one as the download of one repository needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """The files of a directory as `repo`, a model or a data set. `cut` ends the answers to that
    file early; nobody may read the files of a `gated` one."""

    daemon_threads = True

    def __init__(self, directory: Path, repo: str, kind: str = "models") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.directory, self.repo, self.kind = directory, repo, kind
        self.served: list[tuple[str, str]] = []
        self.cut, self.gated = "", False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve within the block."""
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: Any) -> None:
        return None

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        repo, kind = self.server.repo, self.server.kind
        place = "" if kind == "models" else f"/{kind}"
        if path == f"/api/{kind}/{repo}/revision/main":
            self._send(json.dumps({"id": repo, "sha": SHA, "siblings": []}).encode(), with_body)
        elif path.startswith(f"/api/{kind}/{repo}/revision/"):
            self._refuse(404, "RevisionNotFound", with_body)
        elif path == f"/api/{kind}/{repo}/tree/{SHA}":
            files = [
                {
                    "type": "file",
                    "path": file.relative_to(self.server.directory).as_posix(),
                    "size": file.stat().st_size,
                    "oid": "0" * 40,
                }
                for file in sorted(self.server.directory.rglob("*"))
                if file.is_file()
            ]
            self._send(json.dumps(files).encode(), with_body)
        elif self.server.gated and path.startswith(f"{place}/{repo}/resolve/"):
            self._refuse(401, "GatedRepo", with_body)
        elif match := re.fullmatch(f"{place}/{repo}/resolve/{SHA}/([\\w./-]+)", path):
            data = (self.server.directory / match[1]).read_bytes()
            if with_body:
                self.server.served.append((match[1], self.headers.get("Range", "")))
            self._send(data, with_body, match[1])
        else:
            self._refuse(404, "RepoNotFound", with_body)

    def _refuse(self, status: int, code: str, with_body: bool) -> None:
        self._send(b"{}", with_body, status=status, headers={"X-Error-Code": code})

    def _send(
        self,
        data: bytes,
        with_body: bool,
        name: str = "",
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        whole, asked = len(data), re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        etag = hashlib.sha256(data).hexdigest()
        if asked and name:
            start, status = int(asked[1]), 206
            data = data[start:]
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        if status == 206:
            self.send_header("Content-Range", f"bytes {whole - len(data)}-{whole - 1}/{whole}")
        if name:
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Repo-Commit", SHA)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if with_body and name and name == self.server.cut:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
        elif with_body:
            self.wfile.write(data)
