"""By what a group is known again."""

from __future__ import annotations

from builders import completion, verified

from swarm_node.p2p.exchange.verify import content_digest, digests
from swarm_node.rollout import RolloutGroup


def group(*texts: str, seed: int = 0) -> RolloutGroup:
    answers = [completion([1], text) for text in texts]
    return verified(seed=seed, rewards=[0.0] * len(texts), completions=answers).group


def test_order_and_white_space_make_no_new_content() -> None:
    assert content_digest(group("a b", "c")) == content_digest(group("c", " a\n b "))
    assert content_digest(group("a b", "c")) != content_digest(group("ab", "c"))
    assert content_digest(group("a", "b")) != content_digest(group("a b"))


def test_another_seed_of_the_same_question_makes_no_new_content() -> None:
    assert content_digest(group("a", seed=1)) != content_digest(group("a", seed=2))
    assert content_digest(group("a", seed=1), "q") == content_digest(group("a", seed=2), "q")
    assert content_digest(group("a"), "q") != content_digest(group("a"), "r")


def test_each_author_of_a_task_has_a_digest_of_its_own() -> None:
    mine, yours = (digests(group("a"), "q", author) for author in ("me", "you"))
    assert set(mine) & set(yours) == {content_digest(group("a")), content_digest(group("a"), "q")}


def test_a_text_that_is_no_unicode_has_a_digest() -> None:
    assert content_digest(group("\ud800")) != content_digest(group("\ud801"))
