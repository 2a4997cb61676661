from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from builders import completion, dialogue, examples, verified
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.policy.experience.advantage import dr_grpo, grpo
from swarm_node.policy.experience.batch import (
    Batch,
    TrainRow,
    build_batch,
    pack_batch,
    unpack_batch,
)
from swarm_node.rollout import Completion, Finish, Provenance, VerifiedGroup, VersionSpan

EOS = 99


def encode(text: str) -> list[int]:
    return list(text.encode())


def group_of(
    provenance: Provenance, completions: list[Completion], rewards: list[float]
) -> VerifiedGroup:
    return verified(
        provenance=provenance,
        completions=completions,
        rewards=rewards,
        claimed=[0.5] * len(rewards),
        prompt="ab",
    )


def row(prompt: int = 2, length: int = 3, advantage: float = 1.0) -> TrainRow:
    return TrainRow(
        np.arange(prompt, dtype=np.uint32),
        np.arange(length, dtype=np.uint32),
        np.full(length, -0.5, np.float32),
        advantage,
        Provenance.LOCAL,
    )


def test_own_rows_keep_tokens_and_sampler_logprobs() -> None:
    parts = [completion([5, 6], "x"), completion([7], "y")]
    batch = build_batch([group_of(Provenance.LOCAL, parts, [1.0, 0.0])], encode, encode, EOS)
    assert [r.prompt_ids.tolist() for r in batch.rows] == [[97, 98]] * 2
    assert [r.completion_ids.tolist() for r in batch.rows] == [[5, 6], [7]]
    assert batch.rows[0].logprobs.tolist() == [-1.0, -2.0]
    assert [r.advantage for r in batch.rows] == grpo([1.0, 0.0]).tolist()


@pytest.mark.parametrize("provenance", [Provenance.SAME_MODEL, Provenance.CROSS_MODEL])
def test_of_others_only_what_was_good_is_trained_on(provenance: Provenance) -> None:
    completions = [completion([5], "x"), completion([6], "y"), completion([7], "z")]
    batch = build_batch([group_of(provenance, completions, [1.0, 0.0, 0.5])], encode, encode, EOS)
    assert [row.advantage > 0 for row in batch.rows] == [True, False]
    assert all(row.advantage >= 0 and row.logprobs is None for row in batch.rows)
    own = build_batch(
        [group_of(Provenance.LOCAL, completions, [1.0, 0.0, 0.5])], encode, encode, EOS
    )
    assert [row.advantage < 0 for row in own.rows] == [False, True, False]


def test_kin_rows_use_claimed_logprobs_only_when_told_to() -> None:
    one = group_of(Provenance.SAME_MODEL, [completion([5], "x"), completion([6], "y")], [1.0, 0.0])
    own = build_batch([one], encode, encode, EOS, correction="none")
    sampler = build_batch([one], encode, encode, EOS, correction="importance_sampling")
    assert [r.logprobs for r in own.rows] == [None, None]
    assert all(r.logprobs is not None and r.logprobs.tolist() == [-1.0] for r in sampler.rows)


def test_own_rows_know_which_version_sampled_each_token() -> None:
    spans = (VersionSpan(3, 0, 2), VersionSpan(5, 2, 3))
    resumed = replace(completion([5, 6, 7], "x"), spans=spans)
    parts = [resumed, completion([8], "y")]
    own = build_batch([group_of(Provenance.LOCAL, parts, [1.0, 0.0])], encode, encode, EOS)
    assert own.rows[0].versions.tolist() == [3, 3, 5]
    # A peer counts its own updates.
    kin = group_of(Provenance.SAME_MODEL, parts, [1.0, 0.0])
    assert all(
        row.versions is None
        for row in build_batch([kin], encode, encode, EOS, correction="importance_sampling").rows
    )


def test_rows_know_their_group_and_advantages_go_by_name() -> None:
    parts = [completion([5], "x"), completion([6], "y"), completion([7], "z")]
    rewards = [1.0, 0.0, 0.0]
    groups = [group_of(Provenance.LOCAL, parts, rewards) for _ in range(2)]
    batch = build_batch(groups, encode, encode, EOS, advantage="dr_grpo")
    assert [row.group for row in batch.rows] == [0, 0, 0, 1, 1, 1]
    assert [row.advantage for row in batch.rows] == 2 * dr_grpo(rewards).tolist()


def test_foreign_rows_are_retokenised() -> None:
    parts = [completion([5], "hi"), completion([6], "ho", Finish.LENGTH)]
    one = group_of(Provenance.CROSS_MODEL, parts, [1.0, 0.0])
    batch = build_batch([one], encode, encode, EOS, correction="importance_sampling")
    assert [r.completion_ids.tolist() for r in batch.rows] == [[104, 105, EOS], [104, 111]]
    # Log-probs and versions of other tokens mean nothing here.
    assert [(r.logprobs, r.versions) for r in batch.rows] == [(None, None)] * 2


