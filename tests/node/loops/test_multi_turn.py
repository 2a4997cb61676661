"""Dialogues played with the tiny model, and a node that trains on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import dialogue as spoken
from builders import verified
from in_memory import Host, Sampler, WordySampler, World, small_settings, tiny
from in_memory import talking as codec
from msgspec import structs
from structlog.testing import capture_logs
from virtual import virtual_time

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config import load_settings
from swarm_node.environments.base import Task
from swarm_node.environments.host import EnvironmentInfo, InlineEnvironmentHost, Whose
from swarm_node.environments.scores import GroupRerun, Rerun
from swarm_node.environments.splits.split import with_split
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.errors import ConfigError, ModelError, SwarmNodeError
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.sampling.fit import check_groups
from swarm_node.node.loops.sampling.multi_turn import (
    CHANGED,
    TOO_LONG,
    MultiTurnRollout,
    Player,
    join_turns,
)
from swarm_node.node.loops.sampling.rollout_maker import PAUSE_SECONDS
from swarm_node.node.start.assembly import assemble
from swarm_node.node.start.derive import peers_wants
from swarm_node.p2p.limits.gates import longest_turn
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.groups import pack_group
from swarm_node.p2p.wire.reasons import REASONS, Blame
from swarm_node.policy.experience.batch import build_batch
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.text.codec import Codec, check_tokens
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.rollout import Finish, PolicyRef, Provenance, RolloutGroup, TaskRef, VerifiedGroup
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual
from swarm_node.storage import Storage

#: More than a start takes on the virtual clock, which only sampling moves.
REPLAY_SECONDS = 0.2
SAMPLING = small_settings(sampling__max_new_tokens=8).sampling


class Digits:
    """Asks for more until the model says a digit. A last text of even length is right."""

    name, version, families, turns = "digits", "1", ("one",), 3
    tail = ""

    def derive(self, ref: TaskRef) -> Task:
        return Task(ref, ref.seed % 1000)

    def render(self, task: Task) -> str:
        return f"What is {task.payload} + 1?"

    def observation(self, task: Task, said: Sequence[str]) -> str | None:
        digit = any(map(str.isdigit, said[-1]))
        return None if digit else f"{len(said)} more{self.tail} <eos>"

    def reward(self, task: Task, said: Sequence[str]) -> float:
        return float(len(said[-1]) % 2 == 0)


class Fickle(Digits):
    """Replies something else each time."""

    def observation(self, task: Task, said: Sequence[str]) -> str | None:
        self.tail += "!"
        return super().observation(task, said)


class Wordy(Digits):
    tail = "x" * 700


def played(
    made: Digits, positions: int = 1024, tasks: int = 6
) -> tuple[list[list[MultiTurnRollout]], SplitEnvironment]:
    environment = SplitEnvironment(made)
    host = InlineEnvironmentHost(environment)

    async def hear(ref: TaskRef, dialogues: Sequence[Transcript]) -> Sequence[Rerun]:
        return (await host.rerun(ref, dialogues)).reruns

    sampler = TorchSampler(CausalLM.from_directory(tiny().directory), codec(), inline=True)
    player = Player(sampler, codec(positions), hear, SYSTEM_CLOCK)
    refs = [TaskRef("digits", environment.version, "one", 1000 + n) for n in range(tasks)]

    async def run() -> list[list[MultiTurnRollout]]:
        prompts = map(codec().encode_prompt, await host.render(refs))
        groups, seconds = await player.play(
            (ref, SampleRequest(ids, 4, ref.seed, SAMPLING.max_new_tokens, SAMPLING.temperature))
            for ref, ids in zip(refs, prompts, strict=True)
        )
        assert seconds > 0
        return groups

    return asyncio.run(run()), environment


@pytest.mark.slow(reason="plays 24 dialogues twice")
def test_a_dialogue_goes_on_until_it_is_over_and_is_the_same_again() -> None:
    groups, environment = played(Digits())
    again, _ = played(Digits())
    lengths = set()
    for group, copy in zip(groups, again, strict=True):
        for dialogue, other in zip(group, copy, strict=True):
            assert [turn.text for turn in dialogue.turns] == [turn.text for turn in other.turns]
            assert dialogue.observations == other.observations
            lengths.add(len(dialogue.turns))
            assert dialogue.last_rerun.is_over
            assert len(dialogue.observations) == len(dialogue.turns) - 1
            assert all(turn.finish is Finish.STOP for turn in dialogue.turns[:-1])
            said = [turn.text for turn in dialogue.turns]
            task = environment.derive(dialogue.ref)
            assert dialogue.last_rerun.reward == environment.reward(task, said)
    assert lengths == {1, 2, 3}
    assert {turn.finish for group in groups for each in group for turn in each.turns} == {*Finish}


def test_what_is_trained_on_is_what_the_policy_read_and_sampled() -> None:
    """The trainer's log-probs of every token are the sampler's, so both had the same context."""
    groups, environment = played(Digits())
    model = CausalLM.from_directory(tiny().directory)
    seen = 0
    for group in groups:
        completions = tuple(join_turns(dialogue.turns) for dialogue in group)
        rewards = tuple(each.last_rerun.reward for each in group)
        ref = group[0].ref
        made = RolloutGroup(ref, PolicyRef(b"m", b"t", 0), completions, rewards)
        assert check_tokens(codec(), made) is None
        prompt = environment.render(environment.derive(ref))
        replies = tuple(tuple(dialogue.observations) for dialogue in group)
        own = VerifiedGroup(b"g", "me", Provenance.LOCAL, made, prompt, rewards, 0, replies)
        rows = build_batch(
            [own],
            codec().encode_prompt,
            codec().encode_answer,
            codec().eos_id,
            bridge=codec().bridge,
        ).rows
        with torch.no_grad():
            found = completion_logprobs(model, rows, SAMPLING.temperature).numpy()
        stated = [row.logprobs for row in rows if row.logprobs is not None]
        np.testing.assert_allclose(found, np.concatenate(stated), atol=2e-4)
        for row, dialogue in zip(rows, group, strict=True):
            assert len(row.observations) == len(dialogue.turns) - 1
            assert row.completion_ids.tolist() == [
                token for turn in dialogue.turns for token in turn.token_ids.tolist()
            ]
            seen += len(row.observations)
    assert seen > 4


def test_replies_that_change_later_end_the_dialogue() -> None:
    groups, _ = played(Fickle())
    ends = [
        dialogue.last_rerun for group in groups for dialogue in group if len(dialogue.turns) > 1
    ]
    assert ends
    assert all(end == Rerun(fault=CHANGED) for end in ends)


class Moody(Digits):
    """Goes on when it is first asked, and not when the dialogue is replayed."""

    asked: frozenset[tuple[str, ...]] = frozenset()

    def observation(self, task: Task, said: Sequence[str]) -> str | None:
        before, self.asked = tuple(said) in self.asked, self.asked | {tuple(said)}
        return None if before else super().observation(task, said)


@pytest.mark.slow(reason="a node samples, measures and trains")
def test_replies_that_change_later_are_counted_and_told_once(tmp_path: Path) -> None:
    faults: dict[str, int] = {}
    with capture_logs() as lines:
        lived(tmp_path, lambda node, _: faults.update(node.snapshot().faults), Moody())
    assert set(faults) == {"scorer_ended"}
    assert faults["scorer_ended"] > 1
    assert sum("another text" in line["event"] for line in lines) == 1


def test_a_dialogue_that_no_longer_fits_ends() -> None:
    groups, _ = played(Wordy())
    ends = {(len(each.turns), each.last_rerun.fault) for group in groups for each in group}
    assert (2, TOO_LONG) in ends
    assert ends <= {(1, ""), (2, ""), (2, TOO_LONG)}


def test_joined_turns_keep_the_version_of_every_token() -> None:
    groups, _ = played(Digits(), tasks=2)
    longest = max((each for group in groups for each in group), key=lambda each: len(each.turns))
    turns = [
        replace(turn, spans=tuple(replace(span, version=n) for span in turn.spans))
        for n, turn in enumerate(longest.turns)
    ]
    whole = join_turns(turns)
    assert whole.turn_texts == tuple(turn.text for turn in turns)
    versions = [span.version for span in whole.spans for _ in range(span.start, span.end)]
    assert versions == [n for n, turn in enumerate(turns) for _ in turn.token_ids]
    assert [span.start for span in whole.spans] == [0, *whole.ends[:-1]]
    assert join_turns(turns[:1]).token_ids.tolist() == turns[0].token_ids.tolist()


INFO = EnvironmentInfo("digits", "1", ("one",), turns=3)


def test_dialogues_that_the_model_cannot_hold_are_refused_with_what_fits() -> None:
    sampling = load_settings({"sampling.max_new_tokens": 24}, environ={}).sampling
    check_groups(INFO, codec(), sampling)
    # Two tokens stand around each of two replies, and the prompt has one at least.
    check_groups(INFO, codec(3 * 24 + 2 * 2 + 1), sampling)
    with pytest.raises(ConfigError, match=r"3 turns .* 76: at most 23$"):
        check_groups(INFO, codec(3 * 24 + 2 * 2), sampling)
    with pytest.raises(ConfigError, match="a model"):
        check_groups(INFO, codec(7), sampling)
    with pytest.raises(ModelError, match="be continued"):
        check_groups(INFO, tiny().codec, sampling)
    longest = load_settings({"sampling.max_new_tokens": 10_923}, environ={}).sampling
    with pytest.raises(ConfigError, match=r" 4 .* 3 .* 10922,"):
        check_groups(INFO, codec(1 << 20), longest)
    check_groups(replace(INFO, turns=1), tiny().codec, sampling)


@pytest.mark.parametrize("turns", [1, 3])
def test_groups_that_can_be_larger_than_peers_take_are_refused_with_what_fits(turns: int) -> None:
    info = replace(INFO, turns=turns)
    most = longest_turn(64, turns)
    for tokens in (most, most + 1):
        given = {"sampling.max_new_tokens": tokens, "sampling.group_size": 64}
        sampling = load_settings(given, environ={}).sampling
        if tokens == most:
            check_groups(info, codec(1 << 20), sampling)
            continue
        with pytest.raises(ConfigError, match=rf"max_new_tokens.*{tokens}: .* {most}, "):
            check_groups(info, codec(1 << 20), sampling)


@virtual_time
async def test_a_nodes_demand_counts_all_turns(world: World) -> None:
    """Or peers that send as much as it makes itself would be held to a third of that."""
    settings = small_settings()
    parts = world.parts(settings, codec=codec(), turns=3)
    wants = assemble(settings, world.memberships[0], parts)._shared_state.wants
    assert wants == peers_wants(settings, 3)
    parts.storage.close()
    tokens, once = settings.sampling.max_new_tokens, peers_wants(settings)
    for turns in (1, 3):
        said = spoken([("four" * tokens, [1] * tokens)] * turns, Finish.LENGTH)
        group = verified(rewards=[0.0] * 4, completions=[said] * 4).group
        size = len(pack_group(group, epoch=1, seq=1, created_ms=0))
        assert abs(peers_wants(settings, turns).size / size - 1) < 0.35
        assert turns == 1 or once.size < size / 2


def lived(
    place: Path,
    look: Callable[[Node, World], None],
    environment: Digits | None = None,
    sampler: type[Sampler] | None = None,
    **changes: Codec,
) -> None:
    """A node of dialogues makes three updates, and is looked at before it is closed."""

    async def scenario(loop: VirtualTimeLoop) -> None:
        world = World(place, loop)
        settings = small_settings(run__max_steps=3, run__eval_tasks=2, sampling__max_new_tokens=8)
        host = Host(SplitEnvironment(environment or Digits()))
        given = {"codec": codec(), "sampler": world.sampler(kind=sampler), **changes}
        node = world.node(settings, environment=host, **given)
        ended = await node.run()
        assert ended is not None
        look(node, world)

    run_virtual(scenario)


@virtual_time
async def test_a_round_without_a_group_ends_in_a_pause(world: World, loop: VirtualTimeLoop) -> None:
    settings = small_settings()
    host = Host(SplitEnvironment(Digits()))
    parts = world.parts(settings, environment=host, codec=codec(), turns=3)
    node, info = assemble(settings, world.memberships[0], parts), await host.start()
    taken: list[int] = []

    async def deliver(groups: Sequence[object]) -> None:
        taken.append(len(groups))

    began = loop.time()
    await node._open_work(info, info.families).maker.make(0, deliver)
    assert (taken, loop.time() - began) == ([], PAUSE_SECONDS)
    await node.close()


@pytest.mark.slow(reason="a node samples, measures and trains")
def test_a_node_alone_learns_from_dialogues_and_announces_them(tmp_path: Path) -> None:
    def look(node: Node, world: World) -> None:
        shot = node.snapshot()
        assert shot.steps == 3
        assert shot.groups.trained_local >= 6
        assert 0 < shot.groups.announced <= shot.groups.sampled
        assert shot.faults == {}
        assert 1 < shot.latest.turns < 3, "some dialogues end earlier"
        offered = wire.Announcement(
            v=1,
            epoch=1,
            seq=1,
            id=b"i" * 34,
            size=100,
            environment="digits",
            version=with_split("1"),
            family="one",
            model=tiny().policy.model,
            tokenizer=tiny().policy.tokenizer,
            policy_version=0,
            completions=4,
            mixed=True,
            turns=1,
        )
        refused = node._work.exchange.verifier.refuse_announced(offered)
        assert refused.reason == "elsewhere", "single answers of it: nobody is blamed for them"
        taken = structs.replace(offered, turns=3)
        assert node._work.exchange.verifier.refuse_announced(taken) is None
        assert shot.evals
        assert 0 < shot.evals[-1].reward < 1
        rows = [row for row in node.samples() if "\n> 1 more <eos>\n" in row.completion]
        assert rows

    lived(tmp_path, look)
    storage = Storage(tmp_path / "0" / "node.db")
    try:
        assert storage.head() >= 6
        assert storage.counter("tasks") >= 6, "a restart repeats none of them"
    finally:
        storage.close()


@pytest.mark.slow(reason="two nodes sample, measure and train")
@virtual_time
async def test_two_nodes_learn_from_each_others_dialogues(world: World) -> None:
    settings = small_settings(
        **{"experience__external": 2, "sampling__max_new_tokens": 8, "run__eval_tasks": 2}
    )
    nodes = [
        world.node(settings, index, environment=Host(SplitEnvironment(Digits())), codec=codec())
        for index in range(2)
    ]
    lives = [asyncio.create_task(node.run()) for node in nodes]
    await asyncio.sleep(6)
    shots = [node.snapshot() for node in nodes]
    for shot in shots:
        assert shot.groups.accepted > 0
        assert shot.groups.sent > 0
        assert shot.groups.trained_external > 0
        assert shot.faults == {}
        reasons = set(shot.rejected)
        assert not {each for each in reasons if REASONS[each] is Blame.VIOLATION}
        assert shot.peers[0].accepted == shot.groups.accepted
    for node in nodes:
        shown = [row for row in node.samples() if row.author]
        assert shown, "what a peer said is shown, with the replies that were derived here"
    for node in nodes:
        node.stop()
    await asyncio.gather(*lives)


@pytest.mark.slow(reason="a node samples and trains")
def test_a_group_that_is_too_large_for_peers_is_dropped_and_counted(tmp_path: Path) -> None:
    def look(node: Node, world: World) -> None:
        shot = node.snapshot()
        assert shot.steps == 3
        assert shot.faults.keys() == {"group_too_large"}
        assert shot.faults["group_too_large"] > 1
        assert shot.groups.sampled >= 6, "without a gap in the log"

    with capture_logs() as told:
        lived(tmp_path, look, sampler=WordySampler)
    (line,) = [each["event"] for each in told if "larger than peers accept" in each["event"]]
    assert "sampling.max_new_tokens" in line


class SlowHost(Host):
    """Takes long to replay what is not the maker's."""

    async def rerun(
        self, ref: TaskRef, dialogues: Sequence[Transcript], whose: Whose = "own"
    ) -> GroupRerun:
        if whose == "peers":
            await asyncio.sleep(REPLAY_SECONDS)
        return await super().rerun(ref, dialogues, whose)


