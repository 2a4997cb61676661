"""What is refused: groups that are not what was signed, announced and agreed on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import dialogue
from exchange_sides import (
    CODEC,
    Side,
    announce_changed,
    announce_raw,
    in_swarm,
    larger,
    make_completion,
    make_group,
    right_answer,
    serve_raw,
)

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.splits.seeds import held_out_seed
from swarm_node.errors import SlowTaskError
from swarm_node.p2p.transports.memory import MemoryNetwork
from swarm_node.p2p.wire.envelope import Kind, content_id, seal
from swarm_node.rollout import PolicyRef, RolloutGroup, TaskRef


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sealed: sealed[:300] + bytes([sealed[300] ^ 1]) + sealed[301:], "signature"),
        (lambda sealed: sealed + b"\x00", "schema"),
    ],
)
@in_swarm()
async def test_a_tampered_envelope_is_refused(
    network: MemoryNetwork, mallory: Side, bob: Side, change, reason: str
) -> None:
    """Its author announces damaged bytes: the hash fits, so the signature decides."""

    await serve_raw(mallory, change)
    assert await bob.fetch() == []
    assert bob.rejected[reason] == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"id": content_id(b"something else")}, "hash"), ({"size": 4000}, "size")],
)
@in_swarm()
async def test_what_is_sent_must_be_what_was_announced(
    network: MemoryNetwork, mallory: Side, bob: Side, change, reason: str
) -> None:
    """A well signed group with the announced number, and another hash or size than announced."""

    ref = mallory.task()
    group = make_group(ref, [await right_answer(mallory, ref), "wrong"], [1.0, 0.0])
    await announce_changed(mallory, group, **change)
    assert await bob.fetch() == []
    assert bob.rejected[reason] == 1
    assert bob.storage.live(1) == []


@in_swarm()
async def test_a_group_of_another_environment_than_announced_is_refused(
    network: MemoryNetwork, mallory: Side, bob: Side
) -> None:
    group = (await mallory.group(["1", "2"])).group
    other = replace(group, task=replace(group.task, version="other"))
    await announce_changed(mallory, group, sent=other)
    assert await bob.fetch() == []
    assert bob.rejected == {"environment": 1}


@in_swarm()
async def test_a_well_signed_body_that_is_no_group_is_refused(
    network: MemoryNetwork, mallory: Side, bob: Side
) -> None:
    identity, swarm = mallory.membership.identity, mallory.membership.swarm
    sealed = seal(identity, swarm.swarm_id, Kind.ROLLOUT, b"\x90")
    group = make_group(mallory.task(), ["right", "wrong"], [1.0, 0.0])
    await announce_raw(mallory, group, sealed, epoch=mallory.storage.epoch, seq=1)
    assert await bob.fetch() == []
    assert bob.rejected["schema"] == 1


@in_swarm()
async def test_a_group_that_ended_its_judge_is_refused(
    network: MemoryNetwork, mallory: Side, bob: Side
) -> None:
    judge = bob.verifier._score_texts

    async def dies(*arguments: Any) -> Any:
        return replace(await judge(*arguments), loss_reason="crashed")

    bob.verifier._score_texts = dies
    await mallory.publish(0)
    assert await bob.fetch() == []
    assert bob.rejected["scoring"] == 1
    assert bob.storage.live(1) == []


@in_swarm()
async def test_a_group_that_this_node_could_not_judge_blames_nobody_and_is_judged_later(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    judge = bob.verifier._score_texts

    async def killed_once(*arguments: Any) -> Any:
        bob.verifier._score_texts = judge
        return replace(await judge(*arguments), unscored="killed")

    bob.verifier._score_texts = killed_once
    await alice.publish(0)
    assert len(await bob.fetch()) == 1
    assert bob.rejected == {"unscored": 1}
    standing = bob.directory.get(alice.peer_id).standing
    assert (standing.useless_count, standing.strikes, standing.cut_until) == (0.0, 0, 0.0)


@in_swarm()
async def test_texts_that_make_the_judge_sleep_are_useless_and_not_pulled_again(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    judge, calls = bob.verifier._score_texts, []

    async def sleeps(*arguments: Any) -> Any:
        calls.append(arguments)
        return replace(await judge(*arguments), loss_reason="asleep")

    bob.verifier._score_texts = sleeps
    await alice.publish(0)
    for _ in range(3):
        assert await bob.fetch() == []
    assert bob.rejected == {"asleep": 1}
    assert len(calls) == 1
    standing = bob.directory.get(alice.peer_id).standing
    assert (standing.strikes, standing.cut_until) == (1, 0.0)


@in_swarm()
async def test_a_task_too_slow_for_this_machine_cuts_nobody_off(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    async def slow(*arguments: Any) -> Any:
        raise SlowTaskError("it took too long", 10.0)

    bob.verifier._score_texts = slow
    await alice.publish(0)
    assert await bob.fetch() == []
    assert bob.rejected == {"slow_task": 1}
    assert bob.directory.get(alice.peer_id).standing.cut_until == 0.0


@in_swarm(3)
async def test_another_members_group_cannot_be_announced_as_ones_own(
    network: MemoryNetwork, alice: Side, thief: Side, bob: Side
) -> None:
    (own,) = await alice.publish(0)
    sealed = alice.storage.blob(own.id)
    assert sealed is not None
    await alice.transport.stop()
    await announce_raw(thief, own.group, sealed, epoch=alice.storage.epoch, seq=1)
    assert await bob.fetch() == []
    assert bob.rejected["author"] == 1


def _other_tokens(group: RolloutGroup) -> RolloutGroup:
    first, *rest = group.completions
    ids = first.token_ids.copy()
    ids[0] = CODEC.encode_answer("Z")[0]
    return replace(group, completions=(replace(first, token_ids=ids), *rest))


def _held_out(group: RolloutGroup) -> RolloutGroup:
    return replace(group, task=replace(group.task, seed=held_out_seed("exam")))


@pytest.mark.parametrize(("change", "reason"), [(_other_tokens, "tokens"), (_held_out, "held_out")])
@in_swarm()
async def test_what_was_not_agreed_on_is_refused(
    network: MemoryNetwork, mallory: Side, bob: Side, change, reason: str
) -> None:
    group = (await mallory.group(["1", "2"])).group
    await announce_changed(mallory, change(group))
    assert await bob.fetch() == []
    assert bob.rejected == {reason: 1}


def _longer(group: RolloutGroup) -> RolloutGroup:
    return make_group(group.task, ["1" * 96, "2"], [1.0, 0.0])


def _longer_abroad(group: RolloutGroup) -> RolloutGroup:
    """Few tokens where it was made, and many here."""
    other = PolicyRef(bytes(32), bytes(32), 7)
    short = replace(make_completion("2"), text="1" * 97)
    return replace(make_group(group.task, ["1", "2"], [1.0, 0.0], other), completions=(short,) * 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(_longer, "too_long"), (_longer_abroad, "too_long"), (larger, "too_large")],
)
@in_swarm()
async def test_groups_much_longer_or_larger_than_ones_own_are_refused(
    network: MemoryNetwork, mallory: Side, bob: Side, change, reason: str
) -> None:
    judged: list[TaskRef] = []
    judge = bob.environment.score
    bob.verifier._score_texts = lambda ref, texts: judged.append(ref) or judge(ref, texts)
    group = (await mallory.group(["1", "2"])).group
    await announce_changed(mallory, change(group))
    assert await bob.fetch() == []
    assert bob.rejected == {reason: 1}
    assert judged == []


@in_swarm()
async def test_a_number_far_ahead_in_a_log_is_a_lie(
    network: MemoryNetwork, mallory: Side, bob: Side
) -> None:
    (own,) = await mallory.publish(0)
    assert len(await bob.fetch()) == 1
    epoch = mallory.storage.epoch
    await announce_raw(mallory, own.group, bytes(100), epoch=epoch, seq=2_000_000)
    assert await bob.fetch() == []
    assert bob.rejected == {"sequence": 1}
    assert bob.directory.cut(mallory.peer_id, SYSTEM_CLOCK.now()) > 0


@pytest.mark.parametrize(
    ("turns", "reason", "offences"), [(2, "elsewhere", 0), (1, "rerun_mismatch", 1)]
)
@in_swarm(3)
async def test_dialogues_are_no_answers_whatever_their_author_announces_and_it_alone_is_blamed(
    network: MemoryNetwork,
    author: Side,
    bob: Side,
    honest: Side,
    turns: int,
    reason: str,
    offences: int,
) -> None:
    ref = author.task()
    said = ["4", await right_answer(author, ref)]
    talk = dialogue([(text, [*CODEC.encode_answer(text), CODEC.eos_id]) for text in said])
    answers = make_group(ref, ["wrong", "also wrong"], [1.0, 0.0])
    group = replace(answers, completions=(talk, answers.completions[1]))
    await announce_changed(author, group, turns=turns)
    await honest.publish(7)
    assert [group.author for group in await bob.fetch()] == [honest.peer_id]
    assert bob.rejected == {reason: 1}
    blamed = [bob.directory.get(side.peer_id).standing for side in (author, honest)]
    assert [standing.offences for standing in blamed] == [offences, 0]
