"""vLLM as its users start it loads what `swarm-node export` writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from integration.engines import ON_CPUS
from trained_homes import trained_home
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.decoder.lora import PublishedAdapter
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.sampling.vllm.engine import (
    engine_environment,
    plan_engine,
)

pytestmark = [
    pytest.mark.nightly(reason="an engine of its own: test_vllm_sampler has one"),
    *ON_CPUS,
]
PROMPT = [5, 6, 7, 8, 9, 10, 11]
#: Prints the greedy answers of the exported model, and of it with the exported adapter once more.
ENGINE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

whole, adapter, prompt = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
llm = LLM(whole, dtype="float32", enforce_eager=True, max_model_len=64, max_num_seqs=2,
          kv_cache_memory_bytes=32 << 20, enable_lora=True, max_lora_rank=8)
asked = SamplingParams(temperature=0, max_tokens=8, logprobs=0, ignore_eos=True)
said = []
for lora in (None, LoRARequest("exported", 1, adapter)):
    (found,) = llm.generate({"prompt_token_ids": prompt}, asked, lora_request=lora)
    answer = found.outputs[0]
    logprobs = [each[token].logprob for token, each in zip(answer.token_ids, answer.logprobs)]
    said.append([list(answer.token_ids), logprobs])
print(json.dumps(said))
"""


@torch.no_grad()
def logprobs(model: CausalLM, answer: list[int]) -> list[float]:
    rows = model(torch.tensor([[*PROMPT, *answer]]))[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return rows.gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_an_exported_model_and_its_adapter_compute_what_was_trained(
    tmp_path: Path, make_model: Callable[..., Path], family: str
) -> None:
    base = make_model(tmp_path / "base", family, head_dim=32)
    host = trained_home(tmp_path / "home", 8, base)
    for form in ("hf", "peft"):
        options = ["--format", form, "--home", str(tmp_path / "home"), "--model", str(base)]
        assert CliRunner().invoke(app, ["export", str(tmp_path / form), *options]).exit_code == 0
    (base / "config.json").unlink()  # neither export needs it
    plan = plan_engine(host.core.model.config, placement=ON_CPU, max_rows=2, max_new_tokens=8)
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, tmp_path / "hf", tmp_path / "peft", json.dumps(PROMPT)],
        env=dict(engine_environment(plan)) | {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    once = CausalLM.from_directory(tmp_path / "hf")
    twice = CausalLM.from_directory(tmp_path / "hf")
    PublishedAdapter(twice).load(host.core.adapter.state())
    for model, (answer, found) in zip((once, twice), said, strict=True):
        assert found == pytest.approx(logprobs(model, answer), abs=1e-4)
    answer, found = said[1]
    assert found != pytest.approx(logprobs(once, answer), abs=1e-3)
