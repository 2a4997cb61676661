"""Peers' dialogues, honest and hostile, as a receiver verifies them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgpack
import numpy as np
import pytest
from builders import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from in_memory import talking

from swarm_node.environments.base import Task
from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.scores import GroupRerun
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.errors import Rejected
from swarm_node.node.loops.sampling.fit import turns_fit
from swarm_node.p2p.exchange.verify import (
    Expected,
    GroupVerifier,
    MultiTurn,
    restored_groups,
    stored_group,
)
from swarm_node.p2p.limits.gates import SizeGate
from swarm_node.p2p.peers.peers import Offer
from swarm_node.p2p.wire.envelope import Kind, content_id, seal
from swarm_node.p2p.wire.groups import pack_group
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.reasons import REASONS
from swarm_node.p2p.wire.wire import Announcement
from swarm_node.policy.experience.batch import TrainRow, build_batch
from swarm_node.policy.models.text.codec import Codec, check_tokens
from swarm_node.rollout import (
    Completion,
    EarlierTurn,
    Finish,
    PolicyRef,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
    VersionSpan,
)
from swarm_node.storage import Storage

SWARM = bytes(32)
AUTHOR = Identity.from_seed(bytes(32))
POLICY = PolicyRef(b"m" * 32, b"t" * 32, 3)
FOREIGN = PolicyRef(b"o" * 32, b"t" * 32, 3)


class More:
    """Asks for more until the model says 7, which is right; fails to reply to 9."""

    name, version, families, turns = "more", "1", ("one",), 3

    def derive(self, ref: TaskRef) -> Task:
        return Task(ref, ref.seed % 1000)

    def render(self, task: Task) -> str:
        return f"{task.payload}?"

    def observation(self, task: Task, said: Sequence[str]) -> str | None:
        if said[-1] == "9":
            raise RuntimeError("no")
        return None if said[-1] == "7" else f"{said[-1]} {len(said)} <eos>"

    def reward(self, task: Task, said: Sequence[str]) -> float:
        return float(said[-1] == "7")


ENVIRONMENT = SplitEnvironment(More())
REF = TaskRef("more", ENVIRONMENT.version, "one", 12345)


def talk(*texts: str, finish: Finish = Finish.STOP) -> Completion:
    """What a policy said, turn by turn, with the ids that spell it."""
    codec, ids, ends = talking(), [], [0]
    for number, text in enumerate(texts, start=1):
        ids += codec.encode_answer(text)
        if number < len(texts) or finish is Finish.STOP:
            ids.append(codec.eos_id)
        ends.append(len(ids))
    spans = pairwise(ends)
    return Completion(
        text=texts[-1],
        token_ids=np.array(ids, np.uint32),
        logprobs=np.full(len(ids), -0.5, np.float32),
        spans=tuple(VersionSpan(3, begin, end) for begin, end in spans),
        finish=finish,
        earlier_turns=tuple(
            EarlierTurn(text, end) for text, end in zip(texts[:-1], ends[1:], strict=False)
        ),
    )


RIGHT, LATER, NEVER = talk("7"), talk("1", "7"), talk("1", "2", "3")


def group(*said: Completion, policy: PolicyRef = POLICY, ref: TaskRef = REF) -> RolloutGroup:
    return RolloutGroup(ref, policy, said, (0.5,) * len(said))


def sealed(body: bytes, author: Identity = AUTHOR) -> bytes:
    return seal(author, SWARM, Kind.ROLLOUT, body)


class Receiver:
    """A verifier with its storage."""

    def __init__(self, place: Path, codec: Codec | None = None) -> None:
        self.codec = codec or talking()
        #: Groups that a test has sent so far.
        self.taken = 0
        self.storage = Storage(place / "node.db", threads=False)
        host = InlineEnvironmentHost(ENVIRONMENT)

        async def never(ref: TaskRef, texts: Sequence[str], author: str) -> GroupRerun:
            raise AssertionError("dialogues are not judged as answers")

        async def rerun(
            ref: TaskRef, said: Sequence[tuple[Sequence[str], bool]], author: str
        ) -> GroupRerun:
            return await host.rerun(
                ref, [Transcript(list(texts), cut) for texts, cut in said], "peers"
            )

        self.verifier = GroupVerifier(
            SWARM,
            Expected(
                "more",
                ENVIRONMENT.version,
                frozenset({"one"}),
                POLICY,
                SizeGate.of(4, 8, turns=3),
                peer_id="me",
                turns=3,
            ),
            self.storage,
            never,
            partial(check_tokens, self.codec),
            self.codec.encode_answer,
            MultiTurn(rerun, partial(turns_fit, self.codec)),
        )

    def take(self, raw: bytes, seq: int = 1, author: Identity = AUTHOR) -> VerifiedGroup | Rejected:
        offer = Offer(content_id(raw), author.peer_id, 1, seq, len(raw))
        return asyncio.run(self.verifier.verify(offer, raw, 0))

    def take_group(
        self, made: RolloutGroup, seq: int = 1, author: Identity = AUTHOR
    ) -> VerifiedGroup | Rejected:
        body = pack_group(made, epoch=1, seq=seq, created_ms=0)
        return self.take(sealed(body, author), seq, author)


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    return Receiver(tmp_path)


@pytest.mark.parametrize("policy", [POLICY, FOREIGN], ids=["kin", "foreign"])
def test_replies_and_rewards_are_found_here(receiver: Receiver, policy: PolicyRef) -> None:
    cut = talk("1", "23", finish=Finish.LENGTH)
    taken = receiver.take_group(group(RIGHT, LATER, NEVER, cut, policy=policy))
    assert isinstance(taken, VerifiedGroup)
    assert taken.rewards == (1.0, 1.0, 0.0, 0.0)
    assert taken.observations == ((), ("1 1 <eos>",), ("1 1 <eos>", "2 2 <eos>"), ("1 1 <eos>",))


def rows_of(group: VerifiedGroup, codec: Codec) -> tuple[TrainRow, ...]:
    return build_batch(
        [group],
        codec.encode_prompt,
        codec.encode_answer,
        codec.eos_id,
        correction="none",
        bridge=codec.bridge,
    ).rows


TEXTS = st.text(st.sampled_from("01234568 <eos>+"), max_size=6)
DIALOGUES = st.tuples(st.lists(TEXTS, min_size=1, max_size=3), st.sampled_from(Finish))
#: More tokens than another turn has; their author cuts all turns there.
CUT = 8
MANY = examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def played(texts: Sequence[str], finish: Finish) -> Completion:
    """A dialogue that begins with these texts and comes to its end."""
    if finish is Finish.STOP:
        return talk(*texts, *(["7"] if len(texts) < 3 else []))
    *earlier, last = texts
    said = talk(*earlier, last + "1" * (CUT - len(talking().encode_answer(last))), finish=finish)
    # Another tokenizer may have tokens that spell nothing.
    return said if last else replace(said, text="")


@MANY
@given(said=st.lists(DIALOGUES, min_size=1, max_size=4), kin=st.booleans())
def test_a_row_has_what_its_author_sampled_and_what_is_derived_here_and_no_more(
    receiver: Receiver, said: list[tuple[list[str], Finish]], kin: bool
) -> None:
    """And no token of a reply is trained on, nor has it a log-prob."""
    receiver.taken += 1
    ref = replace(REF, seed=REF.seed + receiver.taken)
    made = [
        played(texts, finish)
        for texts, finish in said
        if not (kin and finish is Finish.LENGTH and not texts[-1])
    ]
    taken = receiver.take_group(
        group(RIGHT, NEVER, *made, policy=POLICY if kin else FOREIGN, ref=ref), receiver.taken
    )
    assert isinstance(taken, VerifiedGroup)
    codec, task = receiver.codec, ENVIRONMENT.derive(ref)
    rows = iter(rows_of(taken, codec))
    for completion in taken.group.completions:
        sampled, trained, begin = list[tuple[bool, int]](), list[int](), 0
        texts = completion.turn_texts
        for number, (text, end) in enumerate(zip(texts, completion.ends, strict=True), start=1):
            stopped = number < len(texts) or completion.finish is Finish.STOP
            ours = completion.token_ids[begin:end].tolist()
            theirs = [*codec.encode_answer(text), *([codec.eos_id] if stopped else [])]
            trained += ours if kin else theirs
            sampled += [(True, token) for token in (ours if kin else theirs)]
            if number < len(texts):
                observation = ENVIRONMENT.observation(task, texts[:number])
                assert observation is not None
                sampled += [(False, token) for token in codec.bridge(observation)]
            begin = end
        while sampled and not sampled[-1][0]:
            sampled.pop()  # a reply that no token follows
        if not sampled:
            continue
        row = next(rows)
        assert row.prompt_ids.tolist() == [*codec.encode_prompt(ENVIRONMENT.render(task))]
        assert row.completion_ids.tolist() == trained
        written, places = row.ids_after_prompt()
        assert written.tolist() == [token for _, token in sampled]
        assert places.tolist() == [at for at, (own, _) in enumerate(sampled) if own]
    assert next(rows, None) is None


#: What a hostile author puts in the place of any field.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 1 << 63),
    st.floats(),
    st.binary(max_size=12).map(lambda raw: raw * 2),
    st.text(max_size=5),
    st.lists(st.integers(0, 4), max_size=3),
)


@MANY
@given(data=st.data())
def test_no_field_that_an_author_can_write_ends_its_reader(
    receiver: Receiver, data: st.DataObject
) -> None:
    """Whatever stands in it: the reader of groups ends with any error that is not a refusal."""
    receiver.taken += 1
    made = group(LATER, RIGHT, NEVER, policy=data.draw(st.sampled_from([POLICY, FOREIGN])))
    made = replace(made, task=replace(REF, seed=REF.seed + receiver.taken))
    fields = msgpack.unpackb(pack_group(made, epoch=1, seq=receiver.taken, created_ms=0))
    for _ in range(data.draw(st.integers(1, 3))):
        place = fields
        while True:
            at = data.draw(st.integers(0, len(place) - 1))
            if not (isinstance(place[at], list) and place[at] and data.draw(st.booleans())):
                break
            place = place[at]
        place[at] = data.draw(st.one_of(ODD, st.just([place[at]] * 2), st.just(place[0])))
    found = receiver.take(sealed(msgpack.packb(fields)), receiver.taken)
    if isinstance(found, VerifiedGroup):
        assert rows_of(found, receiver.codec)
    else:
        assert found.reason in REASONS


def damaged(said: Completion, at: int, token: int) -> Completion:
    ids = said.token_ids.copy()
    ids[at] = token
    return replace(said, token_ids=ids)


END, SEVEN = talking().eos_id, talking().encode_answer("7")[0]
HOSTILE = {
    "stopped short": (talk("1"), "rerun_mismatch"),
    "stopped short later": (talk("1", "2"), "rerun_mismatch"),
    "gone on after the end": (talk("7", "7"), "rerun_mismatch"),
    "more turns than there are": (talk("1", "2", "3", "7"), "rerun_mismatch"),
    "no reply can be given": (talk("9"), "no_observation"),
    "another text in an earlier turn": (damaged(LATER, 0, SEVEN), "tokens"),
    "another text in the last turn": (damaged(LATER, 2, END + 1), "tokens"),
    "an earlier turn without an end": (damaged(LATER, 1, SEVEN), "tokens"),
    "an end inside a turn": (damaged(talk("12", "7"), 0, END), "tokens"),
    "too many tokens": (talk("1" * 60, "7" * 60), "too_long"),
}


def test_a_last_turn_is_called_cut_only_where_no_turn_of_the_group_is_longer(
    receiver: Receiver,
) -> None:
    """Else an author could keep the dialogues that go badly short."""
    early = talk("1", finish=Finish.LENGTH)
    for seq, others in enumerate(([LATER], [RIGHT, talk("12", finish=Finish.LENGTH)]), start=1):
        ref = replace(REF, seed=REF.seed + seq)
        for policy in (POLICY, FOREIGN):
            refused = receiver.take_group(group(early, *others, policy=policy, ref=ref), seq)
            assert refused.reason == "rerun_mismatch"
            assert "called cut" in refused.detail
    cut = [talk("12", finish=Finish.LENGTH), talk("1", "23", finish=Finish.LENGTH)]
    assert isinstance(receiver.take_group(group(RIGHT, *cut)), VerifiedGroup)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_dialogue_is_refused_with_its_reason(receiver: Receiver, name: str) -> None:
    said, reason = HOSTILE[name]
    refused = receiver.take_group(group(RIGHT, said))
    assert refused.reason == reason


def test_a_dialogue_beyond_the_models_positions_is_too_long(tmp_path: Path) -> None:
    refused = Receiver(tmp_path, talking(12)).take_group(group(RIGHT, NEVER))
    assert refused.reason == "too_long"


def test_all_turns_are_what_a_copy_is_known_by(receiver: Receiver) -> None:
    assert isinstance(receiver.take_group(group(LATER, NEVER)), VerifiedGroup)
    other = Identity.from_seed(b"o" * 32)
    reasons = []
    for seq, middle in enumerate(("2", "3"), start=1):
        found = receiver.take_group(group(LATER, talk("1", middle, "3")), seq, other)
        reasons.append(found.reason if isinstance(found, Rejected) else "ok")
    assert reasons == ["copied", "ok"]


def test_after_a_restart_the_replies_are_derived_again(receiver: Receiver) -> None:
    taken = receiver.take_group(group(LATER, NEVER))
    assert isinstance(taken, VerifiedGroup)
    (stored,) = restored_groups(receiver.storage, "more", ENVIRONMENT.version)
    assert stored.observations == ()
    again = asyncio.run(receiver.verifier.rescore(stored))
    assert (again.observations, again.rewards, again.prompt) == (
        taken.observations,
        taken.rewards,
        taken.prompt,
    )
    short = replace(stored, group=group(talk("1"), RIGHT))
    assert asyncio.run(receiver.verifier.rescore(short)) is None
    assert stored_group(stored, 1, 1, b"").rewards == taken.rewards


@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_a_group_of_an_environment_with_other_turns_is_not_pulled(
    receiver: Receiver, turns: int
) -> None:
    entry = Announcement(
        v=1,
        epoch=1,
        seq=1,
        id=b"i" * 34,
        size=100,
        environment="more",
        version=ENVIRONMENT.version,
        family="one",
        model=POLICY.model,
        tokenizer=POLICY.tokenizer,
        policy_version=0,
        completions=4,
        mixed=True,
        turns=turns,
    )
    refused = receiver.verifier.refuse_announced(entry)
    assert (refused.reason if refused else "") == ("" if turns == 3 else "elsewhere")


def test_stored_dialogues_are_left_out_once_their_environment_has_no_turns(
    receiver: Receiver,
) -> None:
    """Or the batch that they are drawn for, which finds no replies, would end the node."""
    assert isinstance(receiver.take_group(group(LATER, NEVER)), VerifiedGroup)
    (stored,) = restored_groups(receiver.storage, "more", ENVIRONMENT.version)
    receiver.verifier._multi_turn = None
    assert asyncio.run(receiver.verifier.rescore(stored)) is None
    answers = replace(stored, group=group(RIGHT, talk("1")))
    assert asyncio.run(receiver.verifier.rescore(answers)) is answers
