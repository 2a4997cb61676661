"""What is said to fit, and what a node on a GPU would be told."""

from __future__ import annotations

import ast
import io
import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pytest
import torch
from fits import decide, job_of
from rich.console import Console
from typer.testing import CliRunner, Result

from swarm_node.cli.main import app
from swarm_node.cli.verbs.plan import (
    CARDS,
    parse_vram,
)
from swarm_node.cli.views.plan_view import PlannedCard, card_view, cards_view
from swarm_node.config import Settings, load_settings
from swarm_node.errors import ConfigError
from swarm_node.node.preflight.machine import card
from swarm_node.policy.memory.footprint import (
    LEAST_LOGITS,
    PROCESSES,
    PROMPT_TOKENS,
    REPLY_TOKENS,
    SHARED_KEYS,
    Footprint,
    TrainingMethod,
    activation_bytes,
    adapter_count,
    bucket_sizes,
    engine_cards,
    footprint,
    graph_sizes,
    group_tokens,
    logit_elements,
    longest_tokens,
    tokens_of_prompt,
)
from swarm_node.policy.memory.plan import (
    DEFAULT_RANK,
    SPARE,
    Job,
    least_plan,
    make_plan,
    unplanned_ways,
)
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.decoder.lora import Adapter
from swarm_node.policy.models.hub import ALIASES
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.shapes import known_shape
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.planning.fit import Machine
from swarm_node.policy.sampling.vllm.engine import EngineChoice
from swarm_node.policy.training.update.optimizer import AdamW

GIB = 1 << 30


def shape(name: str) -> ModelConfig:
    found = known_shape(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "weights"),
    # As the safetensors of the repositories on the hub count them.
    [
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.2-3b", 3_212_749_824),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
    ],
)
def test_known_shapes_have_as_many_weights_as_the_real_models(name: str, weights: int) -> None:
    assert shape(name).weight_count == weights
    assert shape(f"{name}-base") == shape(name.upper()) == shape(ALIASES[name]) == shape(name)


def test_every_short_name_has_a_shape_and_others_do_not() -> None:
    assert all(known_shape(alias) for alias in ALIASES)
    assert known_shape("tiny") is None
    assert known_shape("Qwen/Qwen2.5-0.5") is None


