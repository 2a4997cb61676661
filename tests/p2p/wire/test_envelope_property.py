"""Envelopes and bodies under arbitrary input: round trips hold, nothing damaged is let in."""

import math

import msgpack
import numpy as np
import pytest
from builders import examples
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.errors import Rejected
from swarm_node.p2p.wire.envelope import Kind, Opened, content_id, open_sealed, seal
from swarm_node.p2p.wire.groups import GroupHeader, pack_group, unpack_group
from swarm_node.p2p.wire.identity import Identity
from swarm_node.rollout import (
    SEED_LIMIT,
    Completion,
    EarlierTurn,
    Finish,
    PolicyRef,
    RolloutGroup,
    TaskRef,
    VersionSpan,
)

AUTHOR = Identity.from_seed(b"a" * 32)
SWARM = b"w" * 32
GOLDEN = seal(AUTHOR, SWARM, Kind.RECORD, b"what was said")

counters = st.integers(0, (1 << 62) - 1)
labels = st.text("abcXYZ019 _.:+@=,-", min_size=1, max_size=64)
digests = st.binary(min_size=32, max_size=32)
f32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    length = draw(st.integers(1, 40))
    cuts = sorted(draw(st.sets(st.integers(1, length - 1), max_size=5))) if length > 1 else []
    ends = [*cuts, length]
    logprobs = st.lists(
        st.floats(-(2.0**100), 0, width=32, allow_nan=False), min_size=length, max_size=length
    )
    ids = st.lists(st.integers(0, 2**32 - 1), min_size=length, max_size=length)
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
    turns = draw(st.sets(st.sampled_from(cuts))) if cuts else ()  # no span reaches over a turn
    return Completion(
        text=draw(texts),
        token_ids=np.asarray(draw(ids), dtype=np.uint32),
        logprobs=np.asarray(draw(logprobs), dtype=np.float32),
        spans=tuple(
            VersionSpan(draw(counters), start, end)
            for start, end in zip([0, *ends], ends, strict=False)
        ),
        finish=draw(st.sampled_from(Finish)),
        earlier_turns=tuple(EarlierTurn(draw(texts), end) for end in sorted(turns)),
    )


@st.composite
def groups(draw: st.DrawFn) -> RolloutGroup:
    answers = draw(st.lists(completions(), min_size=1, max_size=4))
    return RolloutGroup(
        task=TaskRef(
            draw(labels), draw(labels), draw(labels), draw(st.integers(0, SEED_LIMIT - 1))
        ),
        policy=PolicyRef(draw(digests), draw(digests), draw(counters)),
        completions=tuple(answers),
        claimed=tuple(draw(st.lists(f32, min_size=len(answers), max_size=len(answers)))),
    )


def assert_same(sent: RolloutGroup, received: RolloutGroup) -> None:
    assert (sent.task, sent.policy, sent.claimed) == (
        received.task,
        received.policy,
        received.claimed,
    )
    for mine, theirs in zip(sent.completions, received.completions, strict=True):
        assert (mine.turn_texts, mine.ends) == (theirs.turn_texts, theirs.ends)
        assert (mine.spans, mine.finish) == (theirs.spans, theirs.finish)
        np.testing.assert_array_equal(mine.token_ids, theirs.token_ids)
        np.testing.assert_array_equal(mine.logprobs, theirs.logprobs)
        assert (theirs.token_ids.dtype, theirs.logprobs.dtype) == (np.uint32, np.float32)
        assert theirs.token_ids.flags.writeable
        assert theirs.logprobs.flags.writeable


@examples(60)
@given(groups(), counters, st.integers(1, (1 << 62) - 1), st.integers(0, (1 << 53) - 1))
def test_any_legal_group_survives_sealing(
    group: RolloutGroup, epoch: int, seq: int, created_ms: int
) -> None:
    body = pack_group(group, epoch=epoch, seq=seq, created_ms=created_ms)
    opened = open_sealed(seal(AUTHOR, SWARM, Kind.ROLLOUT, body), SWARM, Kind.ROLLOUT)
    assert isinstance(opened, Opened)
    result = unpack_group(opened.body)
    assert not isinstance(result, Rejected)
    assert result[0] == GroupHeader(epoch, seq, created_ms)
    assert_same(group, result[1])


@examples(100)
@given(st.binary(max_size=600), st.sampled_from(Kind), st.binary(min_size=32, max_size=32))
def test_what_is_sealed_opens_in_its_swarm_only(body: bytes, kind: Kind, swarm: bytes) -> None:
    data = seal(AUTHOR, swarm, kind, body)
    opened = open_sealed(data, swarm, kind)
    assert isinstance(opened, Opened)
    assert (opened.body, opened.author, opened.id) == (body, AUTHOR.peer_id, content_id(data))
    elsewhere = bytes([swarm[0] ^ 1]) + swarm[1:]
    assert isinstance(open_sealed(data, elsewhere, kind), Rejected)


@examples(300)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused_not_raised(data: bytes) -> None:
    assert isinstance(open_sealed(data, SWARM, Kind.RECORD), Rejected)
    assert unpack_group(data).reason == "schema"


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@pytest.mark.slow(reason="draws many bodies")
@examples(200)
@given(st.data(), groups())
def test_a_signed_but_edited_body_yields_a_sound_group_or_a_refusal(
    data: st.DataObject, group: RolloutGroup
) -> None:
    """The author may be malicious: behind a good signature, any field may hold anything."""
    values = msgpack.unpackb(pack_group(group, epoch=1, seq=1, created_ms=1))
    place = values
    while data.draw(st.booleans()) and any(isinstance(item, list) and item for item in place):
        place = data.draw(st.sampled_from([i for i in place if isinstance(i, list) and i]))
    place[data.draw(st.integers(0, len(place) - 1))] = data.draw(json_like)
    result = unpack_group(msgpack.packb(values))
    if isinstance(result, Rejected):
        assert result.reason in {"schema", "content"}
        return
    header, received = result
    again = pack_group(received, epoch=header.epoch, seq=header.seq, created_ms=header.created_ms)
    assert again == msgpack.packb(values)
    assert all(math.isfinite(value) for value in received.claimed)
    for completion in received.completions:
        assert np.isfinite(completion.logprobs).all()
        assert completion.spans[-1].end == len(completion.token_ids)
