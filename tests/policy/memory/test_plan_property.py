"""Plans: never more than there is, never worse with more memory, never better for a larger job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import examples
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.policy.memory.footprint import TrainingMethod, footprint
from swarm_node.policy.memory.plan import SPARE, Job, Plan, least_plan, make_plan
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.families import FAMILIES

GIB = 1 << 30
shapes = st.builds(
    lambda kind, vocabulary, heads, groups, head, wide, layers, tied: ModelConfig(
        vocabulary,
        heads * groups * head,
        wide,
        layers,
        heads * groups,
        heads,
        tie_word_embeddings=tied,
        model_type=kind,
        head_dim=head,
    ),
    st.sampled_from([*FAMILIES]),
    st.integers(64, 300_000),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([16, 64, 128]),
    st.integers(64, 30_000),
    st.integers(1, 80),
    st.booleans(),
)
jobs = st.builds(
    Job,
    rows=st.integers(1, 256),
    max_new_tokens=st.integers(1, 32_768),
    lora_rank=st.none() | st.integers(0, 1024),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    eight_bit=st.booleans(),
    can_sleep=st.booleans(),
    one_base=st.booleans(),
    base=st.sampled_from(["auto", "whole", "nf4"]),
    vllm=st.booleans(),
    repeats_heads=st.booleans(),
).filter(lambda job: job.base != "nf4" or job.lora_rank != 0)
cards = st.integers(GIB // 2, 200 * GIB)


def ranking(plan: Plan, whole: int = 1 << 30) -> tuple[object, ...]:
    """Larger is worse, in the order that the module states. A micro-batch of more tokens than the
    `whole` batch of an update is no better than that."""
    training = plan.training
    return (
        training.lora_rank > 0,
        training.nf4,
        plan.sharing == "sleep",
        -plan.rows,
        training.checkpointing,
        -min(training.micro_batch_tokens, whole),
    )


@examples(150)
@given(shapes, jobs, cards)
def test_a_plan_fits_and_keeps_to_what_was_asked(model: ModelConfig, job: Job, vram: int) -> None:
    plan = make_plan(model, job, vram)
    if plan is None:
        assert least_plan(model, job, vram).total > vram * (1 - SPARE)
        return
    assert 0 < plan.total <= vram * (1 - SPARE)
    assert 1 <= plan.rows <= job.rows
    engine = plan.engine
    assert engine.kv_bytes < vram
    assert engine.max_rows == plan.rows
    assert 0 < engine.max_model_len <= model.max_position_embeddings
    assert job.can_sleep or plan.sharing == "split"
    if job.lora_rank is not None:
        assert plan.training.lora_rank == job.lora_rank


@examples(150)
@given(shapes, jobs, cards, cards)
def test_more_memory_is_never_worse(model: ModelConfig, job: Job, a: int, b: int) -> None:
    small, large = (make_plan(model, job, vram) for vram in sorted((a, b)))
    if small is not None:
        assert large is not None
        assert ranking(large) <= ranking(small)


@pytest.mark.slow(reason="draws many plans")
@examples(150)
@given(shapes, jobs, cards, st.data())
def test_a_larger_model_or_context_takes_more_and_is_never_planned_better(
    model: ModelConfig, job: Job, vram: int, data: st.DataObject
) -> None:
    field = data.draw(
        st.sampled_from(["vocab_size", "intermediate_size", "num_hidden_layers", "answers"])
    )
    more = data.draw(st.integers(1, 10_000))
    other, task = model, job
    if field == "answers":
        task = replace(job, max_new_tokens=job.max_new_tokens + more)
    else:
        other = replace(model, **{field: getattr(model, field) + more})
    training = TrainingMethod(job.lora_rank or 0, data.draw(st.booleans()))
    before, after = (
        footprint(m, training, device="cuda", rows=j.rows, max_new_tokens=j.max_new_tokens)
        for m, j in ((model, job), (other, task))
    )
    for part in ("weights", "optimizer", "kv", "activations", "workspace"):
        assert getattr(after, part) >= getattr(before, part)
    assert after.total() >= before.total()
    smaller, larger = make_plan(model, job, vram), make_plan(other, task, vram)
    if larger is not None:
        assert smaller is not None
        assert ranking(smaller) <= ranking(larger, job.batch_tokens)


@examples(100)
@given(shapes, st.integers(1, 64), st.integers(1, 4096), st.integers(1, 16_384))
def test_every_economy_saves(model: ModelConfig, rows: int, new: int, tokens: int) -> None:
    def total(training: TrainingMethod, more_rows: int = 0) -> int:
        parts = footprint(model, training, device="cuda", rows=rows + more_rows, max_new_tokens=new)
        return parts.total()

    plain = TrainingMethod(micro_batch_tokens=tokens)
    # Where the gradient of the embedding is the most there is, nothing else matters.
    assert model.num_hidden_layers < 2 or total(replace(plain, checkpointing=True)) <= total(plain)
    assert total(replace(plain, micro_batch_tokens=tokens * 2)) >= total(plain)
    assert total(plain) < total(plain, more_rows=1) or model.max_position_embeddings < new
    assert footprint(
        model, plain, device="cuda", rows=rows, max_new_tokens=new
    ).total() > footprint(model, plain, device="cuda", rows=rows, max_new_tokens=new).total(
        is_asleep=True
    )
