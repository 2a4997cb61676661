"""A node whose vLLM dies whenever it starts goes on with the built-in sampler."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

pytestmark = [
    pytest.mark.nightly(reason="engines of their own: test_vllm_sampler has one"),
    pytest.mark.slow(reason="starts a real node and vLLM, which imports for half a minute"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
]


def engines(node: Any) -> Iterator[psutil.Process]:
    """The processes of vLLM that a node has started, helpers first."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(node.process.pid).children():
            if "swarm_node.policy.sampling.vllm.worker" in child.cmdline():
                yield from child.children(recursive=True)
                yield child


@contextlib.contextmanager
def killed_as_they_start(node: Any) -> Iterator[None]:
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.1):
            for process in engines(node):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


def test_a_node_outlives_its_engine_and_trains_on(start_node: Callable[..., Any]) -> None:
    node = start_node("node", "--sampler", "vllm", "--set", "training.lora_rank=4")
    before = node.wait(lambda status: status["steps"] >= 2, 600)
    assert before["engine"] == "vllm"
    assert "engine_replaced" not in before["faults"]
    with killed_as_they_start(node):
        replaced = node.wait(lambda status: status["engine"] != "vllm")
    assert replaced["engine"].startswith("torch (vLLM")
    assert replaced["faults"]["engine_replaced"] == 1
    assert "engine" not in replaced["processes"]
    assert "for good" in node.log()
    after = node.wait(lambda status: status["steps"] >= replaced["steps"] + 5)
    assert after["version"] > replaced["version"]
    assert after["groups"]["sampled"] > replaced["groups"]["sampled"]
    assert list(engines(node)) == []
    assert "sampler" in node.run("status").stdout
    assert node.stop() == 0, node.log()
