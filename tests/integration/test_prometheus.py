"""A real Prometheus reads what a node and a coordinator show."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from coordinator_runs import Hand, coordinator
from page_server import served, snapshot
from swarm_keys import Swarm

from swarm_node.p2p.addresses.addresses import unused_port

PROMETHEUS = shutil.which("prometheus")
DOCKER = Path(__file__).resolve().parents[2] / "docker"
pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason="NOT RUN: needs Debian's package prometheus"),
    pytest.mark.slow(reason="starts Prometheus"),
]


def _value(port: int, figure: str, seconds: float = 60.0) -> float:
    """What Prometheus answers for a figure, once it has scraped it."""
    url = f"http://127.0.0.1:{port}/api/v1/query?query={quote(figure)}"
    deadline, answer = time.monotonic() + seconds, {}
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                answer = json.load(response)
            if answer["data"]["result"]:
                return float(answer["data"]["result"][0]["value"][1])
        except OSError:
            pass  # it does not listen yet
        time.sleep(0.5)
    raise AssertionError(f"{figure} is not there after {seconds} s: {answer}")


@contextmanager
def _scraping(place: Path, config: str) -> Iterator[int]:
    """A Prometheus with this configuration; gives its port."""
    port = unused_port()
    place.mkdir()
    file = place / "prometheus.yml"
    file.write_text(config)
    shutil.copy(DOCKER / "alerts.yml", place)
    assert PROMETHEUS is not None
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(PROMETHEUS, f"--config.file={file}", f"--storage.tsdb.path={place / 'data'}"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)


def test_a_node_is_scraped_with_the_settings_that_ship(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    config = (DOCKER / "prometheus.yml").read_text().replace("/var/lib/swarm-node", str(home))
    config = config.replace("scrape_interval: 15s", "scrape_interval: 1s")
    with (
        served(home, snapshot(steps=41, version=41)),
        _scraping(tmp_path / "prometheus", config) as port,
    ):
        assert _value(port, "swarm_node_steps_total") == 41
        assert _value(port, 'up{job="swarm-node"}') == 1


def test_a_coordinator_is_scraped(tmp_path: Path) -> None:
    async def scraped() -> float:
        async with coordinator(tmp_path / "c", Swarm(), Hand(1000.0)) as running:
            config = {
                "global": {"scrape_interval": "1s"},
                "scrape_configs": [
                    {
                        "job_name": "coordinator",
                        "authorization": {"credentials_file": str(running.data / "metrics.token")},
                        "static_configs": [{"targets": [f"127.0.0.1:{running.admin_port}"]}],
                    }
                ],
            }
            with _scraping(tmp_path / "prometheus", json.dumps(config)) as port:
                return await asyncio.to_thread(_value, port, 'up{job="coordinator"}')

    assert asyncio.run(scraped()) == 1
