"""By what a group is known again."""

from __future__ import annotations

from builders import completion, verified

from swarm_node.p2p.content import content_mark, marks
from swarm_node.rollout import RolloutGroup


def group(*texts: str, seed: int = 0) -> RolloutGroup:
    answers = [completion([1], text) for text in texts]
    return verified(seed=seed, rewards=[0.0] * len(texts), completions=answers).group


def test_order_and_white_space_make_no_new_content() -> None:
    assert content_mark(group("a b", "c")) == content_mark(group("c", " a\n b "))
    assert content_mark(group("a b", "c")) != content_mark(group("ab", "c"))
    assert content_mark(group("a", "b")) != content_mark(group("a b"))


def test_another_seed_of_the_same_question_makes_no_new_content() -> None:
    assert content_mark(group("a", seed=1)) != content_mark(group("a", seed=2))
    assert content_mark(group("a", seed=1), "q") == content_mark(group("a", seed=2), "q")
    assert content_mark(group("a"), "q") != content_mark(group("a"), "r")


def test_each_author_of_a_task_has_a_mark_of_its_own() -> None:
    mine, yours = (marks(group("a"), "q", author) for author in ("me", "you"))
    assert set(mine) & set(yours) == {content_mark(group("a")), content_mark(group("a"), "q")}


def test_a_text_that_is_no_unicode_has_a_mark() -> None:
    assert content_mark(group("\ud800")) != content_mark(group("\ud801"))
