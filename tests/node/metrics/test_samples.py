"""Which answers a node keeps for its owner."""

from __future__ import annotations

from dataclasses import replace

from builders import completion, verified

from swarm_node.node.loops.sampling.multi_turn import join_turns
from swarm_node.node.metrics.samples import Samples
from swarm_node.rollout import Finish, Provenance


def own(family: str, answer: str, version: int, rewards: tuple[float, ...] = (0.0, 1.0)):  # type: ignore[no-untyped-def]
    answers = [completion([1], answer, versions=[version]), completion([1], "other")]
    return verified(family=family, rewards=rewards, completions=answers).group


def test_the_first_and_the_newest_own_answer_and_a_right_one_of_a_peer() -> None:
    samples = Samples()
    for version, answer in enumerate(("Yes", "5", "6")):
        samples.add_local_group(own("gcd", answer, version), "gcd of 12 and 18?")
    theirs = verified(
        author="peer",
        family="gcd",
        rewards=(0.0, 1.0),
        completions=[completion([1], "wrong"), completion([1], "right")],
        provenance=Provenance.SAME_MODEL,
    )
    samples.external(theirs)
    samples.add_local_group(own("primes", "7", 0), "next prime?")
    rows = samples.rows()
    assert [(r.family, r.completion, r.author, r.reward) for r in rows] == [
        ("gcd", "Yes", "", 0.0),
        ("gcd", "6", "", 0.0),
        ("gcd", "right", "peer", 1.0),
        ("primes", "7", "", 0.0),
    ]
    assert [r.version for r in rows[:2]] == [0, 2]
    assert [r.family for r in samples.examples(1)] == ["primes"]
    assert "gcd of" in rows[0].prompt


def test_a_dialogue_is_kept_text_by_text() -> None:
    samples = Samples()
    turns = join_turns([completion([1], "13"), completion([2], "14")])
    group = replace(own("guess", "x", 0), completions=(turns, turns))
    samples.add_local_group(group, "Guess my number from 12 to 14.", [["higher"], ["higher"]])
    (row,) = samples.rows()
    assert row.turns == ["13", "higher", "14"]
    assert row.completion == "13\n> higher\n14"
    many = join_turns([completion([1], f"{n}" * 500) for n in range(16)])
    group = replace(group, completions=(many, many))
    samples.add_local_group(group, "q", [["r" * 1000] * 15] * 2)
    last = samples.rows()[-1].turns
    assert len(last) == 9
    assert (last[0][-2:], last[1][-1], last[-1][-2:]) == ("11", "r", "15")
    assert max(map(len, last)) == 200


def test_what_is_kept_is_bounded_in_number_and_length() -> None:
    samples = Samples()
    for number in range(1000):
        samples.add_local_group(own(str(number), "x" * 100_000, 0), "q" * 100_000)
    rows = samples.rows()
    assert len(rows) <= 3 * 64
    assert all(len(row.completion) <= 400 and len(row.prompt) <= 400 for row in rows)
    assert samples.recent().groups == 256


def test_the_share_of_mixed_rewards_is_that_of_the_newest_groups() -> None:
    samples = Samples()
    assert samples.recent().groups == 0
    equal = own("gcd", "x", 0, rewards=(1.0, 1.0))
    for _ in range(300):
        samples.add_local_group(own("gcd", "x", 0), "q")
    for _ in range(64):
        samples.add_local_group(replace(equal), "q")
    recent = samples.recent()
    assert (recent.groups, recent.mixed) == (256, 192)
    assert recent.reward == (192 * 0.5 + 64) / 256


def test_answers_that_ran_out_of_tokens_are_counted_among_the_newest_groups() -> None:
    samples = Samples()
    answers = [completion([1], finish=finish) for finish in (Finish.STOP, *[Finish.LENGTH] * 3)]
    cut = verified(rewards=(0.0,) * 4, completions=answers).group
    for _ in range(2):
        samples.add_local_group(cut, "q")
    samples.add_local_group(own("gcd", "x", 0), "q")
    recent = samples.recent()
    assert (recent.groups, recent.completions, recent.truncated) == (3, 10, 6)