def test_an_empty_answer_counts_in_its_group_but_is_no_row() -> None:
    parts = [completion([5], "", Finish.LENGTH), completion([6], "ho")]
    batch = build_batch([group_of(Provenance.CROSS_MODEL, parts, [0.0, 1.0])], encode, encode, EOS)
    assert [r.advantage for r in batch.rows] == [grpo([0.0, 1.0]).tolist()[1]]


@pytest.mark.parametrize("provenance", Provenance)
def test_claimed_rewards_do_not_reach_the_batch(provenance: Provenance) -> None:
    one = group_of(provenance, [completion([5], "x"), completion([6], "y")], [1.0, 0.0])
    liar = replace(one, group=replace(one.group, claimed=(0.0, 1e9)))
    judged_otherwise = replace(one, rewards=(1.0, 0.5))
    honest, lied, other = (
        pack_batch(build_batch([each], encode, encode, EOS))
        for each in (one, liar, judged_otherwise)
    )
    assert honest == lied != other


NOT_FINITE = float("nan"), float("inf"), float("-inf")


@pytest.mark.parametrize(
    "change",
    [
        *({"advantage": bad} for bad in (*NOT_FINITE, 1e39)),
        *({"logprobs": np.array([-1.0, bad, -1.0], np.float32)} for bad in NOT_FINITE),
        {"prompt_ids": np.zeros(0, np.uint32)},
        {"completion_ids": np.zeros(0, np.uint32), "logprobs": None},
        {"completion_ids": np.zeros(3, np.int64)},
        {"prompt_ids": np.zeros((1, 2), np.uint32)},
        {"logprobs": np.zeros(2, np.float32)},
        {"logprobs": np.zeros(3, np.float64)},
        {"versions": np.zeros(2, np.int64)},
        {"versions": np.zeros(3, np.float64)},
        {"observations": ((0, (7,)),)},
        {"observations": ((3, (7,)),)},
        {"observations": ((2, (7,)), (2, (7,)))},
        {"observations": ((1, (-1,)),)},
        {"observations": ((1, (1 << 32,)),)},
    ],
)
def test_a_row_of_other_values_shapes_or_types_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"({next(iter(change))}|between turns).* must"):
        replace(row(), **change)


