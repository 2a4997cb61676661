"""Short campaigns of `fuzz.py` and `bits.py`, and that the fuzzer finds what it looks for."""

from __future__ import annotations

import time

import msgpack
import pytest
from builders import examples
from campaigns import bits, fuzz
from campaigns.mutator import Mutator
from campaigns.targets import CARRIED, FuzzTarget, targets
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.p2p.wire.envelope import Kind

TARGETS = {target.name: target for target in targets()}
SEED = msgpack.packb([1, b"x" * 40, "text"])


@pytest.mark.slow(reason="reads thousands of altered inputs")
@pytest.mark.parametrize(
    "inputs", [6_000, pytest.param(60_000, marks=pytest.mark.nightly(reason="a campaign"))]
)
def test_no_altered_input_is_accepted_raises_or_costs_much(inputs: int) -> None:
    scores = dict(fuzz.run(inputs, seed=2))
    assert {name: dict(score.defects) for name, score in scores.items() if score.defects} == {}
    assert scores.keys() == TARGETS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_accepts_what_it_starts_from(name: str) -> None:
    target = TARGETS[name]
    assert target.run(target.wrap(target.seeds[0]))


def test_every_kind_of_envelope_is_signed_anew() -> None:
    assert CARRIED.keys() == set(Kind)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=70)
    | st.binary(max_size=70),
    lambda inner: st.lists(inner, max_size=14) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=30,
)


@pytest.mark.slow(reason="a slice of a campaign")
@examples(200)
@given(st.sampled_from([target for target in targets() if target.structured]), values)
def test_no_structure_raises(target: FuzzTarget, value: object) -> None:
    target.run(target.wrap(msgpack.packb(value)))


def _raises(data: bytes) -> bool:
    if len(data) < len(SEED) - 10:
        raise KeyError("short")
    return False


def _sleeps(data: bytes) -> bool:
    ends = time.thread_time() + (0.06 if data[:1] != SEED[:1] else 0)
    while time.thread_time() < ends:
        pass
    return False


def _hoards(data: bytes) -> bool:
    return not bytearray(40 << 20 if data != SEED else 1)


@pytest.mark.nightly(reason="tests the fuzzer itself")
@pytest.mark.parametrize(
    ("run", "what"),
    [
        (_raises, "KeyError: 'short'"),
        (_sleeps, "slow"),
        (_hoards, "memory"),
        (lambda data: True, "an altered statement is accepted"),
    ],
)
def test_the_fuzzer_finds_a_defect(run, what: str) -> None:
    target = FuzzTarget("planted", [SEED], run, structured=True, signed=True)
    score = fuzz.fuzz(target, 30, seed=1)
    assert what in score.defects
    assert score.examples[what] != SEED


def test_the_same_seed_makes_the_same_inputs() -> None:
    made = [[Mutator(5).structure(SEED), Mutator(5).bytes(SEED, SEED)] for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.slow(reason="verifies thousands of signatures")
@pytest.mark.parametrize(
    "stride", [31, pytest.param(3, marks=pytest.mark.nightly(reason="a campaign"))]
)
def test_no_single_bit_of_a_vector_can_change(stride: int) -> None:
    statements, mutants, broken = bits.run(step=20_011, stride=stride)
    assert broken == []
    assert statements >= 50
    assert mutants > 75_000 / stride


def test_every_bit_is_flipped_once() -> None:
    assert list(bits.flips(b"\x00\x80")) == [bytes([1 << bit, 0x80]) for bit in range(8)] + [
        bytes([0, 0x80 ^ 1 << bit]) for bit in range(8)
    ]
