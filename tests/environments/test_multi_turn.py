"""Dialogues replayed, in this process and in a judge, with environments that do their worst."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from builders import examples
from environments.tasks import ref_to, task_of
from hypothesis import given
from hypothesis import strategies as st
from lasting import started

from swarm_node.environments.base import Task
from swarm_node.environments.host import (
    EnvironmentHost,
    InlineEnvironmentHost,
    ProcessEnvironmentHost,
    Whose,
)
from swarm_node.environments.registry import create_environment
from swarm_node.environments.scores import MAX_TEXTS, GroupRerun, Rerun
from swarm_node.environments.splits.split import with_split
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.workers.scoring_worker import Transcript, rerun
from swarm_node.errors import ConfigError, UnknownTaskError
from swarm_node.rollout import TaskRef

TALK = '''
import os, time

from swarm_node.environments.base import Task


class Words(str):
    pass


class Talk:
    """Says what the text asks for, and repeats any other."""

    name, version, families = "talk", "1", ("one",)
    spoilt = False

    def __init__(self, turns):
        self.turns = turns

    def derive(self, ref):
        return Task(ref, ref.seed)

    def render(self, task):
        return f"say {task.payload}"

    def observation(self, task, said):
        if task.payload == 8:
            os._exit(4)
        if self.spoilt:
            return None
        match said[-1]:
            case "spoil":
                self.spoilt = True
            case "work":
                end = time.process_time() + 0.2
                while time.process_time() < end:
                    pass
            case "raise":
                raise RuntimeError("no")
            case "long":
                return "x" * 1025
            case "longest":
                return "x" * 1024
            case "number":
                return 7
            case "broken":
                return "\\ud800"
            case "derived":
                return Words("x")
            case "leave":
                raise SystemExit(0)
            case "exit":
                os._exit(3)
            case "forge":
                from swarm_node.environments.workers import scoring_worker

                end = time.process_time() + 0.1
                while time.process_time() < end:
                    pass
                line = scoring_worker.RerunLine([], True, scoring_worker.TextVerdict(1.0))
                scoring_worker.rerun = lambda *_: line
            case "go on":
                from swarm_node.environments.workers import scoring_worker

                line = scoring_worker.RerunLine(["x"] * self.turns, False)
                scoring_worker.rerun = lambda *_: line
            case "loop":
                while True:
                    pass
            case "done":
                return None
        return f"{len(said)} {said[-1]} {task.payload}"

    def reward(self, task, said):
        match said[-1]:
            case "nan":
                return float("nan")
            case "raise later":
                raise KeyError("no")
        return float(said[-1] == "done")


def create(turns=4):
    return Talk(turns)
'''
REF = TaskRef("talk", with_split("1"), "one", 7)


@pytest.fixture
def talk(importable: Callable[[str, str], None]) -> str:
    """The name of an environment that a child process can import."""
    importable("talk_environment", TALK)
    return "talk_environment:create"


def judged(host: EnvironmentHost, whose: Whose, *dialogues: Transcript) -> GroupRerun:
    async def run() -> GroupRerun:
        async with started(host) as info:
            assert info.turns == 4
            found = await host.rerun(REF, dialogues, whose)
            assert found.seconds > 0
            return found

    return asyncio.run(run())


def replayed(host: EnvironmentHost, *dialogues: Transcript) -> list[Rerun]:
    return list(judged(host, "own", *dialogues).reruns)


@pytest.fixture(params=["inline", "process"])
def host(request: pytest.FixtureRequest, talk: str) -> EnvironmentHost:
    if request.param == "inline":
        return InlineEnvironmentHost(create_environment(talk, {}))
    return ProcessEnvironmentHost(talk, {}, score_seconds=1.0)


def said(*texts: str, cut: bool = False) -> Transcript:
    return Transcript(list(texts), cut)


def test_a_dialogue_is_replayed_from_what_the_model_said(host: EnvironmentHost) -> None:
    a, ab, abc = "1 a 7", "2 b 7", "3 c 7"
    cases = [
        (said("a"), Rerun((a,), is_over=False)),
        (said("a", "b"), Rerun((a, ab), is_over=False)),
        # Over by the environment, by the number of turns, and for want of tokens.
        (said("a", "done"), Rerun((a,), reward=1.0)),
        (said("a", "b", "c", "d"), Rerun((a, ab, abc))),
        (said("a", "b", "c", "done"), Rerun((a, ab, abc), reward=1.0)),
        (said("a", "b", cut=True), Rerun((a,))),
        (said("raise", cut=True), Rerun()),
        # After its end, nothing can be said.
        (said("done", "done"), Rerun(fault="ended")),
        (said("a", "done", "b", "c"), Rerun((a,), fault="ended")),
        # Faults of the environment.
        (said("a", "raise"), Rerun((a,), fault="observation", exception="RuntimeError")),
        (said("raise", "done"), Rerun(fault="observation", exception="RuntimeError")),
        (said("long"), Rerun(fault="observation")),
        (said("longest"), Rerun(("x" * 1024,), is_over=False)),
        (said("number"), Rerun(fault="observation")),
        (said("broken"), Rerun(fault="observation")),
        (said("derived"), Rerun(fault="observation")),
        (said("leave"), Rerun(fault="observation", exception="SystemExit")),
        (said("nan", cut=True), Rerun(fault="out_of_range")),
        (said("raise later", cut=True), Rerun(exception="KeyError")),
        # No frame can carry it.
        (said("a", "\ud800"), Rerun(fault="unsendable")),
    ]
    found = replayed(host, *(each for each, _ in cases))
    assert found == [wanted for _, wanted in cases]
    theirs = judged(host, "peers", *(each for each, _ in cases))
    assert list(theirs.reruns) == found
    assert (theirs.prompt, theirs.loss_reason, theirs.unscored) == ("say 7", "", "")
    assert theirs.observations == tuple(each.observations for each in found)
    flaws = (
        ["short"] * 2
        + [""] * 5
        + ["ended"] * 2
        + ["observation"] * 3
        + ["short"]
        + ["observation"] * 4
    )
    assert list(theirs.flaws) == [*flaws, "", "", ""]


@pytest.mark.slow(reason="judges are ended and started again")
@pytest.mark.parametrize("text", ["exit", "loop"])
def test_a_text_that_ends_its_judge_ends_its_own_dialogue(talk: str, text: str) -> None:
    host = ProcessEnvironmentHost(talk, {}, score_seconds=0.4)
    found = replayed(host, said("a", "done"), said("a", text), said("b"))
    assert [each.reward for each in found] == [1.0, 0.0, 0.0]
    assert [each.is_over for each in found] == [True, True, False]
    assert found[1].fault in {"crashed", "timeout"}
    assert found[2].observations == ("1 b 7",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("exit", "crashed"),
        pytest.param("loop", "timeout", marks=pytest.mark.slow(reason="two limits are waited out")),
    ],
)
def test_a_peers_dialogue_that_ends_fresh_judges_is_blamed(
    talk: str, text: str, reason: str
) -> None:
    host = ProcessEnvironmentHost(talk, {}, score_seconds=0.2)
    found = judged(host, "peers", said("a", "done"), said("a", text))
    assert (found.loss_reason, found.unscored, found.reruns) == (reason, "", ())


async def test_a_dialogue_with_too_few_replies_is_forged(talk: str) -> None:
    """A judge that was taken over may write what no dialogue is, and no row can be built of it."""
    host = ProcessEnvironmentHost(talk, {})
    async with started(host):
        found = await host.rerun(REF, [said("forge"), said("a", "done")], "peers")
    assert (found.loss_reason, found.reruns) == ("forged", ())
    assert found.seconds >= 0.2, "two judges worked for it, which counts against its author"


async def test_a_dialogue_that_goes_on_after_its_last_turn_is_forged(talk: str) -> None:
    """An evaluation would ask the policy for turns without end."""
    host = ProcessEnvironmentHost(talk, {})
    async with started(host):
        found = await host.rerun(REF, [said("go on", "b", "c", "d"), said("a", "b", "c", "d")])
    assert all(each.is_over for each in found.reruns)
    assert "forged" in {each.fault for each in found.reruns}


async def test_an_environment_that_cannot_reply_at_all_blames_no_author(talk: str) -> None:
    host = ProcessEnvironmentHost(talk, {})
    async with started(host):
        found = await host.rerun(replace(REF, seed=8), [said("a", "done")], "peers")
    assert (found.loss_reason, found.unscored) == ("", "own")


async def test_a_flaw_counts_in_a_judge_that_no_other_author_has_spoilt(talk: str) -> None:
    host = ProcessEnvironmentHost(talk, {})
    groups = ([said("spoil")], [said("a", "done")], [said("done", "done")])
    async with started(host):
        spoilt, honest, hostile = [await host.rerun(REF, group, "peers") for group in groups]
    assert spoilt.flaws == ("short",)
    assert (honest.flaws, honest.rewards, honest.observations) == (("",), (1.0,), (("1 a 7",),))
    assert hostile.flaws == ("ended",)


@pytest.mark.slow(reason="dialogues take nearly as long as they may")
async def test_a_group_that_its_author_could_play_turn_by_turn_is_replayed_in_time(
    talk: str,
) -> None:
    """Of those that its author had replayed at each turn, only some were not over."""
    host = ProcessEnvironmentHost(talk, {}, score_seconds=0.5)
    first = [said("work") for _ in range(2)]
    later = [said("a", "work", "done")]
    async with started(host):
        replays = [await host.rerun(REF, each, "own") for each in (first, later)]
        replays.append(await host.rerun(REF, [*first, *later], "peers"))
    for found in replays:
        assert (found.loss_reason, found.unscored) == ("", "")
        assert all(each.fault == "" for each in found.reruns)


def test_two_processes_and_this_one_replay_alike(talk: str) -> None:
    transcripts = [said(*(f"{n} {k}" for k in range(n % 4 + 1))) for n in range(16)]
    hosts: list[EnvironmentHost] = [ProcessEnvironmentHost(talk, {}) for _ in range(2)]
    hosts.append(InlineEnvironmentHost(create_environment(talk, {})))
    first, *others = [replayed(host, *transcripts) for host in hosts]
    assert others == [first, first]
    assert replayed(hosts[2], *reversed(transcripts)) == first[::-1]


async def test_too_many_dialogues_and_unknown_tasks_are_refused(host: EnvironmentHost) -> None:
    async with started(host):
        with pytest.raises(ValueError, match="at most 64"):
            await host.rerun(REF, [said("a")] * (MAX_TEXTS + 1))
        with pytest.raises(UnknownTaskError):
            await host.rerun(TaskRef("talk", with_split("2"), "one", 7), [said("a")])


@pytest.mark.parametrize("turns", [1, 17, 0, "4", 2.0])
def test_a_dialogue_has_two_to_sixteen_turns(talk: str, turns: object) -> None:
    with pytest.raises(ConfigError, match="2 to 16"):
        create_environment(talk, {"turns": turns})


@pytest.mark.parametrize("missing", ["turns", "observation", "reward"])
def test_half_a_dialogue_is_no_environment(missing: str) -> None:
    given = {name: None for name in ("derive", "render", "turns", "observation", "reward")}
    given |= {"name": "half", "version": "1", "families": ()}
    del given[missing]
    with pytest.raises(ConfigError, match=f"no '{missing}'"):
        SplitEnvironment(type("Half", (), given)())


@pytest.mark.parametrize("attribute", ["turns", "observation", "reward"])
def test_an_attribute_of_dialogues_beside_a_score_is_named_with_what_to_do(attribute: str) -> None:
    given = {name: None for name in ("derive", "render", "score", attribute)}
    given |= {"name": "one", "version": "1", "families": ()}
    with pytest.raises(ConfigError, match=f"'{attribute}', for a multi-turn environment"):
        SplitEnvironment(type("One", (), given)())


def test_an_answer_to_one_question_is_a_dialogue_of_one_turn() -> None:
    host = InlineEnvironmentHost(environment := create_environment("drills", {}))
    assert environment.turns == 1
    right = environment.answer(task_of(environment))
    assert right is not None
    (found,) = asyncio.run(host.rerun(ref_to(environment), [said(right)])).reruns
    assert found == Rerun(reward=1.0)


class Countdown:
    """Replies with the sum so far, until it reaches the task's number."""

    name, version, families, turns = "countdown", "1", ("one",), 16

    def derive(self, ref: TaskRef) -> Task:
        return Task(ref, ref.seed % 50)

    def render(self, task: Task) -> str:
        return f"{task.ref.seed}"

    def observation(self, task: Task, said: Sequence[str]) -> str | None:
        total = sum(map(len, said))
        return None if total >= task.payload else str(total)

    def reward(self, task: Task, said: Sequence[str]) -> float:
        return float(sum(map(len, said)) == task.payload)


@examples(100)
@given(st.lists(st.text(max_size=9), min_size=1, max_size=16), st.integers(0, 1 << 40))
def test_what_is_said_later_changes_no_earlier_reply(texts: list[str], seed: int) -> None:
    environment = SplitEnvironment(Countdown())
    task = task_of(environment, seed=seed)
    whole = rerun(environment, task, Transcript(texts))
    for count in range(1, len(texts) + 1):
        part = rerun(environment, task, Transcript(texts[:count]))
        assert part.observations == whole.observations[:count]
        if part.over and part.verdict is None:
            assert count > len(whole.observations) + 1
        assert (part.verdict is not None) == (part.over and count == len(part.observations) + 1)
