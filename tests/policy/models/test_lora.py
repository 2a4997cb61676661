"""Adapters by peft on the lean model: the numbers, names and files of peft on transformers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import same_tensors, train_rows, trainer_settings
from safetensors.torch import load_file

from swarm_node.config import load_settings
from swarm_node.errors import CheckpointError, ModelError
from swarm_node.node.start.derive import with_stored_rank
from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.decoder.lora import ADAPTER_FILE, TARGETS, Adapter, PublishedAdapter
from swarm_node.policy.training.checkpoints.checkpoint import read
from swarm_node.policy.training.objective.logprobs import completion_logprobs, measure_canary
from swarm_node.policy.training.objective.packing import micro_batches
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.policy.weights.canary import read_canary

torch.set_num_threads(1)
SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2, lora_rank=4)
IDS = torch.randint(0, 64, (3, 11), generator=torch.Generator().manual_seed(3))


def rows(count: int = 6) -> Batch:
    return Batch(tuple(train_rows(count)))


def trained(directory: Path, updates: int = 3, **changes: Any) -> TrainerCore:
    core = TrainerCore(directory, replace(SETTINGS, **changes))
    for _ in range(updates):
        assert core.update(rows()).skipped is None
    return core


@torch.no_grad()
def distributions(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    found = model(ids)
    return torch.log_softmax(found if isinstance(found, torch.Tensor) else found.logits, -1)


def peft_on_transformers(base: Path, adapter: Path) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()


def saved(base: Path, place: Path) -> tuple[TrainerCore, Adapter]:
    """A trained core and its adapter, which was written to `place`."""
    core = trained(base)
    core.adapter.save(place)
    return core, core.adapter


def assert_peft_computes_the_same(model: CausalLM, base: Path, adapter: Path) -> None:
    """On the model of transformers, from the saved adapter."""
    loaded = peft_on_transformers(base, adapter)
    torch.testing.assert_close(distributions(loaded), distributions(model), rtol=0.0, atol=1e-5)


def test_an_untrained_adapter_changes_nothing_and_a_trained_one_only_itself(
    random_qwen2: Path,
) -> None:
    plain = CausalLM.from_directory(random_qwen2)
    core = TrainerCore(random_qwen2, SETTINGS)
    assert torch.equal(distributions(core.model), distributions(plain))
    assert same_tensors(core.weights(), plain.hf_state())
    core.update(rows())
    assert not torch.equal(distributions(core.model), distributions(plain))
    assert same_tensors(core.model.hf_state(), plain.hf_state())
    assert core.adapter is not None
    with core.adapter.disable():
        assert torch.equal(distributions(core.model), distributions(plain))


def test_merged_weights_compute_what_the_adapted_model_computes(random_qwen2: Path) -> None:
    core = trained(random_qwen2)
    merged = CausalLM.from_directory(random_qwen2)
    merged.load_hf_state(core.weights())
    torch.testing.assert_close(
        distributions(merged), distributions(core.model), rtol=0.0, atol=1e-5
    )
    moved = {
        name.rpartition(".")[0].rpartition(".")[2]
        for name, value in merged.hf_state().items()
        if not torch.equal(value, core.model.hf_state()[name])
    }
    assert moved == set(TARGETS)


def test_the_gradient_is_that_of_peft_on_transformers_model(
    random_qwen2: Path, tmp_path: Path
) -> None:
    core, adapter = saved(random_qwen2, tmp_path)
    theirs = peft_on_transformers(random_qwen2, tmp_path)
    for name, parameter in theirs.named_parameters():
        parameter.requires_grad_("lora_" in name)
    ours = adapter.parameters
    for parameter in ours.values():
        parameter.grad = None
    for logits in (core.model(IDS), theirs(IDS).logits):
        torch.log_softmax(logits, -1)[..., 7].sum().backward()
    for name, parameter in theirs.named_parameters():
        if parameter.requires_grad:
            mine = ours[name.replace(".default.", ".")].grad
            torch.testing.assert_close(mine, parameter.grad, rtol=1e-3, atol=1e-5)


def test_the_seed_decides_the_start_and_leaves_other_draws_alone(random_qwen2: Path) -> None:
    def start(seed: int) -> dict[str, torch.Tensor]:
        return Adapter(CausalLM.from_directory(random_qwen2), 4, seed=seed).state()

    before = torch.get_rng_state()
    first = start(1)
    assert torch.equal(before, torch.get_rng_state())
    assert same_tensors(first, start(1))
    assert not same_tensors(first, start(2))


def test_a_checkpoint_holds_the_adapter_and_its_moments_only(
    random_qwen2: Path, tmp_path: Path
) -> None:
    (tmp_path / "weights").mkdir()
    host = TrainerHost(random_qwen2, tmp_path / "checkpoints", tmp_path / "weights", SETTINGS)
    host.update(rows())
    state = read(host.checkpoint({}))
    assert all(".lora_A." in name or ".lora_B." in name for name in state.weights)
    assert {key.partition(":")[2] for key in state.optimizer} == state.weights.keys()
    # A full one has every weight; of this small model a rank of 4 is a seventh.
    stored = sum(value.numel() for value in state.weights.values())
    assert stored == sum(
        4 * (a + b) * 2
        for a, b in [(32, 32), (32, 16), (32, 16), (32, 32), (32, 64), (32, 64), (64, 32)]
    )
    resumed = TrainerHost(random_qwen2, tmp_path / "checkpoints", tmp_path / "weights", SETTINGS)
    for each in (host, resumed):
        each.update(rows(5))
    assert same_tensors(host.core.weights(), resumed.core.weights())


def test_a_checkpoint_of_another_rank_is_refused_by_name(random_qwen2: Path) -> None:
    state = trained(random_qwen2).state(b"", {})
    for rank in (0, 8):
        with pytest.raises(CheckpointError, match="rank = 4"):
            TrainerCore(random_qwen2, replace(SETTINGS, lora_rank=rank)).restore(state)
    adapter = Adapter(CausalLM.from_directory(random_qwen2), 8)
    before = adapter.state()
    with pytest.raises(ModelError, match="at rank 8"):
        adapter.load_state(state.weights)
    assert same_tensors(before, adapter.state())


def test_a_restart_keeps_to_the_adapters_of_the_checkpoint(
    random_qwen2: Path, tmp_path: Path
) -> None:
    (tmp_path / "weights").mkdir()
    checkpoints = tmp_path / "checkpoints"
    silent, loud = (
        load_settings({"model": str(random_qwen2), **flags}, environ={})
        for flags in ({}, {"training.lora_rank": 2})
    )
    assert with_stored_rank(silent, checkpoints).training.lora_rank == 0, "nothing is stored yet"
    host = TrainerHost(random_qwen2, checkpoints, tmp_path / "weights", SETTINGS)
    host.update(rows())
    newest = host.checkpoint({})
    kept = with_stored_rank(silent, checkpoints)
    assert kept.training.lora_rank == 4
    assert "lora_rank" in kept.training.model_fields_set, "so that no plan chooses another"
    assert with_stored_rank(loud, checkpoints).training.lora_rank == 2, "what the user says counts"
    (newest / "state.msgpack").write_bytes(b"\xc1")
    assert with_stored_rank(silent, checkpoints).training.lora_rank == 0


def test_tba_takes_the_base_model_from_beneath_the_adapter(random_qwen2: Path) -> None:
    core = trained(random_qwen2, updates=1, loss="tba")
    reference = core._base_policy(random_qwen2)
    base = CausalLM.from_directory(random_qwen2)
    judged = reference.log_probs(core.model, rows().rows, 1.0, micro_batches(rows().rows, 8192))
    assert reference._model is core.model
    for index, row in enumerate(rows().rows):
        one = judged[index]
        expected = completion_logprobs(base, [row], 1.0).detach().numpy()
        np.testing.assert_allclose(one.logp, expected, atol=1e-5)
        assert not math.isclose(one.drift, 0.0)


def test_layers_run_again_train_an_adapter_alike(random_qwen2: Path) -> None:
    kept, again = trained(random_qwen2), trained(random_qwen2, activation_checkpointing=True)
    assert same_tensors(kept.weights(), again.weights())


def test_what_is_published_is_chosen(random_qwen2: Path, tmp_path: Path) -> None:
    for published in ("merged", "adapter"):
        place = tmp_path / published
        place.mkdir()
        settings = replace(SETTINGS, published=published)
        host = TrainerHost(random_qwen2, tmp_path / f"c-{published}", place, settings)
        for _ in range(3):
            path = host.update(rows()).weights
        adapter = place / "adapter-3"
        assert path == (adapter if published == "adapter" else place / "weights-3.safetensors")
        names = {
            "merged": {"weights-2.safetensors", "weights-3.safetensors"},
            "adapter": {"adapter-2", "adapter-3"},
        }
        assert {each.name for each in place.iterdir()} == names[published]
        if published != "merged":
            stored = load_file(adapter / ADAPTER_FILE)
            assert read_canary(adapter / ADAPTER_FILE) == measure_canary(host.core.model)
            assert same_tensors(stored, host.core.adapter.state())
            assert_peft_computes_the_same(host.core.model, random_qwen2, adapter)
            config = json.loads((adapter / "adapter_config.json").read_text())
            assert (config["r"], config["lora_alpha"], config["inference_mode"]) == (4, 8, True)


def test_a_published_adapter_computes_what_the_trainer_does(
    random_qwen2: Path, tmp_path: Path
) -> None:
    core, adapter = saved(random_qwen2, tmp_path)
    model = CausalLM.from_directory(random_qwen2)
    base, published = distributions(model), PublishedAdapter(model)
    assert published.load(load_file(tmp_path / ADAPTER_FILE))
    assert torch.allclose(distributions(model), distributions(core.model), atol=1e-5)
    assert not torch.allclose(distributions(model), base, atol=1e-3)
    core.update(rows())
    adapter.save(tmp_path)
    # In the same places, where a captured graph reads it.
    places = [pair[0].data_ptr() for layer in published._factors for pair in layer.values()]
    assert not published.load(load_file(tmp_path / ADAPTER_FILE))
    assert places == [p[0].data_ptr() for layer in published._factors for p in layer.values()]
    assert torch.allclose(distributions(model), distributions(core.model), atol=1e-5)
    assert published.remove()
    assert torch.equal(distributions(model), base)
    assert not published.remove()


def test_a_published_adapter_of_another_model_is_refused(
    random_qwen2: Path, tmp_path: Path
) -> None:
    model = CausalLM.from_directory(random_qwen2)
    adapter, published = (
        Adapter(CausalLM.from_directory(random_qwen2), 2),
        PublishedAdapter(model),
    )
    state = adapter.state()
    published.load(state)
    before = distributions(model)
    name = next(name for name in state if name.endswith("down_proj.lora_B.weight"))
    fewer = {key: value for key, value in state.items() if key != name}
    for wrong in (fewer, {**state, name: state[name][:-1]}, {**state, "more": state[name]}):
        with pytest.raises(ModelError, match="not fit"):
            published.load(wrong)
        assert torch.equal(distributions(model), before)
