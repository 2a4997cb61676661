"""What peers' groups were trained on, by author and family."""

from builders import verified

from swarm_node.node.metrics.trained_groups import MAX_PAIRS, TrainedGroups


def test_groups_and_good_answers_are_counted_by_author_and_family() -> None:
    taught = TrainedGroups()
    taught.add(verified(author="a", family="gcd", rewards=(0.0, 1.0, 1.0)))
    taught.add(verified(author="a", family="gcd", rewards=(0.0, 0.0, 1.0)))
    taught.add(verified(author="b", family="gcd"))
    taught.add(verified(author="a", family="primes"))
    expected = [("a", "gcd", 2, 3), ("b", "gcd", 1, 1), ("a", "primes", 1, 1)]
    assert [(r.peer_id, r.family, r.groups, r.rollouts) for r in taught.rows()] == expected
    again = TrainedGroups(taught.rows())
    again.add(verified(author="a", family="gcd"))
    assert [(r.peer_id, r.groups) for r in again.rows()] == [("b", 1), ("a", 1), ("a", 3)]


def test_authors_that_come_and_go_take_no_memory() -> None:
    taught = TrainedGroups()
    for number in range(2 * MAX_PAIRS):
        taught.add(verified(author=str(number)))
    rows = taught.rows()
    assert len(rows) == MAX_PAIRS
    assert rows[-1].peer_id == str(2 * MAX_PAIRS - 1)
