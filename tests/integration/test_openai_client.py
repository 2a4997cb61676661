"""A real node with vLLM that learns while OpenAI's client asks it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import swarm_node
from swarm_node.policy.sampling.vllm.engine import installed_vllm

pytestmark = [
    pytest.mark.slow(reason="starts a real node of four processes that import torch"),
    pytest.mark.timeout(900),
]
openai = pytest.importorskip("openai", reason="NOT RUN: needs tests/requirements-openai.txt")
BUILD = installed_vllm()
#: With a full stop `tiny` answers nothing.
QUESTION = [{"role": "user", "content": "Sort 3 1 2"}]


@pytest.mark.skipif(BUILD is None or not BUILD.on_cpu, reason="no vllm for CPUs is installed")
@pytest.mark.nightly(reason="an engine of its own")
def test_a_client_of_a_node_with_vllm_is_told_what_the_engine_knows(tmp_path: Path) -> None:
    settings = {"network.listen": ["/ip4/127.0.0.1/tcp/0"], "sampling.engine": "vllm"}
    with swarm_node.start("tiny", home=tmp_path, settings=settings) as node:
        node.wait_for(steps=2)
        command = [sys.executable, "-m", "swarm_node", "serve", "--home", str(tmp_path)]
        shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120).stdout
        url = re.search(r"OPENAI_BASE_URL=(\S+)", shown)
        assert url is not None
        key = (tmp_path / "openai.token").read_text()
        with openai.OpenAI(base_url=url[1], api_key=key, timeout=300) as client:
            (model,) = client.models.list()
            assert client.models.retrieve("tiny").id == model.id == "tiny"
            told = {"logprobs": True, "top_logprobs": 3}
            for heat in (1.0, 0.0):
                said = chat(client, temperature=heat, n=2, **told)
                for choice in said.choices:
                    entries = choice.logprobs.content
                    assert entries
                    assert spelt(entries) == choice.message.content
                    assert all(len(entry.top_logprobs) == 3 for entry in entries)
                    likeliest = [entry.top_logprobs[0].token == entry.token for entry in entries]
                    assert heat or all(likeliest)
            with client.chat.completions.stream(
                model="tiny", messages=QUESTION, max_tokens=40, temperature=1.0, **told
            ) as stream:
                kinds = [event.type for event in stream]
                whole = stream.get_final_completion().choices[0]
            assert {"content.delta", "logprobs.content.delta"} <= set(kinds)
            assert spelt(whole.logprobs.content) == whole.message.content
            text = client.completions.create(
                model="tiny", prompt=["Sort 3 1 2", "a"], max_tokens=20, logprobs=2
            )
            assert [len(each.logprobs.tokens) > 0 for each in text.choices] == [True, True]
            version = int(chat(client, temperature=0.7, top_p=0.9).system_fingerprint[1:])
            for wrong in ({"temperature": 0.7}, {"top_p": 0.9}):
                with pytest.raises(openai.BadRequestError, match="log-probs") as no:
                    chat(client, **wrong, **told)
                assert (no.value.code, no.value.param) == ("unsupported_parameter", "logprobs")
            node.wait_for(steps=node.status().steps + 5)
            assert int(chat(client).system_fingerprint[1:]) > version
        status = node.status()
        assert status.engine == "vllm"
        assert not status.faults.keys() & {"serve", "engine", "canary"}


def spelt(entries: list[Any]) -> str:
    """The text of tokens, of which some have parts of characters."""
    return bytes(byte for entry in entries for byte in entry.bytes or ()).decode(errors="replace")


def chat(client: openai.OpenAI, **asked: Any) -> Any:
    return client.chat.completions.create(
        model="tiny", messages=QUESTION, **{"max_tokens": 20, **asked}
    )
