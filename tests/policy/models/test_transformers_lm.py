"""Other architectures through transformers: sampled, trained, published, stored and exported behind
the protocols of the native decoder."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import edit_json, train_rows, trainer_settings
from safetensors.torch import load_file, save_file

from swarm_node.errors import ModelError
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.models.by_transformers import config as transformers_config
from swarm_node.policy.models.by_transformers.language_model import TransformersLM
from swarm_node.policy.models.by_transformers.lora import PublishedTransformersAdapter
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.lora import ADAPTER_FILE
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.checkpoints.checkpoint import read
from swarm_node.policy.training.checkpoints.export import write_export
from swarm_node.policy.training.objective.logprobs import completion_logprobs, measure_canary
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.policy.weights.canary import read_canary
from swarm_node.rollout import Completion, Provenance

torch.set_num_threads(1)
_IDS = {"pad_token_id": 0, "bos_token_id": 1}
_SLIDING = ["sliding_attention", "full_attention"]
#: Random small shapes: each has something that the native decoder does not compute.
SHAPES: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "layer_types": _SLIDING,
        "sliding_window": 6,
        "final_logit_softcapping": 2.0,
    },
    "phi3": {"tie_word_embeddings": False},
    "olmo2": {"tie_word_embeddings": False},
    "granite": {"logits_scaling": 3.0, "embedding_multiplier": 5.0, "residual_multiplier": 0.4},
    "mistral": {"sliding_window": 6},
    "llama": {"attention_bias": True},
}
#: Caps of attention scores, a head of another module, positions of attention masks.
OTHERS: dict[str, dict[str, Any]] = {
    "gemma2": {"layer_types": _SLIDING, "sliding_window": 6, "attn_logit_softcapping": 2.0},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32, "hidden_dropout": 0.3, "dropout": 0.3},
    "gpt2": {"n_inner": 64, "resid_pdrop": 0.3},
    "bloom": {},
    "cohere2": {"layer_types": _SLIDING, "sliding_window": 6},
    "stablelm": {"tie_word_embeddings": False},
    "qwen3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}
SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2)
QUESTIONS = ("Add 1 and 2.", "Spell cat.", "Count.")
Make = Callable[..., Path]


@pytest.fixture(scope="session")
def small(make_model: Make, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`small(model_type)`: a directory with a random model of this type; do not write."""
    made: dict[str, Path] = {}

    def of(model_type: str) -> Path:
        if model_type not in made:
            shape = {**_IDS, **{**SHAPES, **OTHERS}[model_type]}
            place = tmp_path_factory.mktemp(model_type)
            made[model_type] = make_model(place, model_type, **shape)
            _spread(place)
            if model_type in ("gpt2", "bloom"):
                _as_on_the_hub(place)
        return made[model_type]

    return of


def _as_on_the_hub(path: Path) -> None:
    """Files of transformers' first models: the decoder's names, masks, other names of sizes."""
    state = load_file(path / "model.safetensors")
    stored = {name.removeprefix("transformer."): each for name, each in state.items()}
    assert stored.keys() != state.keys()
    stored["h.0.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    del config["intermediate_size"]
    if config["model_type"] == "bloom":
        config["seq_length"] = config.pop("max_position_embeddings")
    (path / "config.json").write_text(json.dumps(config))


def _spread(path: Path) -> None:
    """Make the weights so large that another function gives other log-probs."""
    state = load_file(path / "model.safetensors")
    torch.manual_seed(5)
    for name, weight in state.items():
        state[name] = weight + 0.2 * torch.randn_like(weight)
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})