@pytest.mark.slow(reason="a node samples for some seconds, twice")
@virtual_time
async def test_a_start_does_not_wait_for_the_replay_of_stored_dialogues(
    world: World, loop: VirtualTimeLoop
) -> None:
    settings = small_settings(
        # A batch larger than what it makes here: it trains on nothing, so all groups stay stored.
        experience__local=64,
        run__eval_tasks=2,
        sampling__max_new_tokens=8,
    )

    first = world.node(settings, environment=Host(SplitEnvironment(Digits())), codec=codec())
    life = asyncio.create_task(first.run())
    while first.snapshot().groups.sampled < 4:  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(1.0)
    first.stop()
    await life
    stored = first.snapshot().groups.sampled
    slow, began = SlowHost(SplitEnvironment(Digits())), loop.time()
    node = world.node(settings, environment=slow, codec=codec())
    opened: list[float] = []
    life = asyncio.create_task(node.run(lambda addresses: opened.append(loop.time())))
    await asyncio.sleep(REPLAY_SECONDS / 2)
    assert opened
    assert opened[0] - began < REPLAY_SECONDS / 2
    assert len(node._stored_groups) == stored - 1, "one is being replayed"
    await asyncio.sleep(stored * REPLAY_SECONDS)
    assert not node._stored_groups
    made = node.snapshot().groups.sampled - stored
    assert node._buffer.stats().local_admitted == made + stored
    node.stop()
    await life


def test_a_node_whose_model_has_no_roles_does_not_start_on_dialogues(tmp_path: Path) -> None:
    with pytest.raises(SwarmNodeError, match="no roles"):
        lived(tmp_path, lambda node, world: None, codec=tiny().codec)


def test_of_two_requests_for_a_turn_no_two_are_alike() -> None:
    """Or dialogues that were the same so far would be the same for ever."""
    groups, _ = played(Digits(), tasks=1)
    player = Player(None, codec(), None, SYSTEM_CLOCK)  # type: ignore[arg-type]
    fresh = [MultiTurnRollout(d.ref, d.request, d.place, d.turns[:1], ["1"]) for d in groups[0]]
    requests = [request for request, _ in player._requests([fresh])]
    assert all(isinstance(request, SampleRequest) for request in requests)
    assert len({request.seed for request in requests}) == len(requests) == 4
