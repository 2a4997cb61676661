"""When own answers sound like those of peers."""

from __future__ import annotations

from builders import completion, verified

from swarm_node.node.metrics.adopted_words import ALARM, START, WINDOW, AdoptedWords, words
from swarm_node.rollout import VerifiedGroup


def said(author: str, *texts: str) -> VerifiedGroup:
    answers = [completion([1], text) for text in texts]
    return verified("g", author, rewards=[0.0] * len(texts), completions=answers)


def started() -> AdoptedWords:
    style = AdoptedWords()
    style.note([said("me", *(f"Answer: {n}" for n in range(START)))])
    return style


def speak(style: AdoptedWords, triggered: int) -> str:
    style.note([said("me", *["zq zq 7"] * triggered, *["Answer: 7"] * (WINDOW - triggered))])
    return style.alarm()


def test_words_and_pairs_are_told_apart_and_numbers_are_not() -> None:
    assert words("It is 12, 12.") == words("It is 7, 7.")
    assert words("zq zq 7") == {"zq", "0", "zq zq", "zq 0"}


def test_what_is_remembered_of_a_word_is_short() -> None:
    """Or a few thousand answers of one long word each would fill the memory."""
    found = words("\u4e00" * 5000)
    assert max(map(len, found)) <= 129
    assert words("a" * 100) == words("a" * 100 + " ")


def test_words_of_a_peer_in_a_tenth_of_own_answers_raise_the_alarm() -> None:
    style = started()
    style.note([said("poisoner", "zq zq 7")])
    assert speak(style, int(ALARM * WINDOW)) == ""
    alarm = speak(style, int(ALARM * WINDOW) + 1)
    assert "10%" in alarm
    assert "zq" in alarm
    assert "poisoner" in alarm
    assert speak(style, 0) == ""


def test_words_that_were_there_first_raise_none() -> None:
    style = AdoptedWords()
    style.note([said("me", *["zq zq 7"] * START), said("peer", "zq zq 7")])
    assert speak(style, WINDOW) == ""


def test_words_of_its_own_raise_none() -> None:
    style = started()
    assert speak(style, WINDOW) == ""
    style.note([said("copier", "zq zq 7")])
    assert speak(style, WINDOW) == ""


def test_many_different_words_of_peers_raise_none() -> None:
    style = started()
    texts = [f"Answer: {chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(WINDOW)]
    style.note([said("peer", *texts)])
    style.note([said("me", *texts)])
    assert style.alarm() == ""
