"""Groups of version 2: what comes back, and what nobody can pack or read."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import msgpack
import numpy as np
import pytest
from builders import completion, dialogue, examples, verified
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.errors import Rejected
from swarm_node.p2p.limits.gates import longest_turn
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.dialogues import (
    DialogueAnnouncement,
    pack_dialogues,
    unpack_announcement,
    unpack_dialogues,
)
from swarm_node.p2p.wire.envelope import SEALED_BYTES, Kind, beginning, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.rollout import Completion, Finish, RolloutGroup, VersionSpan

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


TURN = st.tuples(st.text(max_size=9), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5))
DIALOGUE = st.builds(
    lambda turns, finish: spanned(dialogue(turns, finish)),
    st.lists(TURN, min_size=1, max_size=16),
    st.sampled_from(Finish),
)


@examples(100)
@given(st.lists(DIALOGUE, min_size=1, max_size=5))
def test_dialogues_come_back_as_they_were(said: list[Completion]) -> None:
    sent = group(*said)
    result = unpack_dialogues(pack_dialogues(sent, **PLACE))
    assert not isinstance(result, Rejected)
    header, got = result
    assert header == wire.GroupHeader(**PLACE)
    assert (got.task, got.policy, got.claimed) == (sent.task, sent.policy, sent.claimed)
    for back, one in zip(got.completions, sent.completions, strict=True):
        assert (back.said, back.ends, back.finish, back.spans) == (
            one.said,
            one.ends,
            one.finish,
            one.spans,
        )
        np.testing.assert_array_equal(back.token_ids, one.token_ids)
        np.testing.assert_array_equal(back.logprobs, one.logprobs)


@examples(200)
@given(st.binary(max_size=99))
def test_malformed_bytes_are_a_value_not_an_exception(data: bytes) -> None:
    refused = unpack_dialogues(data)
    assert refused.reason == "schema"


def test_no_group_of_one_version_is_read_as_another() -> None:
    single = group(completion([5, END]))
    first = wire.pack_group(single, **PLACE)
    second = pack_dialogues(single, **PLACE)
    for refused in (unpack_dialogues(first), wire.unpack_group(second)):
        assert refused.reason == "schema"


def test_a_node_cannot_pack_what_its_peers_would_refuse() -> None:
    across = dialogue([("a", [1, END]), ("b", [3, END])])
    across = replace(across, spans=(VersionSpan(0, 0, 3), VersionSpan(1, 3, 4)))
    with pytest.raises(ValueError, match="version span"):
        pack_dialogues(group(across), **PLACE)
    long = spanned(dialogue([("a" * 65537, [END])]))
    with pytest.raises(wire.OversizeGroupError, match="65537 bytes"):
        pack_dialogues(group(long), **PLACE)
    largest = spanned(dialogue([("a" * 65536, [1, END])] * 16))
    with pytest.raises(wire.OversizeGroupError, match="the limits"):
        pack_dialogues(group(*[largest] * 4), **PLACE)


@pytest.mark.parametrize(("completions", "turns"), [(4, 2), (8, 16), (64, 1), (64, 16)])
def test_turns_of_planned_length_make_a_group_that_peers_take(completions: int, turns: int) -> None:
    """With five bytes of text a token, and one version span a turn."""
    longest = longest_turn(completions, turns)
    assert longest > 100
    said = spanned(dialogue([("words" * longest, [1] * longest)] * turns))
    pack = pack_dialogues if turns > 1 else wire.pack_group
    assert len(pack(group(*[said] * completions), **PLACE)) <= wire.MAX_GROUP_BYTES
    longer = spanned(dialogue([("words" * (longest + 9), [1] * (longest + 9))] * turns))
    with pytest.raises(ValueError, match="outside"):
        pack(group(*[longer] * completions), **PLACE)


def test_the_fields_are_those_of_version_1_and_no_reply_is_among_them() -> None:
    said = spanned(dialogue([("13", [7, END]), ("14", [8, 9, END])]))
    fields = msgpack.unpackb(pack_dialogues(group(said), **PLACE))
    assert fields[:4] == [2, 9, 3, 17]
    assert fields[8] == []
    ((turns, spans),) = fields[6]
    assert [(text, finish) for text, _, _, finish in turns] == [("13", "stop"), ("14", "stop")]
    assert turns[1][1] == np.array([8, 9, END], "<u4").tobytes()
    assert spans == [[0, 0, 2], [1, 2, 5]]
    first = msgpack.unpackb(wire.pack_group(group(completion([5, END])), **PLACE))
    assert [type(value) for value in fields[:8]] == [type(value) for value in first]


def announcement(**changes: object) -> DialogueAnnouncement:
    label, most = "x" * 64, (1 << 62) - 1
    values = {
        **{"v": 2, "epoch": most, "seq": most, "id": b"i" * 34, "size": 4 << 20},
        **{"environment": label, "version": label, "family": label, "model": b"m" * 32},
        **{"tokenizer": b"t" * 32, "policy_version": most, "completions": 64},
        **{"mixed": True, "turns": 16},
    }
    return DialogueAnnouncement(**{**values, **changes})


def test_an_announcement_says_how_many_turns_there_may_be() -> None:
    longest = announcement()
    assert unpack_announcement(Kind.RECORD_2, wire.pack(longest)) == longest
    sealed = seal(Identity.from_seed(bytes(32)), bytes(32), Kind.RECORD_2, wire.pack(longest))
    assert len(sealed) <= SEALED_BYTES[Kind.RECORD_2]
    for turns in (1, 17):
        with pytest.raises(ValueError, match="its bounds"):
            wire.pack(announcement(turns=turns))
    refused = unpack_announcement(Kind.RECORD, wire.pack(longest))
    assert isinstance(refused, Rejected)


@pytest.mark.parametrize("kind", Kind)
def test_the_first_bytes_of_an_envelope_tell_its_kind_from_all_others(kind: Kind) -> None:
    sealed = seal(Identity.from_seed(bytes(32)), bytes(32), kind, b"body")
    assert [other for other in Kind if sealed.startswith(beginning(other))] == [kind]
