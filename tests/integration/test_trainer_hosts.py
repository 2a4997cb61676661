"""A node whose trainer computes on two hosts, as a user starts them."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import COMMAND

from swarm_node.p2p.addresses.addresses import unused_port


@pytest.mark.slow(reason="starts a node, which imports torch")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_node_that_waits_for_its_hosts_ends_when_it_is_told(
    start_node: Callable[..., Any], number: signal.Signals
) -> None:
    node = start_node("node", "--set", f"run.trainer_hosts={free_address()}*2")
    until = time.monotonic() + 240
    while "waiting for trainer hosts" not in node.log() and time.monotonic() < until:
        time.sleep(0.2)
    node.process.send_signal(number)
    assert node.process.wait(240) == 0, node.log()  # an error, were the hosts waited for to the end


def free_address() -> str:
    return f"127.0.0.1:{unused_port()}"


@pytest.mark.slow(reason="starts a node and a second host of its trainer, which import torch")
@pytest.mark.timeout(900)
@pytest.mark.nightly(reason="tests/node/hosts trains on two hosts")
def test_a_node_trains_on_two_hosts_and_the_second_ends_with_it(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    address = free_address()
    node = start_node("node", "--set", f"run.trainer_hosts={address}*2", "--steps", "3")
    key, waiting = node.home / "site.key", time.monotonic() + 120
    while not key.exists() and time.monotonic() < waiting:
        time.sleep(0.2)
    second = subprocess.Popen(
        [
            *(*COMMAND, "train-host", address, "--key", key, "--model", "tiny"),
            *("--home", tmp_path / "second"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert node.process.wait(600) == 0, node.log()
        _, said = second.communicate(timeout=60)
        assert second.returncode == 0
        assert "host 1 of" in said
        assert said.endswith("has ended\n")
    finally:
        second.kill()
    stored = [path.name for path in (node.home / "checkpoints").iterdir()]
    assert stored == ["v0000000003"]