@examples(50)
@given(
    shapes=st.lists(
        st.tuples(
            st.integers(1, 20),
            st.integers(1, 30),
            st.floats(-9, 9, width=32),
            st.booleans(),
            st.sampled_from(Provenance),
        ),
        max_size=6,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_packing_keeps_every_bit(shapes: list[Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = Batch(
        tuple(
            TrainRow(
                rng.integers(0, 2**32, p, dtype=np.uint32),
                rng.integers(0, 2**32, t, dtype=np.uint32),
                rng.standard_normal(t, dtype=np.float32) if known else None,
                advantage,
                provenance,
                rng.integers(0, 2**62, t, dtype=np.int64) if known else None,
                p,
                ((t // 2, (0, 2**32 - 1)), (t - 1, (7,))) if t > 3 else (),
            )
            for p, t, advantage, known, provenance in shapes
        )
    )
    copy = unpack_batch(msgpack.unpackb(msgpack.packb(pack_batch(batch))))
    assert len(copy.rows) == len(batch.rows)
    for mine, its in zip(batch.rows, copy.rows, strict=True):
        assert mine.prompt_ids.tobytes() == its.prompt_ids.tobytes()
        assert mine.completion_ids.tobytes() == its.completion_ids.tobytes()
        assert (mine.logprobs is None) == (its.logprobs is None)
        if mine.logprobs is not None and its.logprobs is not None:
            assert mine.logprobs.tobytes() == its.logprobs.tobytes()
        assert (mine.versions is None) == (its.versions is None)
        if mine.versions is not None and its.versions is not None:
            assert mine.versions.tolist() == its.versions.tolist()
        assert (mine.advantage, mine.provenance) == (its.advantage, its.provenance)
        assert (mine.group, mine.observations) == (its.group, its.observations)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": b"abc"}, "array must be bytes, a multiple of 4"),
        ({"prompt": b""}, "prompt_ids must be a non-empty"),
        ({"completion": "text"}, "array must be bytes, a multiple of 4"),
        ({"completion": b""}, "completion_ids must be a non-empty"),
        ({"completion": b"\0" * 8}, "logprobs must have one value"),
        ({"logprobs": b"\0" * 8}, "logprobs must have one value"),
        ({"logprobs": np.full(3, np.nan, "<f4").tobytes()}, "logprobs must be finite"),
        ({"advantage": None}, "packed advantage must be a float"),
        ({"advantage": float("nan")}, "advantage must be finite"),
        ({"advantage": 1e39}, "advantage must be finite"),
        ({"provenance": "stranger"}, "'stranger' is not a valid Provenance"),
        ({"versions": b"\0" * 12}, "array must be bytes, a multiple of 8"),
        ({"versions": b"\0" * 16}, "versions must have one int64 value"),
        ({"group": None}, "packed group an integer"),
        ({"between": {}}, "between turns must be a list"),
        ({"between": [[1]]}, "pairs of a place and ids"),
        ({"between": [["1", b""]]}, "pairs of a place and ids"),
        ({"between": [[1, b"abc"]]}, "array must be bytes, a multiple of 4"),
        ({"between": [[3, b""]]}, "must stand between sampled tokens"),
        ({"more": 1}, "packed row holds exactly"),
    ],
)
def test_a_malformed_packed_row_is_refused(change: dict[str, Any], message: str) -> None:
    packed = pack_batch(Batch((row(),)))
    packed["rows"][0].update(change)
    with pytest.raises(ValueError, match=message):
        unpack_batch(packed)


@pytest.mark.parametrize("packed", [{}, {"rows": {}}, {"rows": [1]}, {"rows": [], "more": 1}])
def test_a_malformed_packed_batch_is_refused(packed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="packed"):
        unpack_batch(packed)


def test_an_advantage_in_a_peers_group_is_at_most_what_an_own_group_can_give() -> None:
    rewards = [1.0] + [0.0] * 63
    for provenance, most in ((Provenance.SAME_MODEL, 7**0.5 / 8), (Provenance.LOCAL, 63**0.5)):
        group = group_of(provenance, [completion([1])] * 64, rewards)
        rows = build_batch([group], encode, encode, EOS, "own", group_size=8).rows
        assert max(row.advantage for row in rows) == pytest.approx(most, abs=0.01)


@pytest.mark.parametrize(("count", "weight"), [(4, 4.0), (8, 8.0), (32, 8.0)])
def test_a_peers_group_weighs_no_more_than_an_own_one_however_many_its_answers(
    count: int, weight: float
) -> None:
    rewards = [1.0, 0.0] * (count // 2)
    group = group_of(Provenance.SAME_MODEL, [completion([1])] * count, rewards)
    rows = build_batch([group], encode, encode, EOS, "own", group_size=8).rows
    assert sum(abs(row.advantage) for row in rows) == pytest.approx(weight, rel=0.01)


def bridge(reply: str) -> list[int]:
    return [1, *encode(reply), 2]


TALK = dialogue([("hi", [7, 8, EOS]), ("", [EOS]), ("ho", [9])], Finish.LENGTH)


@pytest.mark.parametrize(
    ("provenance", "sampled"),
    [
        (Provenance.LOCAL, [7, 8, EOS, EOS, 9]),
        (Provenance.SAME_MODEL, [7, 8, EOS, EOS, 9]),
        (Provenance.CROSS_MODEL, [*encode("hi"), EOS, EOS, *encode("ho")]),
    ],
)
def test_a_row_of_a_dialogue_has_what_was_sampled_and_replies_of_ones_own_making(
    provenance: Provenance, sampled: list[int]
) -> None:
    group = verified(
        provenance=provenance,
        completions=[TALK, completion([5], "x")],
        rewards=[1.0, 0.0],
        observations=[["no", "yes"], []],
    )
    rows = build_batch([group], encode, encode, EOS, "own", bridge=bridge).rows
    assert rows[0].completion_ids.tolist() == sampled
    assert rows[0].observations == ((3, (1, *encode("no"), 2)), (4, (1, *encode("yes"), 2)))
    assert rows[1].observations == ()
    assert len(rows[0]) == 1 + len(sampled) + len("noyes") + 4
    whole, at = rows[0].ids_after_prompt()
    assert whole[at].tolist() == sampled
    assert whole.tolist() == [
        *(*sampled[:3], 1, *encode("no"), 2),
        *(*sampled[3:4], 1, *encode("yes"), 2),
        *sampled[4:],
    ]


def test_a_foreign_last_turn_without_tokens_leaves_out_the_reply_before_it() -> None:
    """A peer chooses such a turn freely, and no group of a peer may end a node."""
    cut = dialogue([("hi", [7, EOS]), ("", [9])], Finish.LENGTH)
    group = verified(
        provenance=Provenance.CROSS_MODEL,
        completions=[cut, completion([5], "x")],
        rewards=[1.0, 0.0],
        observations=[["no"], []],
    )
    row = build_batch([group], encode, encode, EOS, "own", bridge=bridge).rows[0]
    assert row.completion_ids.tolist() == [*encode("hi"), EOS]
    assert row.observations == ()


@pytest.mark.parametrize("observations", [(), [["no"], []], [["no", "yes", "more"], []]])
def test_a_dialogue_without_a_reply_between_every_two_turns_is_no_row(
    observations: list[list[str]],
) -> None:
    group = verified(completions=[TALK, completion([5], "x")], observations=observations)
    with pytest.raises(ValueError, match="zip"):
        build_batch([group], encode, encode, EOS, bridge=bridge)


def test_a_dialogue_needs_a_bridge() -> None:
    group = verified(completions=[TALK, completion([5], "x")], observations=[["no", "yes"], []])
    with pytest.raises(ValueError, match="needs a bridge"):
        build_batch([group], encode, encode, EOS)