def test_parts_are_those_of_the_real_modules() -> None:
    config = ModelConfig.from_directory(resolve("tiny"))
    model = CausalLM.from_directory(resolve("tiny"))
    parts = footprint(config, TrainingMethod(), device="cpu", rows=8, max_new_tokens=24)
    weights = sum(p.numel() * 4 for p in model.parameters())
    optimizer = AdamW(model.parameters(), (0.9, 0.99), 0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(1e-3)
    held = sum(
        value.numel() * value.element_size()
        for parameter in model.parameters()
        for name, value in [*optimizer.state[parameter].items(), ("gradient", parameter.grad)]
        if name != "step"
    )
    assert parts.trainer_weights == parts.sampler_weights == parts.published == weights
    assert parts.optimizer == held
    adapter = Adapter(model, 8)
    assert adapter_count(config, 8) == sum(p.numel() for p in adapter.parameters.values())


def test_a_card_of_12_gb_trains_a_middling_model_with_lora_and_one_of_80_all_of_it() -> None:
    model = shape("qwen2.5-1.5b")
    small, large = make_plan(model, Job(), 12 * GIB), make_plan(model, Job(), 80 * GIB)
    assert (small.training.lora_rank, small.training.dtype) == (DEFAULT_RANK, "bfloat16")
    assert small.rows == 64
    # All of a batch: eight groups of a prompt and eight answers.
    assert large.training == TrainingMethod(0, False, 8 * (256 + 8 * 24), "bfloat16")
    assert small.total <= 12 * GIB * (1 - SPARE)
    assert (small.sharing, small.sleep_level) == ("split", 0)
    assert {"rank", str(DEFAULT_RANK), "bfloat16,"} <= set(small.describe().split())


def test_an_engine_that_sleeps_makes_room() -> None:
    model, awake = shape("qwen2.5-1.5b"), Job()
    asleep = Job(can_sleep=True)
    card = next(
        size for size in range(4 * GIB, 40 * GIB, GIB // 4) if make_plan(model, asleep, size)
    )
    assert make_plan(model, awake, card) is None
    plan = make_plan(model, asleep, card)
    assert (plan.sharing, plan.sleep_level) == ("sleep", 1)
    assert plan.total < plan.parts.total()
    full = make_plan(model, Job(lora_rank=0, can_sleep=True), 32 * GIB)
    assert (full.sharing, full.sleep_level) == ("sleep", 2)


def test_an_engine_gets_its_part_in_vllms_words() -> None:
    plan = make_plan(shape("qwen2.5-1.5b"), Job(max_new_tokens=512), 10 * GIB)
    arguments = plan.engine.vllm_arguments()
    assert arguments == {
        "max_model_len": 4096 + 512,
        "max_num_seqs": plan.rows,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": plan.parts.kv,
        "gpu_memory_utilization": 0.02,
        "enable_sleep_mode": False,
        "tensor_parallel_size": 1,
    }
    # Keys and values of 28 layers, 2 heads of 128, in bfloat16.
    assert plan.parts.kv == 2 * 28 * 2 * 128 * 2 * max(plan.rows * (256 + 512), 4096 + 512 + 128)
    asleep = make_plan(shape("qwen2.5-1.5b"), Job(lora_rank=0, can_sleep=True), 32 * GIB)
    assert asleep.engine.vllm_arguments()["enable_sleep_mode"] is True


def test_cuda_graphs_take_memory_and_cover_all_rows() -> None:
    assert graph_sizes(4) == bucket_sizes(4) == [4]
    assert graph_sizes(64) == bucket_sizes(64) == [8, 16, 32, 64]
    assert graph_sizes(100) == [8, 16, 32, 64, 96, 100]
    assert bucket_sizes(100) == [8, 16, 32, 64, 100]
    model = shape("qwen2.5-1.5b")

    def reserve(device: Literal["cpu", "cuda"], vllm: bool, way: TrainingMethod) -> int:
        parts = footprint(model, way, device=device, rows=64, max_new_tokens=24, vllm=vllm)
        return parts.reserve

    half = TrainingMethod(32, dtype="bfloat16")
    assert reserve("cpu", False, half) == reserve("cpu", True, half) == PROCESSES
    # Two contexts; four graphs of 28 layers, each with and without adapters.
    assert reserve("cuda", True, half) == (1 << 30) + 4 * 28 * 2 * (1 << 17)
    # Each of two windows, with the logits that it results in.
    for way, width in ((half, 2), (TrainingMethod(32), 4)):
        logits = 2 * (8 + 16 + 32 + 64) * model.vocab_size * width
        assert reserve("cuda", False, way) == (1 << 30) + 4 * 28 * 2 * (1 << 17) + logits


def test_repeated_heads_are_kept_for_each_copy_of_a_shared_key() -> None:
    model, way = shape("qwen2.5-1.5b"), TrainingMethod(32, False, 2048, "bfloat16")
    less, more = (
        activation_bytes(model, replace(way, repeats_heads=repeats), longest_row=0)
        for repeats in (False, True)
    )
    heads = model.query_size - model.key_value_size
    assert more - less == 28 * 2048 * 2 * 2 * SHARED_KEYS * heads
    # The trainer, which does not know of it, makes as many logits at once.
    recomputed = replace(way, checkpointing=True)
    assert logit_elements(model, recomputed, longest_row=0) == logit_elements(
        model, replace(recomputed, repeats_heads=True), longest_row=0
    )


def test_the_plan_knows_which_sampler_has_the_graphs() -> None:
    model, settings = shape("qwen2.5-1.5b"), load_settings({}, environ={})
    machine = card(settings, 12 * GIB)
    built_in, vllm = (
        job_of(settings, machine, EngineChoice(chosen, ""), model) for chosen in (False, True)
    )
    assert (built_in.vllm, vllm.vllm) == (False, True)
    less, more = (least_plan(model, job, 12 * GIB).parts for job in (vllm, built_in))
    assert more.reserve > less.reserve


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_takes_these_arguments() -> None:
    spec = find_spec("vllm")
    assert spec.origin is not None
    # Read, not imported: vLLM changes the process that imports it.
    source = (Path(spec.origin).parent / "engine" / "arg_utils.py").read_text()
    plan = make_plan(shape("qwen2.5-1.5b"), Job(), 12 * GIB)
    accepted = {
        field.target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs"
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    assert plan.engine.vllm_arguments().keys() <= accepted


@pytest.mark.parametrize("tokens", [256, 8192])
@pytest.mark.parametrize(
    "way", [TrainingMethod(32, True, 0, "bfloat16"), TrainingMethod(32), TrainingMethod()]
)
def test_logits_are_held_in_pieces_that_do_not_raise_the_peak(
    way: TrainingMethod, tokens: int
) -> None:
    """A model without a vocabulary has no logits, and all else of adapters."""
    model, way = shape("qwen2.5-0.5b"), replace(way, micro_batch_tokens=tokens)
    most = logit_elements(model, way, longest_row=0)
    assert most >= LEAST_LOGITS
    assert (most > LEAST_LOGITS) == (tokens == 8192)
    if way.lora_rank and tokens == 8192:
        layers = activation_bytes(replace(model, vocab_size=1), way, longest_row=0)
        assert activation_bytes(model, way, longest_row=0) == layers


@pytest.mark.parametrize(("dtype", "cast"), [("bfloat16", 2), ("float32", 0)])
def test_a_larger_vocabulary_takes_room_for_its_embedding_and_none_for_its_logits(
    dtype: Literal["bfloat16", "float32"], cast: int
) -> None:
    """Logits are held in pieces that fit where the layers had their peak."""
    large = replace(shape("qwen2.5-0.5b"), vocab_size=32_768)
    assert large.tie_word_embeddings
    more, less = (
        activation_bytes(each, TrainingMethod(0, dtype=dtype), longest_row=0)
        for each in (large, replace(large, vocab_size=1))
    )
    # Its weights cast for products, and its gradient in float32.
    assert more - less == (cast + 4) * large.hidden_size * (large.vocab_size - 1)


def test_of_a_layer_that_is_recomputed_only_its_input_is_kept() -> None:
    model = shape("qwen2.5-0.5b")

    def of_one_more(way: TrainingMethod) -> int:
        deeper = replace(model, num_hidden_layers=model.num_hidden_layers + 1)
        more, less = (activation_bytes(each, way, longest_row=0) for each in (deeper, model))
        return more - less

    recomputed = TrainingMethod(32, True, 8192)
    assert of_one_more(recomputed) == 8192 * model.hidden_size * 4
    assert of_one_more(replace(recomputed, checkpointing=False)) > 20 * of_one_more(recomputed)


def test_trained_weights_are_cut_into_parts_and_a_frozen_base_is_not() -> None:
    model = shape("qwen2.5-7b")

    def parts(rank: int, processes: int, cards: int = 1) -> Footprint:
        way = TrainingMethod(rank, dtype="bfloat16", processes=processes)
        return footprint(model, way, device="cuda", rows=8, max_new_tokens=24, cards=cards)

    whole, quarter = parts(0, 1), parts(0, 4)
    assert quarter.trainer_weights * 4 == whole.trainer_weights
    assert quarter.optimizer * 4 == whole.optimizer
    # Casts of all weights give way to what is gathered for a while.
    assert quarter.activations < whole.activations
    assert parts(0, 8).total() < quarter.total()
    alone, beside = parts(8, 1), parts(8, 4)
    assert (alone.resident + (256 << 20), alone.activations) == (
        beside.resident,
        beside.activations,
    )
    spread = parts(8, 4, cards=4)
    adapters = 2 * adapter_count(model, 8)  # whole on each card
    parted = 4 * (spread.sampler_weights - adapters) + adapters
    assert (parted, spread.kv * 4) == (beside.sampler_weights, beside.kv)


def test_an_engine_is_spread_where_every_card_gets_as_much() -> None:
    assert [engine_cards(shape("qwen2.5-0.5b"), cards) for cards in (1, 2, 4)] == [1, 2, 2]
    assert [engine_cards(shape("qwen3-8b"), cards) for cards in (3, 4, 8, 64)] == [2, 4, 8, 8]


def test_numbers_of_fewer_bits_take_less() -> None:
    model = shape("qwen2.5-1.5b")

    def parts(training: TrainingMethod) -> Footprint:
        return footprint(model, training, device="cuda", rows=8, max_new_tokens=24)

    wide, half = parts(TrainingMethod()), parts(TrainingMethod(dtype="bfloat16"))
    assert wide.trainer_weights == half.trainer_weights == 4 * model.weight_count
    assert wide.sampler_weights == 2 * half.sampler_weights
    assert half.activations < wide.activations
    small = parts(TrainingMethod(eight_bit=True))
    assert wide.optimizer == 12 * model.weight_count
    # The moments of tables of the vocabulary stay whole.
    tables = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    assert small.optimizer == 6 * (model.weight_count + tables)


def test_a_base_of_four_bits_takes_a_quarter_and_a_matrix_at_work() -> None:
    model = shape("qwen3-4b")

    def parts(nf4: bool, one_base: bool = True) -> Footprint:
        training = TrainingMethod(32, dtype="bfloat16", nf4=nf4)
        return footprint(
            model, training, device="cuda", rows=8, max_new_tokens=24, one_base=one_base
        )

    adapters = 4 * adapter_count(model, 32)
    embedding = 2 * model.vocab_size * model.hidden_size
    whole, four = (parts(nf4).trainer_weights - adapters - embedding for nf4 in (False, True))
    assert whole == pytest.approx(2 * (model.weight_count - embedding // 2))
    assert four / whole == pytest.approx((4 + 32 / 64) / 16, rel=1e-3)
    matrix = 2 * 2 * model.intermediate_size * model.hidden_size
    for part in ("activations", "workspace"):
        assert getattr(parts(True), part) - getattr(parts(False), part) == matrix
    own = parts(True, one_base=False).sampler_weights - parts(True).sampler_weights
    assert own == four + embedding


@pytest.mark.parametrize(
    ("name", "tokens", "gib"),
    [
        ("qwen2.5-1.5b", 1024, 8),
        ("qwen3-4b", 1024, 12),
        ("qwen3-8b", 24, 16),
        ("qwen3-8b", 1024, 24),
    ],
)
def test_four_bits_bring_larger_models_to_a_card(name: str, tokens: int, gib: int) -> None:
    wanted = Job(max_new_tokens=tokens, one_base=True)
    whole = make_plan(shape(name), wanted, gib * GIB)
    four = make_plan(shape(name), replace(wanted, base="nf4"), gib * GIB)
    assert four.training.nf4
    assert four.training.lora_rank == DEFAULT_RANK
    assert "4-bit base" in four.describe()
    # Left open, a whole base goes first, however few answers at once it leaves room for.
    assert make_plan(shape(name), replace(wanted, base="auto"), gib * GIB) == (whole or four)


@pytest.mark.parametrize(
    ("text", "gib"), [("12GB", 12), ("12", 12), (" 8192 MiB", 8), ("80gib", 80), ("1.5g", 1.5)]
)
def test_amounts_of_memory_are_read_as_cards_are_sold(text: str, gib: float) -> None:
    assert parse_vram(text) == gib * GIB


@pytest.mark.parametrize("text", ["", "GB", "-4", "0", "nan", "1e9", "12XB", "9" * 9, "0.1", "٣"])
def test_amounts_that_no_card_has_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--vram takes"):
        parse_vram(text)


def test_a_model_that_is_huge_in_every_way_is_planned_for_without_fainting() -> None:
    most = 1 << 40
    huge = ModelConfig(*(most,) * 4, most // 2, most // 2, max_position_embeddings=most)
    assert make_plan(huge, Job(), 80 * GIB) is None
    assert least_plan(huge, Job(), 80 * GIB).total > 80 * GIB


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "80"})


@pytest.mark.slow(reason="plans with the command")
def test_the_command_says_it_in_json_and_in_a_table() -> None:
    done = run("--model", "qwen2.5-1.5b", "--vram", "12GB", "--json")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    (card,) = answer["cards"]
    assert (answer["schema"], answer["weights"]) == (1, 1_543_714_304)
    assert (card["vram_bytes"], card["fits"], card["rows"]) == (12 * GIB, True, 128)
    assert card["training"]["lora_rank"] == DEFAULT_RANK
    assert card["total_bytes"] < card["vram_bytes"]
    assert card["vllm"]["max_num_seqs"] == 128
    # The built-in sampler shares the base of adapters, and vLLM, where it pads, has its own.
    for engine, sampler in (("torch", "the built-in"), ("vllm", "vLLM")):
        shown = run(
            *("--model", "qwen2.5-7b", "--vram", "6GB", "--set", f"sampling.engine={engine}")
        ).stdout
        assert "(model = qwen2.5-" in " ".join(shown.split())
        assert f"Sampled by {sampler}" in shown


def test_a_dialogue_is_as_long_as_all_its_turns_and_the_replies_between_them() -> None:
    model, answers = shape("qwen2.5-1.5b"), Job(max_new_tokens=512)
    talk = replace(answers, turns=3)
    assert answers.longest == 512
    assert talk.longest == 3 * 512 + 2 * REPLY_TOKENS
    one, three = least_plan(model, answers, 80 * GIB), least_plan(model, talk, 80 * GIB)
    assert three.max_model_len == one.max_model_len + talk.longest - 512
    one, three = make_plan(model, answers, 80 * GIB), make_plan(model, talk, 80 * GIB)
    token = 2 * model.num_hidden_layers * model.key_value_size * 2
    assert three.parts.kv - one.parts.kv == talk.rows * token * (talk.longest - 512)
    assert three.parts.activations >= one.parts.activations
    # The longest dialogue is one row, and never cut.
    long = replace(talk, max_new_tokens=4096, turns=4)
    rows = [least_plan(model, job, 80 * GIB).parts.activations for job in (long, talk)]
    assert rows[0] > 3 * rows[1]
    card = next(gib for gib in range(4, 80) if make_plan(model, answers, gib * GIB))
    wanted = replace(talk, max_new_tokens=8000)
    assert make_plan(model, wanted, card * GIB) is None


def test_plan_counts_the_turns_of_the_environment_that_is_set() -> None:
    def shown(*options: str) -> str:
        done = run("--model", "qwen2.5-0.5b", "--vram", "12GB", *options)
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    assert "24 tokens" in shown()
    games = shown("--set", "environment.name=games")
    assert re.search(r"\b2 turns .*\b512 tokens", games)
    assert run("--vram", "12GB", "--set", "environment.name=gams").exit_code == 1


def planned(settings: Settings, model: ModelConfig) -> list[PlannedCard]:
    machines = [card(settings, size * GIB) for size in CARDS]
    return [PlannedCard(machine, decide(settings, model, machine)) for machine in machines]


@pytest.mark.parametrize("flags", [{}, {"training.lora_rank": 0}])
def test_the_views_say_what_the_plan_says_in_80_columns(flags: dict[str, object]) -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    model = shape("qwen2.5-1.5b")
    cards = planned(load_settings(flags, environ={}), model)
    console.print(cards_view("qwen2.5-1.5b", model, cards))
    lines = [line.split() for line in console.export_text().splitlines()]
    for size, (_, decision) in zip(CARDS, cards, strict=True):
        row = next(line for line in lines if line and line[0] == str(size))
        assert ("small" in row) == (decision.fit is None)
        if decision.fit is not None:
            assert row[-1] == f"{decision.plan.total / GIB:.1f}"
            assert row[-7].rstrip("†") == str(decision.plan.rows)
    for shown in cards:
        console.print(card_view("qwen2.5-1.5b", model, shown))
        text, decision = " ".join(console.export_text().split()), shown.decision
        assert ("Fits" if decision.fit else "not fit") in text
        assert (decision.plan.describe() if decision.fit else decision.advice) in text


def test_the_view_of_many_cards_cuts_nothing_in_40_columns() -> None:
    console = Console(width=40, file=io.StringIO(), record=True)
    model = shape("qwen2.5-1.5b")
    cards = planned(load_settings({}, environ={}), model)
    console.print(cards_view("qwen2.5-1.5b", model, cards))
    text = " ".join(console.export_text().split())
    assert "…" not in text
    for size, (_, decision) in zip(CARDS, cards, strict=True):
        (line,) = re.findall(rf"\b{size} GiB: ((?!Fits).*?peak [\d.]+)", text)
        assert ("too small" in line) == (decision.fit is None)
        if decision.fit is not None:
            assert (
                f" {decision.plan.rows}† concurrent sequences peak {decision.plan.total / GIB:.1f}"
                in line
            )


def test_a_machine_without_a_gpu_is_planned_for_by_its_main_memory() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    model, settings = shape("qwen2.5-0.5b"), load_settings({}, environ={})
    for free, said in ((64 * GIB, "in 68.7 GB"), (GIB, "not fit")):
        machine = Machine(ON_CPU, free, None, None)
        shown = PlannedCard(machine, decide(settings, model, machine))
        console.print(card_view("qwen2.5-0.5b", model, shown))
        assert said in " ".join(console.export_text().split())


def test_the_command_refuses_in_one_line() -> None:
    done = run("--model", "some/model")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "config.json" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("vllm", [False, True])
def test_only_a_cache_that_is_made_once_has_room_for_the_longest_sequence(
    device: Literal["cpu", "cuda"], vllm: bool
) -> None:
    model = shape("qwen2.5-0.5b")
    token = 2 * model.num_hidden_layers * model.key_value_size * 4

    def tokens(rows: int, prompt: int) -> float:
        how = {"rows": rows, "max_new_tokens": 16, "prompt_tokens": prompt, "vllm": vllm}
        return footprint(model, TrainingMethod(16), device=device, **how).kv / token

    once = device == "cuda" or vllm
    assert tokens(32, 40) == (longest_tokens(model, 16) + 128 if once else 32 * 56)
    assert tokens(64, 200) == 64 * 216


def test_a_micro_batch_is_no_larger_than_a_batch() -> None:
    model = shape("qwen2.5-0.5b")
    for job in (
        Job(32, 16, prompt_tokens=40, groups=4),
        Job(64, 128, prompt_tokens=100, groups=8),
        Job(64, 512, 16),
        Job(16, 64, prompt_tokens=500, groups=2, group_size=4, turns=3),
    ):
        ways = [*unplanned_ways(job), *unplanned_ways(job, is_small=True)]
        plans = [make_plan(model, job, gib * GIB) for gib in (8, 24, 80)]
        for way in [*ways, *(plan.training for plan in plans if plan)]:
            assert 0 < way.micro_batch_tokens <= job.batch_tokens
        group = group_tokens(job.prompt_tokens, job.longest, job.group_size)
        assert 0 <= job.batch_tokens - job.groups * group < 128
    # On a CPU a large one gains nothing.
    assert next(unplanned_ways(Job(64, 512))).micro_batch_tokens == 1024
    assert next(unplanned_ways(Job(64, 512), is_small=True)).micro_batch_tokens == 8192


def test_a_prompt_of_unknown_length_is_a_typical_one() -> None:
    assert tokens_of_prompt(0) == PROMPT_TOKENS
    found = [tokens_of_prompt(size) for size in (1, 40, 400, 10**6)]
    assert found == sorted(found)
    assert 20 < found[1] < 100 < 200 < found[2] < 400
    assert found[-1] == longest_tokens(shape("qwen2.5-0.5b"), 16) - 16
