"""Blame for a lost judge: every end, every sequence of a few, every outcome of a control."""

from __future__ import annotations

import itertools
import signal
from typing import get_args

import pytest

from swarm_node.environments.workers.fault_attribution import (
    FROM_OUTSIDE,
    MUCH_MEMORY,
    SUSPECT,
    TRIES,
    WAITED,
    WAITED_TRIES,
    Attempt,
    Reason,
    Step,
    WorkerEnd,
    next_step,
    reason_of,
)

REASONS: tuple[Reason, ...] = get_args(Reason)
LITTLE, MUCH = 0, MUCH_MEMORY
#: Of a limit of 5 s. A timer that counts ticks is some percent off.
UNUSED, USED = 0.01, 4.3


@pytest.mark.parametrize("grown", [LITTLE, MUCH])
@pytest.mark.parametrize("seconds", [UNUSED, USED])
def test_every_status_has_a_reason_that_follows_from_what_the_judge_used(
    seconds: float, grown: int
) -> None:
    for status in (*range(256), *(-number for number in signal.valid_signals())):
        expected = "crashed"
        if status == -signal.SIGKILL and grown == MUCH:
            expected = "memory"
        elif -status in FROM_OUTSIDE:
            expected = "killed"
        elif seconds == USED:
            timers = {-signal.SIGPROF: "timeout", -signal.SIGVTALRM: "derive"}
            expected = timers.get(status, "crashed")
        assert reason_of(WorkerEnd(status, seconds, grown), 5.0) == expected, status


def test_a_judge_whose_environment_died_is_this_nodes_fault() -> None:
    assert reason_of(WorkerEnd(None), 5.0) == "own"


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("fresh", [True, False])
def test_one_end_blames_nobody(reason: Reason, fresh: bool) -> None:
    for control in (None, True, False):
        assert next_step([Attempt(reason, fresh)], control) is Step.AGAIN


@pytest.mark.parametrize("control", [None, True, False])
def test_every_pair_of_ends(control: bool | None) -> None:
    kinds = [Attempt(reason, fresh) for reason in REASONS for fresh in (True, False)]
    for first, last in itertools.product(kinds, kinds):
        expected = Step.AGAIN
        if first.reason in SUSPECT and last.reason in SUSPECT and last.is_fresh:
            expected = {None: Step.CONTROL, True: Step.BLAME, False: Step.OWN_FAULT}[control]
        elif first.reason == last.reason == "asleep" and last.is_fresh:
            expected = {None: Step.CONTROL, True: Step.ASLEEP, False: Step.OWN_FAULT}[control]
        elif first.reason in WAITED and last.reason in WAITED:
            expected = Step.NOBODY
        assert next_step([first, last], control) is expected, (first, last)


def test_no_sequence_without_two_suspect_ends_blames_anybody() -> None:
    for length in range(1, 5):
        for reasons in itertools.product(REASONS, repeat=length):
            if sum(reason in SUSPECT for reason in reasons) >= 2 or reasons.count("asleep") >= 2:
                continue
            past = [Attempt(reason, True) for reason in reasons]
            for control in (None, True, False):
                found = next_step(past, control)
                assert found not in (Step.BLAME, Step.ASLEEP, Step.CONTROL), reasons


def test_every_sequence_comes_to_an_end_and_a_control_has_the_last_word() -> None:
    ends = {Step.BLAME, Step.ASLEEP, Step.NOBODY, Step.OWN_FAULT}
    kinds = ("crashed", "killed", "stuck", "asleep", "own")
    for reasons in itertools.product(kinds, repeat=TRIES):
        found = None
        for count in range(1, TRIES + 1):
            past = [Attempt(reason, count > 1) for reason in reasons[:count]]
            found = next_step(past)
            if found is Step.CONTROL:
                assert next_step(past, control=False) is Step.OWN_FAULT
                found = next_step(past, control=True)
                assert found in (Step.BLAME, Step.ASLEEP)
            if found in ends:
                break
        assert found in ends
        assert sum(reason in WAITED for reason in reasons[:count]) <= WAITED_TRIES


def test_only_what_a_text_can_cause_is_suspect() -> None:
    assert set(REASONS) - SUSPECT == {"starved", "killed", "stuck", "asleep", "own"}
