"""Environments in their process, with scorers that do their worst."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from builders import ROOT
from lasting import LastingHost, lasting_host, started

from swarm_node.environments.answers.final import MAX_SCORED_CHARS
from swarm_node.environments.host import (
    WARY_BATCHES,
    EnvironmentHost,
    InlineEnvironmentHost,
    ProcessEnvironmentHost,
    Whose,
)
from swarm_node.environments.registry import create_environment
from swarm_node.environments.scores import MAX_TEXTS, GroupScores
from swarm_node.environments.splits.split import with_split
from swarm_node.environments.workers import processes
from swarm_node.errors import ConfigError, SlowTaskError, UnknownTaskError
from swarm_node.rollout import TaskRef

HOSTILE = '''
import os, re, signal, sys, time

from swarm_node.environments.base import Task
from swarm_node.errors import UnknownTaskError


class Hostile:
    """Does to the process what the text says."""

    name, version, families = "hostile", "1", ("one", "long", "broken", "deadly", "slow")

    def derive(self, ref):
        if ref.family not in self.families:
            raise UnknownTaskError("no such family: use one")
        if ref.family == "broken":
            raise KeyError("lost")
        while ref.family == "slow":
            pass
        if ref.family == "deadly":
            os._exit(4)
        return Task(ref, ref.seed)

    def render(self, task):
        return f"say {task.payload}"

    def score(self, task, text):
        match text:
            case "raise":
                raise RuntimeError("no")
            case "recurse":
                return self.score(task, text)
            case "loop":
                while True:
                    try:
                        sum(range(10**6))
                    except BaseException:
                        pass
            case "wait":
                time.sleep(600)
            case "compute":
                until = time.process_time() + 0.3
                while time.process_time() < until:
                    pass
                return 1.0
            case "doze":
                while True:
                    time.sleep(0.08)
                    sum(range(10**5))
            case "variables":
                return float(not any("secret" in text for text in os.environ.values()))
            case "backtrack":
                re.fullmatch("(a+)+b", "a" * 64)
            case "exit":
                os._exit(3)
            case "leave":
                sys.exit(0)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hoard":
                return float(len(bytearray(8 << 30)))
            case "print":
                print("x" * 100_000)
            case "nan":
                return float("nan")
            case "rounded":
                return sum([.05] * 20)
            case "rounded down":
                return .3 - (.1 + .2)
            case "beyond":
                return 1.00001
            case "below":
                return -.00001
            case "two":
                return 2
            case "minus":
                return -0.5
            case "word":
                return "good"
            case "none":
                return None
        return float(text.lstrip("é") == str(task.payload))


def create(level=1, seconds=0.0):
    if level == 0:
        raise ZeroDivisionError
    hostile = Hostile()
    hostile.score_seconds = seconds
    return hostile
'''
T = TypeVar("T")
#: `make test-fast` takes one text of two that end a judge alike, and one side of two.
WAITED_OUT = pytest.mark.slow(reason="a limit is waited out")
VERSION = with_split("1")
REF = TaskRef("hostile", VERSION, "one", 7)
#: Its text is held out, so that no training reference makes it.
HELD_OUT = 9
#: Those that make tasks.
FAMILIES = ("one", "long")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of an environment that a child process can import."""
    place = tmp_path_factory.mktemp("hostile")
    (place / "hostile_environment.py").write_text(HOSTILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(place))
        patch.syspath_prepend(place)
        yield "hostile_environment:create"


@pytest.fixture(scope="module")
def lasting(hostile: str) -> Iterator[LastingHost]:
    with lasting_host(ProcessEnvironmentHost(hostile, {}, FAMILIES)) as host:
        yield host


@pytest.fixture(scope="module")
def impatient(hostile: str) -> Iterator[LastingHost]:
    limits = {"derive_seconds": 0.3, "score_seconds": 0.15}
    with lasting_host(ProcessEnvironmentHost(hostile, {}, FAMILIES, **limits)) as host:
        yield host


def with_host(host: EnvironmentHost, use: Callable[[EnvironmentHost], Awaitable[T]]) -> T:
    async def main() -> T:
        async with started(host):
            return await use(host)

    return asyncio.run(main())


