"""A member that serves a program, among nodes and members of in-memory parts."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from typing import Any, TypeVar

import numpy as np
import pytest
from in_memory import World, environment, small_settings, tiny
from virtual import virtual_time

from swarm_node.errors import CheckpointError, CompletionError, ConfigError, SwarmNodeError
from swarm_node.node.home.home import Home
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.program_node import (
    ProgramNode,
    ProgramPolicy,
    drawn_record,
    make_completions,
)
from swarm_node.node.metrics.groups import DrawnGroup, MemberTask
from swarm_node.node.start.build_member import assemble_member
from swarm_node.rollout import Finish, PolicyRef, Provenance, RolloutGroup, TaskRef, VerifiedGroup

CODEC = tiny().codec
N = TypeVar("N", bound=Node)


def make(world: World, index: int = 0, positions: int | None = None, **changes: Any) -> ProgramNode:
    """Member `index` of a world, in its home there; its model has so many `positions`."""
    settings = small_settings(**{"experience__external": 4, **changes})
    policy = ProgramPolicy(Home(world.home(index)))
    codec = copy(CODEC)
    codec.positions = positions or codec.positions
    made = world.parts(settings, index, sampler=policy, trainer=policy, codec=codec)
    return assemble_member(settings, world.memberships[index], made, policy)


@asynccontextmanager
async def during(one: N) -> AsyncIterator[N]:
    """A node that runs, and whose end is waited for."""
    running = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(one.run(lambda _: running.set()))
        await running.wait()
        try:
            yield one
        finally:
            one.stop()


def alone(world: World, **changes: Any) -> AbstractAsyncContextManager[ProgramNode]:
    return during(make(world, **changes))


def spelled(*texts: str) -> tuple[list[list[int]], list[list[float]]]:
    """Token ids of finished answers, and log-probs."""
    ids = [[*CODEC.encode_answer(text), CODEC.eos_id] for text in texts]
    return ids, [[-0.5] * len(each) for each in ids]


def right(task: MemberTask) -> str:
    known = environment()
    ref = TaskRef(known.name, known.version, task.family, task.seed)
    answer = known.answer(known.derive(ref))  # type: ignore[attr-defined]
    return answer


async def published(one: ProgramNode, count: int = 1, version: int = 0) -> None:
    """Publish groups of a right and a wrong answer."""
    for task in await one.tasks(count):
        assert (await one.publish(task, *spelled(right(task), "?"), version)).announced


@virtual_time
async def test_members_draw_what_others_publish_and_nothing_twice(world: World) -> None:
    giver = make(world, 0, environment__families=["sorting"])
    taker = make(world, 1, environment__families=["reversal"])
    async with during(giver), during(taker):
        (task,) = await giver.tasks(1)
        assert task.family == "sorting"
        answer = right(task)
        assert await giver.score(task, [answer, "?"]) == (1.0, 0.0)
        ids, logprobs = spelled(answer, "?")
        ids[1], logprobs[1] = ids[1][:-1], logprobs[1][:-1]  # ran out of tokens
        given = await giver.publish(task, ids, logprobs, 7, [1.0, 0.0])
        assert (given.texts, given.rewards) == ((answer, "?"), (1.0, 0.0))
        assert (given.announced, given.reason) == (True, "")
        (group,) = await taker.draw(1, 3, 60.0)
        assert (group.family, group.seed) == (task.family, task.seed)
        assert (group.prompt, group.prompt_ids) == (task.prompt, task.prompt_ids)
        assert (group.provenance, group.age) == ("same_model", 0)
        assert group.author == world.memberships[0].identity.peer_id
        first, second = group.completions
        assert (first.text, first.reward, first.finished) == (answer, 1.0, True)
        assert (second.text, second.reward, second.finished) == ("?", 0.0, False)
        assert [list(each.token_ids) for each in group.completions] == ids
        assert [list(each.logprobs or ()) for each in group.completions] == logprobs
        assert await taker.draw(1, None, 30.0) == []
        assert await giver.draw(1, None, 0.0) == []  # its own are not among them
        shot = taker.snapshot()
        assert (shot.groups.trained_external, shot.version) == (1, 3)
        assert [row.groups for row in shot.taught] == [1]
        assert giver.snapshot().groups.sent == 1


@pytest.mark.slow(reason="a node samples and trains until it made a group that teaches")
@virtual_time
async def test_a_node_trains_on_a_members_groups_and_the_member_draws_the_nodes(
    world: World,
) -> None:
    settings = small_settings(experience__external=2)
    node = world.node(settings)
    member = make(world, 1)
    drawn: list[DrawnGroup] = []
    async with during(node), during(member):
        for version in range(40):
            await published(member, 2, version)
            drawn.extend(await member.draw(2, version, 5.0))
            if drawn and node.snapshot().groups.trained_external:
                break
        else:
            raise AssertionError(f"drawn {drawn}, {node.snapshot().groups}")
    taught = {row.peer_id for row in node.snapshot().taught}
    assert taught == {world.memberships[1].identity.peer_id}
    rewards = [each.reward for each in drawn[0].completions]
    assert max(rewards) > min(rewards)


@virtual_time
async def test_a_flood_gets_as_many_places_as_were_published(world: World) -> None:
    flood, taker = make(world, 0), make(world, 1)
    async with during(flood), during(taker):
        await published(flood, 12)
        await published(taker, 2)
        await asyncio.sleep(60)
        assert taker.snapshot().buffer["external"] >= 8
        assert len(await taker.draw(4, 1, 0.0)) == 2
        assert len(await taker.draw(4, 2, 0.0)) == 4  # an equal part, for the only author


@virtual_time
async def test_groups_from_which_nobody_learns_are_stored_and_not_announced(world: World) -> None:
    async with alone(world) as one:
        equal, special = await one.tasks(2)
        found = await one.publish(equal, *spelled("?", "!"), 0)
        assert (found.announced, "rewards" in found.reason) == (False, True)
        ids, logprobs = spelled(right(special), "?")
        ids[1].insert(0, next(iter(CODEC.special_ids - CODEC.eos_ids)))
        logprobs[1].append(-1.0)
        found = await one.publish(special, ids, logprobs, 0)
        assert (found.announced, "special token" in found.reason) == (False, True)
        assert one.snapshot().groups.sampled == 2
        assert one.snapshot().groups.announced == 0


GOOD = [[CODEC.encode_answer("1")[0], CODEC.eos_id]] * 2
SURE = [[-0.5, -0.5]] * 2


@pytest.mark.slow(reason="builds a node for each of many refusals")
@pytest.mark.parametrize(
    ("answers", "logprobs", "version", "rewards", "words"),
    [
        (GOOD[:1], SURE[:1], 0, None, "2 to 64 .* 1$"),
        (GOOD * 33, SURE * 33, 0, None, "2 to 64 .* 66$"),
        (GOOD, SURE[:1], 0, None, "2 .*log-probs of 1"),
        ([GOOD[0], []], [SURE[0], []], 0, None, "completion 1 .*1 to 24"),
        ([[5] * 25] * 2, [[-1.0] * 25] * 2, 0, None, r"25 .*max_new_tokens"),
        (GOOD, [SURE[0], [-0.5]], 0, None, "completion 1 .* 2 .* 1 log-probs"),
        (GOOD, [SURE[0], [-0.5, 0.5]], 0, None, "completion 1 .*above 0"),
        (GOOD, [SURE[0], [-0.5, math.nan]], 0, None, "completion 1 .*finite"),
        (GOOD, [SURE[0], [-0.5, -1e300]], 0, None, "completion 1 .*finite"),
        (GOOD, [SURE[0], ["?", "?"]], 0, None, "completion 1 .*log-prob"),
        ([GOOD[0], [-1, 2]], SURE, 0, None, "completion 1 .*tokens of"),
        ([GOOD[0], [1 << 40, 2]], SURE, 0, None, "completion 1 .*tokens of"),
        (GOOD, SURE, -1, None, "version is 0"),
        (GOOD, SURE, 1 << 62, None, "version is 0"),
        (GOOD, SURE, 1.5, None, "version .* 1.5"),
        (GOOD, SURE, True, None, "version .* True"),
        (GOOD, SURE, 0, [0.0], "2 .* 1 rewards"),
        (GOOD, SURE, 0, [0.0, 1.0], r"completion 1 .*reward 1 .* 0 by"),
        (GOOD, SURE, 0, [0.0, math.nan], "completion 1 .*reward nan"),
        # What a program gives by mistake.
        (["55", "66"], SURE, 0, None, "completion 0 .*text"),
        ([[5.7, 2.0], GOOD[1]], SURE, 0, None, "completion 0 .*log-prob"),
        ((each for each in GOOD), SURE, 0, None, "completions are"),
        ([GOOD[0], itertools.count(5)], SURE, 0, None, "completion 1 .*ids: "),
        ([range(1 << 40)] * 2, SURE, 0, None, "completion 0 .* 1099511627776 "),
        (GOOD, None, 0, None, "log-probs are"),
        (GOOD, [SURE[0], None], 0, None, "completion 1 .*log-probs: "),
        (GOOD, SURE, 0, 1.0, "rewards are"),
        (GOOD, SURE, 0, [0.0, None], "rewards are"),
    ],
)
@virtual_time
async def test_a_group_that_cannot_be_published_is_refused_in_words_and_nothing_is_stored(
    world: World, answers: Any, logprobs: Any, version: Any, rewards: Any, words: str
) -> None:
    async with alone(world) as one:
        (task,) = await one.tasks(1)
        assert right(task) != "1"
        with pytest.raises(CompletionError, match=words):
            await one.publish(task, answers, logprobs, version, rewards)
        assert one.snapshot().groups.sampled == 0
        # The task is still open.
        assert (await one.publish(task, *spelled(right(task), "?"), 0)).announced


@virtual_time
async def test_a_mistaken_call_is_refused_in_words_and_spoils_nothing(world: World) -> None:
    async with alone(world) as one:
        (task,) = await one.tasks(1)
        for count in (0, -1, 2.5, True, "3", None, 8193):
            with pytest.raises(ConfigError, match=rf"^tasks.* 8192 .*{count}"):
                await one.tasks(count)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match=r"^draw.* 4 "):
                await one.draw(count, None, 0.0)  # type: ignore[arg-type]
        for count in (0, 5):
            with pytest.raises(ConfigError, match=rf"{count}: experience\.ext"):
                await one.draw(count, None, 0.0)
        with pytest.raises(CompletionError, match=r"version.*'7'"):
            await one.draw(1, "7", 0.0)  # type: ignore[arg-type]
        with pytest.raises(SwarmNodeError, match="nor trainer"):
            await one.evaluate()
        for texts in ("one text", [3], [b"bytes"], None, (each for each in "ab"), [], ["a"] * 65):
            with pytest.raises(CompletionError, match=r"score"):
                await one.score(task, texts)  # type: ignore[arg-type]
        for stranger in (None, 5, {"family": "sorting"}):
            with pytest.raises(CompletionError, match=r"tasks\(\) returned"):
                await one.score(stranger, ["?"])  # type: ignore[arg-type]
            with pytest.raises(CompletionError, match=r"tasks\(\) returned"):
                await one.publish(stranger, GOOD, SURE, 0)  # type: ignore[arg-type]
        ids, logprobs = spelled(right(task), "?")
        arrays = [np.asarray(each) for each in ids], [np.asarray(each) for each in logprobs]
        assert (await one.publish(task, *arrays, np.int64(2))).announced  # type: ignore[arg-type]
        assert await one.draw(4, np.int64(3), 0.0) == []  # type: ignore[arg-type]


@virtual_time
async def test_a_trainer_that_went_back_to_a_checkpoint_has_places_for_what_it_publishes(
    world: World,
) -> None:
    async with alone(world) as one:
        await published(one, 1, version=1000)
        await published(one, 2, version=3)
        assert one.snapshot().version == 3
        assert one.snapshot().buffer["local"] == 3
        assert not one.snapshot().rejected


@virtual_time
async def test_a_group_larger_than_peers_take_is_refused_and_not_stored(world: World) -> None:
    longest = 8192
    async with alone(world, positions=1 << 16, sampling__max_new_tokens=longest) as one:
        (task,) = await one.tasks(1)
        token = CODEC.encode_answer("1")[0]
        answers = [[token] * longest] * 64
        with pytest.raises(CompletionError, match="exceed what"):
            await one.publish(task, answers, [[-0.5] * longest] * 64, 0)
        assert one.snapshot().groups.sampled == 0
        assert (await one.publish(task, *spelled(right(task), "?"), 0)).announced


@virtual_time
async def test_a_group_that_exceeds_the_models_positions_is_refused_and_not_drawn(
    world: World,
) -> None:
    giver = make(world, 0, sampling__max_new_tokens=90)
    taker = make(world, 1, positions=80)
    async with during(giver), during(taker):
        long, short = await giver.tasks(2)
        assert (await giver.publish(long, *spelled(right(long), 80 * "?"), 0)).announced
        assert await taker.draw(1, None, 30.0) == []
        assert taker.snapshot().rejected == {"too_long": 1}
        assert (await giver.publish(short, *spelled(right(short), "?"), 0)).announced
        (group,) = await taker.draw(1, None, 30.0)
        assert group.seed == short.seed


@virtual_time
async def test_a_task_is_answered_once_and_only_one_that_was_given(world: World) -> None:
    async with alone(world) as one:
        (task,) = await one.tasks(1)
        foreign = MemberTask(task.family, task.seed + 1, "?", ())
        with pytest.raises(CompletionError, match="none of"):
            await one.publish(foreign, GOOD, SURE, 0)
        assert (await one.publish(task, *spelled(right(task), "?"), 0)).announced
        with pytest.raises(CompletionError, match=r"published before"):
            await one.publish(task, *spelled(right(task), "!"), 0)
        assert one.snapshot().groups.sampled == 1
        unknown = MemberTask("poetry", 1, "?", ())
        with pytest.raises(SwarmNodeError, match="poetry"):
            await one.score(unknown, ["1"])


@virtual_time
async def test_a_later_start_goes_on_with_tasks_version_and_counts(world: World) -> None:
    tasks = list[MemberTask]()
    async with during(make(world)) as one:
        tasks.extend(await one.tasks(3))
        await one.publish(tasks[0], *spelled(right(tasks[0]), "?"), 9)
        await one.draw(1, None, 0.0)
    async with during(make(world)) as one:
        assert not {each.seed for each in await one.tasks(3)} & {each.seed for each in tasks}
        shot = one.snapshot()
        assert (shot.version, shot.groups.sampled) == (9, 1)
        assert shot.groups.trained_local == 1
        with pytest.raises(CompletionError, match="none of"):
            await one.publish(tasks[1], GOOD, SURE, 0)
    (world.home() / "member").write_bytes(b"swarm-node?")
    with pytest.raises(CheckpointError, match="is damaged"):
        await make(world).run()


def test_a_foreign_answer_is_encoded_in_own_tokens_and_has_no_log_probs() -> None:
    ids, logprobs = spelled("abc", "de")
    policy = PolicyRef(bytes(32), bytes(32), 5)
    completions = make_completions(
        CODEC, [ids[0], ids[1][:-1]], [logprobs[0], logprobs[1][:-1]], 5, 24
    )
    assert [each.finish for each in completions] == [Finish.STOP, Finish.LENGTH]
    group = RolloutGroup(TaskRef("drills", "1", "sorting", 3), policy, completions, (0.0, 0.0))
    verified = VerifiedGroup(b"id", "peer", Provenance.CROSS_MODEL, group, "sort", (1.0, 0.0), 4)
    record = drawn_record(CODEC, verified, 6)
    assert (record.provenance, record.age, record.author) == ("cross_model", 2, "peer")
    assert [list(each.token_ids) for each in record.completions] == [ids[0], ids[1][:-1]]
    assert [each.logprobs for each in record.completions] == [None, None]
    assert [each.reward for each in record.completions] == [1.0, 0.0]