def theirs(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    how = {"dtype": torch.float32, "attn_implementation": "eager"}  # others leave out a cap
    return AutoModelForCausalLM.from_pretrained(path, **how).eval()


def sampled(
    sampler: TorchSampler, codec: Codec, rows: int = 3, **more: Any
) -> list[tuple[Completion, ...]]:
    settings = {"max_new_tokens": 10, "temperature": 0.8, **more}
    asked = [
        SampleRequest(codec.encode_prompt(each), rows, seed, **settings)
        for seed, each in enumerate(QUESTIONS)
    ]
    return asyncio.run(sampler.sample(asked))


def as_rows(codec: Codec, groups: Sequence[tuple[Completion, ...]]) -> list[TrainRow]:
    return [
        TrainRow(
            np.asarray(codec.encode_prompt(question), np.uint32),
            completion.token_ids,
            completion.logprobs,
            1.0,
            Provenance.LOCAL,
        )
        for question, group in zip(QUESTIONS, groups, strict=True)
        for completion in group
    ]


def both_agree(path: Path) -> None:
    """The sampler's log-probs are the trainer's and those of transformers."""
    codec, model, reference = Codec.from_directory(path), TransformersLM.from_directory(path), None
    sampler = TorchSampler.from_directory(path, max_rows=4, threads=1)
    rows = as_rows(codec, sampled(sampler, codec))
    with torch.no_grad():
        trained = completion_logprobs(model, rows, 0.8).numpy()
    stated = np.concatenate([row.logprobs for row in rows if row.logprobs is not None])
    np.testing.assert_allclose(stated, trained, atol=1e-4)
    reference, expected = theirs(path), []
    for row in rows:
        prompt, answer = row.prompt_ids.tolist(), row.completion_ids.tolist()
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        expected += (logits / 0.8).log_softmax(-1)[range(len(answer)), answer].tolist()
    np.testing.assert_allclose(stated, expected, atol=1e-4)
    asyncio.run(sampler.close())


@pytest.mark.slow(reason="builds many architectures")
@pytest.mark.parametrize("model_type", SHAPES)
def test_sampler_trainer_and_transformers_have_the_same_logprobs(
    small: Callable[[str], Path], model_type: str
) -> None:
    assert not ModelConfig.from_directory(small(model_type)).native
    both_agree(small(model_type))


def test_a_window_that_the_class_does_not_compute_is_none_in_the_cache(
    small: Callable[[str], Path], tmp_path: Path
) -> None:
    for entry in ("sliding_window", "attention_chunk_size"):
        place = rewritten(small("olmo2"), tmp_path / entry, **{entry: 16})
        both_agree(place)


@pytest.mark.nightly("further architectures")
@pytest.mark.parametrize("model_type", OTHERS)
def test_further_architectures_have_the_same_logprobs(
    small: Callable[[str], Path], model_type: str
) -> None:
    both_agree(small(model_type))


def test_draws_depend_on_the_seed_alone(small: Callable[[str], Path]) -> None:
    path = small("gemma3_text")
    codec = Codec.from_directory(path)
    found = []
    for rows in (2, 256):
        sampler = TorchSampler.from_directory(path, max_rows=rows, threads=1)
        groups = sampled(sampler, codec, rows=4)
        found.append([one.token_ids.tolist() for group in groups for one in group])
    assert found[0] == found[1]
    assert len({*map(tuple, found[0])}) > 6


@pytest.mark.slow(reason="trains many architectures")
@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("model_type", SHAPES)
def test_three_updates_reach_the_sampler_the_disk_and_transformers(
    small: Callable[[str], Path], tmp_path: Path, model_type: str, rank: int
) -> None:
    path = small(model_type)
    published = "adapter" if rank else "merged"
    settings = replace(SETTINGS, lora_rank=rank, published=published, canary=True)
    (tmp_path / "weights").mkdir()
    host = TrainerHost(path, tmp_path / "checkpoints", tmp_path / "weights", settings)
    codec, rows = Codec.from_directory(path), train_rows(6)
    sampler = TorchSampler.from_directory(path, threads=1)
    before = sampled(sampler, codec)
    for _ in range(3):
        assert host.update(Batch(tuple(rows))).stats.skipped is None
    asyncio.run(sampler.load(host.weights_path, 3))
    after = sampled(sampler, codec)
    assert not np.array_equal(after[0][0].logprobs, before[0][0].logprobs)
    with torch.no_grad():
        trained = completion_logprobs(host.core.model, as_rows(codec, after), 0.8).numpy()
    np.testing.assert_allclose(
        np.concatenate([one.logprobs for group in after for one in group]), trained, atol=1e-4
    )
    stored = read(host.checkpoint({}))
    form = "peft" if rank else "hf"
    write_export(stored, path, tmp_path / form, form, base=None, card="")
    write_export(stored, path, tmp_path / "whole", "hf", base=None, card="")
    ids = torch.randint(3, 290, (2, 17), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        ours = host.core.model(ids)
        whole = theirs(tmp_path / "whole")(ids).logits
    torch.testing.assert_close(whole, ours, atol=1e-4, rtol=0)
    if rank:
        from peft import PeftModel

        adapted = PeftModel.from_pretrained(theirs(path), tmp_path / "peft")
        with torch.no_grad():
            torch.testing.assert_close(adapted(ids).logits, ours, atol=1e-4, rtol=0)
    assert not torch.equal(ours, theirs(path)(ids).logits)
    ModelConfig.from_directory(tmp_path / "whole")
    canary = read_canary(host.weights_path / ADAPTER_FILE if rank else host.weights_path)
    assert canary is not None
    fresh = TransformersLM.from_directory(tmp_path / "whole")
    assert measure_canary(fresh).logprobs == pytest.approx(measure_canary(host.core.model).logprobs)


def test_a_stored_state_goes_on_as_if_nothing_had_happened(
    small: Callable[[str], Path], tmp_path: Path
) -> None:
    batch = Batch(tuple(train_rows(6)))
    for rank in (0, 4):
        settings = replace(SETTINGS, lora_rank=rank)
        first, second = (TrainerCore(small("phi3"), settings) for _ in range(2))
        first.update(batch)
        second.restore(first.state(b"", {}))
        first.update(batch)
        second.update(batch)
        for name, weight in first.weights().items():
            assert torch.equal(weight, second.weights()[name]), name


def test_recomputed_activations_give_the_same_gradient(small: Callable[[str], Path]) -> None:
    """Also where the layers have dropout, which is off."""
    batch, found = Batch(tuple(train_rows(6))), []
    for recompute in (False, True):
        core = TrainerCore(
            small("gemma3_text"),
            replace(SETTINGS, lora_rank=4, activation_checkpointing=recompute),
        )
        assert core.model.recompute is recompute
        found.append(core.update(batch))
    assert found[0].grad_norm == pytest.approx(found[1].grad_norm, rel=1e-4)
    assert found[0].entropy == pytest.approx(found[1].entropy, rel=1e-5)


def test_rotary_angles_stay_float32_in_half_precision(small: Callable[[str], Path]) -> None:
    model = TransformersLM.from_directory(small("gemma3_text"), torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in model.buffers() if each.is_floating_point()} == {torch.float32}
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        whole = TransformersLM.from_directory(small("gemma3_text"))(ids).log_softmax(-1)
        half = model(ids).float().log_softmax(-1)
    assert float((whole - half).abs().mean()) < 0.05


def test_a_published_adapter_of_another_model_changes_nothing(
    small: Callable[[str], Path],
) -> None:
    model = TransformersLM.from_directory(small("phi3"))
    ids = torch.arange(3, 14)[None]
    before = model(ids)
    adapter = PublishedTransformersAdapter(model)
    core = TrainerCore(small("olmo2"), replace(SETTINGS, lora_rank=4))
    assert core.adapter is not None
    for state in ({}, core.adapter.state()):
        with pytest.raises(ModelError, match="does not fit"):
            adapter.load(state)
    assert torch.equal(model(ids), before)
    right = TrainerCore(small("phi3"), replace(SETTINGS, lora_rank=4))
    right.update(Batch(tuple(train_rows(6))))
    assert right.adapter is not None
    assert adapter.load(right.adapter.state())
    assert not adapter.load(right.adapter.state())
    torch.testing.assert_close(model(ids), right.model(ids), atol=1e-5, rtol=0)
    assert adapter.remove()
    torch.testing.assert_close(model(ids), before, atol=1e-6, rtol=0)


def test_weights_that_do_not_fit_are_refused(small: Callable[[str], Path]) -> None:
    model = TransformersLM.from_directory(small("granite"))
    state = model.hf_state()
    name = next(iter(state))
    fewer = {each: state[each] for each in state if each != name}
    for wrong in ({**state, "more": torch.zeros(1)}, {**state, name: torch.zeros(3)}, fewer):
        with pytest.raises(ModelError, match="do not fit"):
            model.load_hf_state(wrong)


def rewritten(path: Path, target: Path, **changes: Any) -> Path:
    shutil.copytree(path, target, dirs_exist_ok=True)
    edit_json(target / "config.json", **changes)
    return target


def test_the_digest_covers_the_function_and_nothing_else(
    small: Callable[[str], Path], tmp_path: Path
) -> None:
    path = small("gemma3_text")
    same = rewritten(
        path, tmp_path / "same", dtype="bfloat16", _name_or_path="/x", transformers_version="4.50.0"
    )
    other = rewritten(path, tmp_path / "other", final_logit_softcapping=3.0)
    assert policy_digests(same) == policy_digests(path)
    assert policy_digests(other)[0] != policy_digests(path)[0]


@pytest.mark.parametrize(
    "entry",
    ["attn_implementation", "_attn_implementation", "experts_implementation"],
)
def test_a_kernel_of_the_hub_is_not_asked_for(
    small: Callable[[str], Path], tmp_path: Path, entry: str
) -> None:
    for number, kernel in enumerate(("org/kernel", "paged|org/kernel", {"": "org/kernel"})):
        place = rewritten(small("phi3"), tmp_path / str(number), **{entry: kernel})
        config = ModelConfig.from_directory(place)
        assert config == ModelConfig.from_directory(small("phi3"))
        model = TransformersLM(config)
        assert model.inner.config._attn_implementation in ("sdpa", "eager")


@pytest.mark.slow(reason="starts two children that import transformers")
def test_code_of_a_repository_never_runs(small: Callable[[str], Path], tmp_path: Path) -> None:
    trap = "raise SystemExit('ran')\n"
    place = rewritten(
        small("phi3"),
        tmp_path / "own",
        auto_map={"AutoConfig": "trap.Config", "AutoModelForCausalLM": "trap.Model"},
    )
    (place / "trap.py").write_text(trap)
    transformers_config._known.clear()
    told: list[object] = []
    for _ in range(2):
        by_child = transformers_config.read_config(place, told.append)
        assert len(told) == 1, "a child reads it, once"
    assert resolve(str(place)) == place.resolve()
    transformers_config._known.clear()
    assert ModelConfig.from_directory(place) == by_child
    TransformersLM.from_directory(place)
    place = rewritten(place, tmp_path / "unknown", model_type="trap")
    with pytest.raises(ModelError, match="no causal model of transformers"):
        resolve(str(place))


@pytest.mark.parametrize(
    ("model_type", "changes", "said"),
    [
        ("bart", {}, "encoder"),
        ("bert", {}, "encoder"),
        ("mamba", {}, "linear_attention"),
        ("rwkv", {}, "rwkv"),
        ("recurrent_gemma", {}, "recurrent_gemma"),
        ("mixtral", {}, "mixture of experts"),
        ("gpt_neox", {}, "names of weights"),
        ("gemma3", {}, "text"),
        ("t5", {}, "no causal model"),
        ("xlnet", {}, "xlnet"),
        ("phi3", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("phi3", {"num_hidden_layers": 1 << 22}, "layers"),
        ("phi3", {"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
        ("phi3", {"hidden_size": "32"}, "config.json"),
        ("phi3", {"hidden_size": -32}, "config.json"),
        ("phi3", {"vocab_size": 1 << 24, "hidden_size": 1 << 24}, "config.json"),
        ("phi3", {"layer_types": ["full_attention"] * 5000}, "layer_types"),
        ("phi3", {"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ("phi3", {"num_attention_heads": 0}, "config.json"),
        ("olmo2", {"num_attention_heads": 0}, "num_attention_heads is 0"),
        (
            "gpt_neo",
            {
                "num_layers": 2,
                "attention_types": [[["global", "local"], 1]],
                "max_position_embeddings": 1 << 17,
            },
            "bytes besides",
        ),
        ("gemma3_text", {"layer_types": ["full_attention"] * 3}, "config.json"),
        ("gemma3_text", {"rope_parameters": {"full_attention": 3}}, "config.json"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_sampled_and_trained_is_refused_by_name(
    tmp_path: Path, model_type: str, changes: dict[str, Any], said: str
) -> None:
    shape = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "model_type": model_type,
    }
    (tmp_path / "config.json").write_text(json.dumps({**shape, **_IDS, **changes}))
    with pytest.raises(ModelError, match=said) as caught:
        ModelConfig.from_directory(tmp_path)
    assert len(str(caught.value)) < 500


def test_positions_end_where_rotary_angles_change(
    small: Callable[[str], Path], tmp_path: Path
) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    place = rewritten(
        small("phi3"),
        tmp_path / "long",
        rope_parameters={**rope, "original_max_position_embeddings": 32},
        original_max_position_embeddings=32,
    )
    assert ModelConfig.from_directory(small("phi3")).max_position_embeddings == 64
    assert ModelConfig.from_directory(place).max_position_embeddings == 32