async def test_a_group_is_judged_in_another_process(hostile: str) -> None:
    host = ProcessEnvironmentHost(hostile, {}, FAMILIES)

    info = await host.start()
    assert (info.name, info.version, info.families[0]) == ("hostile", VERSION, "one")
    assert None not in (host.pids["environment"], host.pids["scoring_own"])
    assert os.getpid() not in host.pids.values()
    assert await host.render([REF, TaskRef("hostile", VERSION, "one", 8)]) == ["say 7", "say 8"]
    judged = await host.score(REF, ["7", "8", "7"])
    assert (judged.prompt, judged.rewards) == ("say 7", (1.0, 0.0, 1.0))
    assert (judged.faults, judged.fault_reason) == (0, "")
    assert (await host.score(REF, [])).rewards == ()
    await host.close()
    assert set(host.pids.values()) == {None}


OTHER = TaskRef("hostile", VERSION, "long", 8)


async def test_a_batch_of_groups_is_judged_as_each_alone_and_in_this_process(hostile: str) -> None:
    groups = [(REF, ["7", "\ud800", "raise"]), (OTHER, ["8", "nan"]), (OTHER, [])]
    host = ProcessEnvironmentHost(hostile, {}, FAMILIES)
    inline = InlineEnvironmentHost(create_environment(hostile, {}), FAMILIES)
    async with started(host) as info, started(inline) as same:
        assert (info.name, info.version, info.families) == (same.name, same.version, same.families)
        alone = [await host.score(ref, texts) for ref, texts in groups]
        asked = host._scoring_workers["own"]._groups
        began = time.monotonic()
        together = await host.score_all(groups)
        assert 0 < sum(each.seconds for each in together) <= time.monotonic() - began
        assert together == alone == list(await inline.score_all(groups))
        assert host._scoring_workers["own"]._groups == asked + len(groups)
        for each in (host, inline):
            assert await each.render([REF]) == ["say 7"]
            with pytest.raises(UnknownTaskError):
                await each.render([TaskRef("hostile", VERSION, "broken", 1)])


