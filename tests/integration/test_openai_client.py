"""A real node that learns while OpenAI's client asks it, and a stored checkpoint after it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import swarm_node

pytestmark = [
    pytest.mark.slow(reason="starts a real node of four processes that import torch"),
    pytest.mark.timeout(900),
]
openai = pytest.importorskip("openai", reason="NOT RUN: needs tests/requirements-openai.txt")
QUESTION = [{"role": "user", "content": "Sort 3 1 2."}]


def test_a_client_hears_each_new_version_and_the_node_goes_on_learning(tmp_path: Path) -> None:
    settings = {"network.listen": ["/ip4/127.0.0.1/tcp/0"], "run.checkpoint_updates": 5}
    with swarm_node.start("tiny", home=tmp_path, settings=settings) as node:
        key = (tmp_path / "openai.token").read_text()
        done = command(tmp_path)
        shown, _ = done.communicate(timeout=120)
        url = re.search(r"OPENAI_BASE_URL=(\S+)", shown)
        assert url is not None
        assert done.returncode == 0
        versions, updates = list[int](), 2
        with openai.OpenAI(base_url=url[1], api_key=key) as client:
            for _ in range(3):
                node.wait_for(updates=updates)
                said = client.chat.completions.create(
                    model="tiny", messages=QUESTION, temperature=1.5, max_tokens=24, n=4
                )
                assert len(said.choices) == 4
                versions.append(int(said.system_fingerprint.removeprefix("v")))
                updates = max(versions[-1] + 3, 16)  # a busy machine answers many updates later
        assert versions == sorted(set(versions))
        assert node.status().faults.get("serve") is None
    assert not (tmp_path / "openai.token").exists()
    stored = command(tmp_path)
    try:
        assert stored.stdout is not None
        url = re.search(r"OPENAI_BASE_URL=(\S+)", stored.stdout.readline())
        assert url is not None
        stored.stdout.readline()
        key = (tmp_path / "serve.token").read_text()
        with openai.OpenAI(base_url=url[1], api_key=key) as client:
            (model,) = client.models.list()
            assert model.version >= 16
            assert client.completions.create(model="tiny", prompt="Sort 3 1 2.").choices
    finally:
        stored.send_signal(signal.SIGINT)
        stored.communicate(timeout=60)
    assert stored.returncode == 0
    assert not (tmp_path / "serve.token").exists()


def command(home: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-u", "-m", "swarm_node", "serve", "--home", str(home)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
