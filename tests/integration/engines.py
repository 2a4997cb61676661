"""What tests of the real vLLM share: where they run, and how near an engine is to its trainer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.vllm.engine import installed_vllm
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.rollout import Completion, Provenance

BUILD = installed_vllm()
#: Marks of a module whose engines run on a CPU.
ON_CPUS = (
    pytest.mark.slow(reason="starts vLLM, which imports for half a minute"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(BUILD is None or not BUILD.on_cpu, reason="no vllm for CPUs is installed"),
)
TINY = resolve("tiny")


@torch.no_grad()
def recomputed(
    model: CausalLM, asked: SampleRequest, completion: Completion, temperature: float = 1.0
) -> np.ndarray:
    """What the trainer says of a completion, f32[T]."""
    prompt = np.asarray(asked.prompt_ids, np.uint32)
    row = TrainRow(prompt, completion.token_ids, None, 0.0, Provenance.LOCAL)
    return completion_logprobs(model, [row], temperature).numpy()


def largest_gap(
    model: CausalLM, asked: SampleRequest, group: Sequence[Completion], temperature: float = 1.0
) -> float:
    """Of the sampled log-probs to what `model` says."""
    return max(
        float(np.abs(recomputed(model, asked, one, temperature) - one.logprobs).max())
        for one in group
    )


def signed(asked: SampleRequest, group: Sequence[Completion]) -> Batch:
    """A batch of one group whose rows are good and bad by turns."""
    prompt = np.asarray(asked.prompt_ids, np.uint32)
    return Batch(
        tuple(
            TrainRow(prompt, one.token_ids, one.logprobs, (-1.0) ** place, Provenance.LOCAL)
            for place, one in enumerate(group)
        )
    )


def made(path: Path) -> Path:
    path.mkdir()
    return path


def write_random(directory: Path, config: ModelConfig) -> CausalLM:
    """A model with random weights and the tiny model's tokenizer, written to a new directory."""
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TINY / name, directory / name)
    eos = {"eos_token_id": Codec.from_directory(TINY).eos_id}
    (directory / "config.json").write_text(json.dumps({**config.to_hf(), **eos}))
    base = CausalLM(config, generator=torch.Generator().manual_seed(1))
    save_file(base.hf_state(), directory / "model.safetensors")
    return base