@pytest.fixture
def little_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judges may sleep for little longer than they may compute."""
    monkeypatch.setattr(processes, "_SLACK_SECONDS", 0.2)


@pytest.mark.slow(reason="judges are ended and started again")
@pytest.mark.parametrize("text", ["exit", "loop", "wait"])
def test_a_group_that_ends_the_judge_of_its_batch_costs_the_others_nothing(
    request: pytest.FixtureRequest, impatient: LastingHost, text: str
) -> None:
    if text == "wait":
        request.getfixturevalue("little_sleep")
    groups = [(REF, ["7"]), (OTHER, ["8", text]), (REF, ["8", "7"])]
    judged = impatient.use(lambda host: host.score_all(groups))
    assert [each.rewards for each in judged] == [(1.0,), (1.0, 0.0), (0.0, 1.0)]
    assert [each.faults for each in judged] == [0, 1, 0]
    # The next batches are judged group by group: a policy that gave such a text gives more of them.
    before = impatient.host.losses
    judged = impatient.use(lambda host: host.score_all(groups[:1]))
    assert (judged[0].rewards, impatient.host.losses) == ((1.0,), before)
    assert impatient.host._wary_batches == WARY_BATCHES - 1
    impatient.host._wary_batches = 0


def test_a_task_of_a_batch_that_cannot_be_made_is_named(lasting: LastingHost) -> None:
    unknown = TaskRef("hostile", VERSION, "none", 7)
    with pytest.raises(UnknownTaskError, match="'none'"):
        lasting.use(lambda host: host.score_all([(REF, ["7"]), (unknown, ["7"])]))
    lasting.host._wary_batches = 0


@pytest.mark.parametrize(
    ("text", "reason", "raised"),
    [
        ("nan", "out_of_range", ""),
        ("two", "out_of_range", ""),
        ("beyond", "out_of_range", ""),
        ("below", "out_of_range", ""),
        ("minus", "out_of_range", ""),
        ("\ud800", "unsendable", ""),
        ("exit", "crashed", ""),
        ("leave", "crashed", ""),
        ("segfault", "crashed", ""),
        ("raise", "", "RuntimeError"),
        ("recurse", "", "RecursionError"),
        ("hoard", "", "MemoryError"),
        ("word", "", "ValueError"),
        ("none", "", "TypeError"),
        ("print", "", ""),
    ],
)
def test_whatever_a_scorer_does_costs_one_reward(
    lasting: LastingHost, text: str, reason: str, raised: str
) -> None:
    """An exception is a wrong answer and no fault. Only what ends the judge costs processes."""
    before = lasting.host.losses
    judged = lasting.use(lambda h: h.score(REF, ["7", text, "7"]))
    assert (judged.rewards, judged.prompt) == ((1.0, 0.0, 1.0), "say 7")
    assert (judged.faults, judged.fault_reason, judged.exception) == (bool(reason), reason, raised)
    assert lasting.host.losses == before + 2 * (reason == "crashed")


@pytest.mark.parametrize("whose", ["own", "peers"])
def test_a_reward_that_rounding_put_beyond_a_bound_is_the_bound(
    lasting: LastingHost, whose: Whose
) -> None:
    assert sum([0.05] * 20) > 1.0 > 0.0 > 0.3 - (0.1 + 0.2)
    judged = lasting.use(lambda h: h.score(REF, ["rounded", "rounded down", "7"], whose))
    assert (judged.rewards, judged.faults) == ((1.0, 0.0, 1.0), 0)


def test_only_the_end_of_a_long_text_is_judged(hostile: str, lasting: LastingHost) -> None:
    end = "7".rjust(MAX_SCORED_CHARS, "é")
    texts = ["7" * 1_000_000, "raise" + end, end, "\ud800" * MAX_SCORED_CHARS + end]

    async def use(host: EnvironmentHost) -> tuple[object, ...]:
        return await host.score(TaskRef("hostile", VERSION, "long", 7), texts)

    judged = lasting.use(use)
    assert judged.rewards == (0.0, 1.0, 1.0, 1.0)
    assert judged.faults == 0
    assert judged == with_host(
        InlineEnvironmentHost(create_environment(hostile, {}), FAMILIES), use
    )


@pytest.mark.parametrize("text", ["loop", pytest.param("backtrack", marks=WAITED_OUT)])
def test_a_scorer_that_never_returns_is_ended(impatient: LastingHost, text: str) -> None:
    judged = impatient.use(lambda h: h.score(REF, ["7", text, "7"]))
    assert judged.rewards == (1.0, 0.0, 1.0)
    assert (judged.faults, judged.fault_reason) == (1, "timeout")


@pytest.mark.slow(reason="scores for seconds")
@pytest.mark.parametrize("whose", ["own", "peers"])
@pytest.mark.parametrize(
    ("seconds", "right", "wrong"), [(1.0, 1, 1), (0.4, 2, 14)], ids=["a group", "a larger one"]
)
def test_an_environment_says_how_much_time_its_scorer_needs_for_eight_answers(
    hostile: str, whose: Whose, seconds: float, right: int, wrong: int
) -> None:
    """Each right answer takes 0.3 s. A group of sixteen has twice the time of one of eight."""
    host = ProcessEnvironmentHost(hostile, {"seconds": seconds}, FAMILIES, score_seconds=0.1)
    texts = ["compute"] * right + ["no"] * wrong

    async def use(host: EnvironmentHost) -> GroupScores:
        while (judged := await host.score(REF, texts, whose)).unscored:
            pass  # a judge of peers' groups is nice: on a busy machine it gets no processor
        return judged

    judged = with_host(host, use)
    rewards = (*[1.0] * right, *[0.0] * wrong)
    assert (judged.rewards, judged.faults, judged.loss_reason) == (rewards, 0, "")


@pytest.mark.parametrize("text", ["loop", pytest.param("backtrack", marks=WAITED_OUT)])
def test_peers_texts_that_use_up_their_time_are_not_scored(
    impatient: LastingHost, text: str
) -> None:
    judged = impatient.use(lambda h: h.score(REF, ["7", text, "7"], "peers"))
    assert (judged.loss_reason, judged.rewards, judged.faults) == ("timeout", (0.0, 0.0, 0.0), 0)


@pytest.mark.slow(reason="waits for judges that sleep")
@pytest.mark.skipif(sys.platform != "linux", reason="states of threads are Linux's")
@pytest.mark.parametrize("text", ["wait", "doze"])
@pytest.mark.usefixtures("little_sleep")
def test_a_judge_that_sleeps_is_ended_soon_and_all_of_its_time_counts(
    hostile: str, text: str
) -> None:
    host = ProcessEnvironmentHost(hostile, {}, FAMILIES, derive_seconds=0.3, score_seconds=0.3)
    judged = with_host(host, lambda h: h.score(REF, ["7", text]))
    assert (judged.rewards, judged.fault_reason) == ((1.0, 0.0), "asleep")
    judged = with_host(host, lambda h: h.score(REF, ["7", text, "7"], "peers"))
    # Another reason than "asleep" would say that all patience was used up.
    assert (judged.rewards, judged.loss_reason, judged.unscored) == ((0.0, 0.0, 0.0), "asleep", "")
    assert judged.seconds > 2 * (0.3 + 0.2), "two judges"


@pytest.mark.slow(reason="judges are ended and started again")
@pytest.mark.parametrize("text", ["exit", "leave", "segfault"])
def test_peers_texts_that_end_fresh_judges_are_blamed(hostile: str, text: str) -> None:
    async def use(host: EnvironmentHost) -> None:
        for before in ([], ["7", "8"]):  # in a judge that has seen no text, and in a used one
            await host.score(REF, before, "peers")
            judged = await host.score(REF, ["7", text, "7"], "peers")
            assert (judged.loss_reason, judged.unscored, judged.prompt) == ("crashed", "", "say 7")
            assert judged.rewards == (0.0, 0.0, 0.0)
        assert (await host.score(REF, ["7"], "peers")).rewards == (1.0,)

    with_host(ProcessEnvironmentHost(hostile, {}, FAMILIES), use)


def test_peers_texts_that_run_out_of_a_judges_own_memory_are_wrong(lasting: LastingHost) -> None:
    judged = lasting.use(lambda h: h.score(REF, ["7", "hoard", "7"], "peers"))
    assert (judged.rewards, judged.exception) == ((1.0, 0.0, 1.0), "MemoryError")
    assert (judged.loss_reason, judged.unscored) == ("", "")


def test_own_answers_do_not_wait_for_peers(lasting: LastingHost) -> None:
    async def use(running: EnvironmentHost) -> None:
        peers = asyncio.ensure_future(running.score(REF, ["wait"], "peers"))
        await running.score(REF, [], "own")
        assert (await running.score(REF, ["7"])).rewards == (1.0,)
        assert not peers.done()
        peers.cancel()
        await asyncio.gather(peers, return_exceptions=True)
        assert (await running.score(REF, ["7"], "peers")).rewards == (1.0,)

    lasting.use(use)


def test_a_judge_is_given_few_variables(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("SWARM_NODE_TICKET", "secret")
    judged = with_host(
        ProcessEnvironmentHost(hostile, {}, FAMILIES), lambda h: h.score(REF, ["variables", "7"])
    )
    assert judged.rewards == (1.0, 1.0)


def test_a_group_of_killers_is_given_up(lasting: LastingHost) -> None:
    before = lasting.host.losses

    async def use(running: EnvironmentHost) -> None:
        judged = await running.score(REF, ["exit", "7", "exit", *["7"] * 5])
        assert judged.rewards == (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        assert (judged.faults, judged.fault_reason) == (7, "crashed")
        assert (await running.score(REF, ["7"])).rewards == (1.0,)

    lasting.use(use)
    assert lasting.host.losses == before + 3


def test_a_process_killed_from_outside_is_not_the_fault_of_a_text(lasting: LastingHost) -> None:
    host = lasting.host

    async def use(running: EnvironmentHost) -> None:
        await running.score(REF, ["7"])  # another test may have lost the judge
        for _ in range(3):
            os.kill(host.pids["scoring_own"], signal.SIGKILL)
            judged = await running.score(REF, ["7", "8"])
            assert (judged.rewards, judged.faults) == ((1.0, 0.0), 0)
        os.kill(host.pids["environment"], signal.SIGKILL)
        assert await running.render([REF]) == ["say 7"]
        assert (await running.score(REF, ["7"], "peers")).rewards == (1.0,)

    lasting.use(use)


def test_many_judgements_at_once_keep_apart(lasting: LastingHost) -> None:
    async def use(host: EnvironmentHost) -> None:
        refs = [TaskRef("hostile", VERSION, "one", seed) for seed in range(20) if seed != HELD_OUT]
        texts = ["raise", "3", "exit", "5"]
        results = await asyncio.gather(*(host.score(ref, texts) for ref in refs))
        for ref, judged in zip(refs, results, strict=True):
            assert judged.prompt == f"say {ref.seed}"
            assert judged.rewards == (0.0, float(ref.seed == 3), 0.0, float(ref.seed == 5))

    lasting.use(use)


@pytest.mark.parametrize("family", ["unknown", "broken", "deadly"])
def test_a_task_that_cannot_be_made_is_unknown(lasting: LastingHost, family: str) -> None:
    async def use(host: EnvironmentHost) -> None:
        for whose in ("own", "peers"):
            with pytest.raises(UnknownTaskError):
                await host.score(TaskRef("hostile", VERSION, family, 1), ["7"], whose)
        assert (await host.score(REF, ["7"])).rewards == (1.0,)

    lasting.use(use)


@pytest.mark.slow(reason="waits for a judge's limit")
def test_a_task_that_takes_too_long_may_be_made_elsewhere(hostile: str) -> None:
    async def use(host: EnvironmentHost) -> None:
        with pytest.raises(SlowTaskError, match="that family") as slow:
            await host.score(TaskRef("hostile", VERSION, "slow", 1), ["7"], "peers")
        assert slow.value.seconds == pytest.approx(0.2)
        assert (await host.score(REF, ["7"], "peers")).rewards == (1.0,)

    with_host(ProcessEnvironmentHost(hostile, {}, FAMILIES, derive_seconds=0.1), use)


def test_too_many_texts_are_a_bug_of_the_caller(lasting: LastingHost) -> None:
    async def use(host: EnvironmentHost) -> None:
        with pytest.raises(ValueError, match=str(MAX_TEXTS)):
            await host.score(REF, ["7"] * (MAX_TEXTS + 1))

    lasting.use(use)


def test_a_cancelled_judgement_leaves_a_host_that_works(lasting: LastingHost) -> None:
    async def use(host: EnvironmentHost) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await host.score(REF, ["wait"])
        assert (await host.score(REF, ["7"])).rewards == (1.0,)

    lasting.use(use)


@pytest.mark.slow(reason="starts processes")
@pytest.mark.parametrize(
    ("name", "options"),
    [("no_such_environment", {}), ("hostile_environment:create", {"color": 1})],
)
async def test_what_cannot_start_says_so(hostile: str, name: str, options: dict[str, Any]) -> None:
    host = ProcessEnvironmentHost(name, options)
    try:
        for _ in range(2):
            with pytest.raises(ConfigError):
                await host.start()
            assert set(host.pids.values()) == {None}
    finally:
        await host.close()


@pytest.mark.parametrize("which", ["derive_seconds", "score_seconds"])
def test_no_time_at_all_is_refused(which: str) -> None:
    with pytest.raises(ValueError, match="0 seconds"):
        ProcessEnvironmentHost("drills", {}, **{which: 0.0})  # type: ignore[arg-type]


def test_a_judge_is_fresh_until_it_has_judged_a_group(lasting: LastingHost) -> None:
    (judge,) = (judge for whose, judge in lasting.host._scoring_workers.items() if whose == "peers")
    lasting.use(lambda host: host.score(REF, ["7"], "peers"))
    assert not judge.fresh
    lasting.use(lambda _: judge.close())
    assert judge.fresh
    lasting.use(lambda _: judge.derive([(REF.environment, REF.version, REF.family, REF.seed)], 5.0))
    assert judge.fresh, "no text was near it yet"


@pytest.mark.slow(reason="starts a judge")
def test_the_example_in_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "writing-environments.md"
    example, _ = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "successor.py").write_text(example)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def use(host: EnvironmentHost) -> None:
        info = await host.start()
        ref = TaskRef(info.name, info.version, "small", 11)
        (prompt,) = await host.render([ref])
        number = int(re.findall(r"\d+", prompt)[0])
        judged = await host.score(ref, [f" {number + 1}", str(number)])
        assert judged.rewards == (1.0, 0.0)
        with pytest.raises(UnknownTaskError):
            await host.score(TaskRef(info.name, "2", "small", 11), ["1"])

    with_host(ProcessEnvironmentHost("successor:create", {}), use)
