"""What a completion of several turns must be like."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import completion, dialogue

from swarm_node.rollout import MAX_TURNS, EarlierTurn


def test_an_answer_is_a_dialogue_of_one_turn() -> None:
    answer = completion([5, 6], "x")
    assert (answer.turn_texts, answer.ends) == (("x",), (2,))
    talk = dialogue([("hi", [7, 8]), ("", [9]), ("ho", [7])])
    assert (talk.turn_texts, talk.ends) == (("hi", "", "ho"), (2, 3, 4))


@pytest.mark.parametrize("ends", [(0,), (2,), (1, 1), (3,), (-1,)])
def test_a_turn_without_a_token_is_none(ends: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a token"):
        replace(completion([5, 6]), earlier_turns=tuple(EarlierTurn("x", end) for end in ends))


def test_a_dialogue_has_at_most_sixteen_turns() -> None:
    turns = [("x", [5])] * MAX_TURNS
    assert len(dialogue(turns).turn_texts) == 16
    with pytest.raises(ValueError, match="16 turns"):
        dialogue([*turns, ("x", [5])])
