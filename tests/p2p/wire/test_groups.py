"""Groups of answers and of dialogues: what nobody can pack or read. What comes back is in
test_envelope_property.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import msgpack
import numpy as np
import pytest
from builders import completion, dialogue, verified

from swarm_node.errors import Rejected
from swarm_node.p2p.limits.gates import longest_turn
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.groups import (
    MAX_GROUP_BYTES,
    MAX_TOKENS,
    OversizeGroupError,
    pack_group,
    unpack_group,
)
from swarm_node.p2p.wire.identity import Identity
from swarm_node.rollout import SEED_LIMIT, Completion, RolloutGroup, TaskRef, VersionSpan

PLACE = {"epoch": 9, "seq": 3, "created_ms": 17}
END = 2


def spanned(said: Completion) -> Completion:
    """With a span for each turn, as the node samples them."""
    ends = (0, *said.ends)
    return replace(
        said,
        spans=tuple(VersionSpan(at, begin, end) for at, (begin, end) in enumerate(pairwise(ends))),
    )


def group(*completions: Completion) -> RolloutGroup:
    return verified(rewards=[0.0] * len(completions), completions=completions).group


def fields() -> list[object]:
    """A valid group body as plain MessagePack values, for tests to damage."""
    said = [completion([7, 8, END], versions=[4, 5, 5]), completion([7, 8, 9, END])]
    unpacked = msgpack.unpackb(pack_group(group(*said), **PLACE))
    assert isinstance(unpacked, list)
    return unpacked


def refusal(values: object) -> Rejected:
    result = unpack_group(msgpack.packb(values))
    assert isinstance(result, Rejected)
    return result


def f32(*values: float) -> bytes:
    return np.asarray(values, dtype="<f4").tobytes()


@pytest.mark.parametrize("field", [1, 2])
@pytest.mark.parametrize("value", [b"", bytes(4 * MAX_TOKENS + 4)], ids=["none", "too many"])
def test_each_field_of_a_turn_has_bounds_of_its_own(field: int, value: bytes) -> None:
    """In the vectors two of them are out of bounds together."""
    values = fields()
    values[6][0][0][0][field] = value  # type: ignore[index]
    assert refusal(values).reason == "schema"


@pytest.mark.parametrize("span", [[1, -1, 1], [1, MAX_TOKENS + 1, 1], [1, 0, -1]])
def test_each_field_of_a_span_has_bounds_of_its_own(span: list[int]) -> None:
    values = fields()
    values[6][0][1] = [span]  # type: ignore[index]
    assert refusal(values).reason == "schema"


def test_a_log_prob_that_rounded_above_zero_is_kept_as_it_is() -> None:
    values = fields()
    values[6][0][0][0][2] = f32(0, 3e-6, -1)  # type: ignore[index]
    result = unpack_group(msgpack.packb(values))
    assert not isinstance(result, Rejected)
    assert result[1].completions[0].logprobs[1] == np.float32(3e-6)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\x98\x01" + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x98\x01\x01\x01\x01\x94\xa2\xff\xfe",
        b"\x98\x01\x01\x01\x01\x94\xdb\xff\xff\xff\xff",
    ],
)
def test_malformed_bytes_are_a_value_not_an_exception(data: bytes) -> None:
    result = unpack_group(data)
    assert result.reason == "schema"


def test_a_refusal_never_repeats_control_characters() -> None:
    values = fields()
    values[6][0][0][0][3] = "\x1b[31m\u202e"  # type: ignore[index]
    detail = refusal(values).detail
    assert detail.isascii()
    assert detail.isprintable()
    assert len(wire.printable("a" * 1000)) == 160


def test_the_largest_group_fits_a_sealed_envelope() -> None:
    identity = Identity.from_seed(bytes(32))
    sealed = seal(identity, bytes(32), Kind.ROLLOUT, bytes(MAX_GROUP_BYTES))
    assert len(sealed) <= wire.MAX_SEALED_BYTES


ANSWER = completion([7, END])
ACROSS = replace(
    dialogue([("a", [1, END]), ("b", [3, END])]), spans=(VersionSpan(0, 0, 3), VersionSpan(1, 3, 4))
)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (replace(group(ANSWER), task=TaskRef("e", "1", "f", SEED_LIMIT)), "its bounds"),
        (replace(group(ANSWER), task=TaskRef("<script>", "1", "f", 1)), "its bounds"),
        (group(*[ANSWER] * 65), "its bounds"),
        (group(completion([7], "\ud800")), "encoded"),
        (replace(group(ANSWER), claimed=(float("nan"),)), "claimed reward"),
        (group(ACROSS), "version span"),
    ],
)
def test_a_node_cannot_pack_what_its_peers_would_refuse(bad: RolloutGroup, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        pack_group(bad, **PLACE)


def test_a_group_or_a_turn_that_is_too_large_cannot_be_packed() -> None:
    long = spanned(dialogue([("a" * 65537, [END])]))
    with pytest.raises(OversizeGroupError, match="65537 bytes"):
        pack_group(group(long), **PLACE)
    largest = spanned(dialogue([("a" * 65536, [1, END])] * 16))
    many = completion(range(20_000), versions=[0] * 20_000)
    for large in ([largest] * 4, [replace(many, spans=(VersionSpan(0, 0, 20_000),))] * 30):
        with pytest.raises(OversizeGroupError, match="the limits"):
            pack_group(group(*large), **PLACE)


@pytest.mark.slow(reason="packs the largest groups")
@pytest.mark.parametrize(("completions", "turns"), [(4, 2), (8, 16), (64, 1), (64, 16)])
def test_turns_of_planned_length_make_a_group_that_peers_take(completions: int, turns: int) -> None:
    """With five bytes of text a token, and one version span a turn."""
    longest = longest_turn(completions, turns)
    assert longest > 100
    said = spanned(dialogue([("words" * longest, [1] * longest)] * turns))
    assert len(pack_group(group(*[said] * completions), **PLACE)) <= MAX_GROUP_BYTES
    longer = spanned(dialogue([("words" * (longest + 9), [1] * (longest + 9))] * turns))
    with pytest.raises(ValueError, match="outside"):
        pack_group(group(*[longer] * completions), **PLACE)
