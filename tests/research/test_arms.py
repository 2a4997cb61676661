"""The arms of the comparison of batches: which of them get what the others do not."""

from __future__ import annotations

from research.arms import ARMS
from research.scenario import StudyScenario


def test_only_arms_that_say_so_are_filtered_told_or_supervised() -> None:
    plain = StudyScenario()
    of = {arm.name: arm.scenario(plain) for arm in ARMS}
    assert {name for name, each in of.items() if each.filtered} == {"8/0+filter"}
    assert {name: each.told for name, each in of.items() if each.told} == {"sft+default": 20}
    assert {name for name, each in of.items() if each.supervised} == {"supervised"}
    others = [name for name in of if name not in ("8/0+filter", "sft+default", "supervised")]
    assert others
    assert all(of[name] == plain for name in others)
