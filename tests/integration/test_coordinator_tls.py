"""A real node asks a real coordinator through a real Caddy, set up as docs/coordinator.md says."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT
from coordinator_runs import issuer_file, swarm_file
from running import CoordinatorProcess
from swarm_keys import Swarm

from swarm_node.p2p.addresses.addresses import unused_port

CADDY = shutil.which("caddy")
pytestmark = [
    pytest.mark.nightly(reason="a proxy of a page"),
    pytest.mark.skipif(CADDY is None, reason="NOT RUN: needs Debian's package caddy"),
    pytest.mark.slow(reason="starts a real node and Caddy"),
]


@contextmanager
def proxy(place: Path, upstream: str) -> Iterator[tuple[int, Path]]:
    """Caddy with the page's file, for localhost and by an authority of its own: its port, and the
    authority's certificate."""
    page = (ROOT / "docs" / "coordinator.md").read_text()
    (shown,) = re.findall(r"```\n(swarm\.example .*?)```", page, re.DOTALL)
    assert (ROOT / "docker" / "Caddyfile").read_text().count("max_size 64KB") == 1
    port = unused_port()
    local = shown.replace("swarm.example {", f"https://localhost:{port} {{\n\ttls internal", 1)
    local = local.replace("127.0.0.1:8470", upstream)
    place.mkdir()
    file = place / "Caddyfile"
    file.write_text(
        f"{{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n}}\n{local}"
    )
    assert CADDY is not None
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [CADDY, "run", "--config", str(file), "--adapter", "caddyfile"],
            stdout=log,
            stderr=log,
            env={**os.environ, "XDG_DATA_HOME": str(place), "XDG_CONFIG_HOME": str(place)},
        )
    root = place / "caddy" / "pki" / "authorities" / "local" / "root.crt"
    deadline = time.monotonic() + 120
    try:
        while not (root.exists() and _listens(port)):
            assert process.poll() is None, (place / "log").read_text()
            assert time.monotonic() < deadline, (place / "log").read_text()
            time.sleep(0.2)
        yield port, root
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _reported(status: dict[str, Any]) -> bool:
    """Whether the coordinator has a report and answered a poll: either can come first."""
    coordinator = status["coordinator"] or {"reported": 0}
    return coordinator["reported"] > 0 and coordinator["answers"] is True


@pytest.mark.timeout(600)
def test_a_code_an_introduction_and_a_report_pass_the_proxy(
    start_node: Callable[..., Any],
    start_coordinator: Callable[..., CoordinatorProcess],
    tmp_path: Path,
) -> None:
    swarm = Swarm(int(time.time()) - 60)
    file, issuer = swarm_file(tmp_path / "coordinator", swarm), issuer_file(tmp_path, swarm, 1)
    coordinator = start_coordinator(
        "--swarm", str(file), "--issuer-file", str(issuer), "--behind-proxy"
    )
    code = coordinator.run("code", "make", "--name", "alice")
    with proxy(tmp_path / "proxy", coordinator.url.removeprefix("http://")) as (port, root):
        url = f"https://localhost:{port}"
        node = start_node(
            *("alice", "--coordinator", url, "--code", code),
            variables={"SSL_CERT_FILE": str(root)},
        )
        row = node.wait(_reported)["coordinator"]
        assert (row["url"], row["introduced"]) == (url, 0)

        trusted = ssl.create_default_context(cafile=str(root))
        # Caddy 2.6 says 502 of a body that is too long, later ones 413.
        for size, expected in ((64_000, (400,)), (64_001, (413, 502))):
            asked = http.client.HTTPSConnection("localhost", port, timeout=60, context=trusted)
            asked.request("POST", "/v1/redemptions", b"x" * size)
            assert asked.getresponse().status in expected
            asked.close()
        assert node.stop() == 0, node.log()
