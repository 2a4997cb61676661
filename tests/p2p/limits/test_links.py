"""The connections and links that end when there are too many."""

from __future__ import annotations

from swarm_node.p2p.limits.links import (
    HANDSHAKES,
    HANDSHAKES_PER_SITE,
    LinkPlace,
    choose_connection_to_drop,
    surplus,
)


def test_below_the_limit_nobody_loses_a_link() -> None:
    assert surplus([], 1) == []
    assert surplus([LinkPlace("a", 0)] * 3, 3) == []


def test_the_source_with_the_most_loses_its_oldest_links() -> None:
    places = [LinkPlace(source, 0) for source in ("honest", "flood", "flood", "other", "flood")]
    assert surplus(places, 4) == [1]
    assert surplus(places, 3) == [1, 2]


def test_a_flood_of_newer_links_ends_no_older_one_of_others() -> None:
    places = [LinkPlace(f"honest {number}", 0) for number in range(100)]
    places += [LinkPlace("flood", 0)] * 1000
    assert surplus(places, 200) == list(range(100, 1000))


def test_a_link_of_a_higher_rank_outlives_all_of_a_lower_one() -> None:
    places = [LinkPlace("large", 1)] * 5 + [LinkPlace("stranger", 0), LinkPlace("another", 0)]
    assert surplus(places, 5) == [5, 6]
    assert surplus(places, 4) == [5, 6, 0]


def test_there_is_room_for_a_connection_until_its_site_has_its_part_or_all_have() -> None:
    assert choose_connection_to_drop([], "a") is None
    part = ["a"] * HANDSHAKES_PER_SITE
    assert choose_connection_to_drop(part[1:], "a") is None
    assert choose_connection_to_drop(["b", *part], "a") == 1
    assert choose_connection_to_drop(part, "b") is None


def test_of_all_connections_the_oldest_of_the_site_with_the_most_makes_room() -> None:
    sites = [f"single {number}" for number in range(HANDSHAKES - 10)] + ["flood"] * 10
    assert choose_connection_to_drop(sites, "newcomer") == HANDSHAKES - 10
    assert choose_connection_to_drop(sites[:-1], "newcomer") is None
