"""Trust that reports pass on, and what a clique of invented members can take of it."""

from __future__ import annotations

import random

import pytest
from builders import examples
from hypothesis import given
from hypothesis import strategies as st

from coordinator.reputation import RETURN, opinion, summarize_reputation, trust
from swarm_node.p2p.coordinator.coordinator_api import MAX_ROWS


def test_trust_goes_to_who_was_useful_to_who_is_trusted() -> None:
    issuer = {name: name for name in "abcd"}
    shares = trust({"a": {"b": 9.0, "c": 1.0}, "b": {"c": 1.0}}, issuer, {"a"})
    assert shares["a"] > shares["b"] > shares["c"] > shares["d"] == 0.0
    assert sum(shares.values()) == pytest.approx(1.0)


def test_nobody_rates_itself_and_strangers_do_not_count() -> None:
    issuer = {"a": "i", "b": "j"}
    assert trust({"b": {"b": 50.0, "a": 1.0}}, issuer, {"b"}) == trust(
        {"b": {"a": 1.0}}, issuer, {"b"}
    )
    itself = summarize_reputation({"a": 0.5, "b": 0.5}, issuer, {"a": {"a": 9.0, "b": 1.0}})
    assert [row.peer_id for row in itself.rows] == ["b"]
    alone = trust({}, issuer, {"a"})
    assert trust(
        {"a": {"a": 50.0}, "stranger": {"b": 9.0}, "b": {"nobody": 1.0}}, issuer, {"a"}
    ) == (alone)


def test_an_opinion_weighs_issuers_by_their_best_member() -> None:
    issuer = {"a": "one", **{f"s{n}": "many" for n in range(10)}}
    rated = opinion({"a": 5.0, **{f"s{n}": 5.0 for n in range(10)}}, issuer)
    assert rated["a"] == pytest.approx(0.5)
    assert sum(rated[f"s{n}"] for n in range(10)) == pytest.approx(0.5)


def test_no_reports_and_no_members_are_no_fault() -> None:
    assert trust({}, {}, {"x"}) == {}
    assert trust({}, {"a": "i", "b": "i", "c": "j"}, ()) == pytest.approx(
        {"a": 0.25, "b": 0.25, "c": 0.5}
    )


@st.composite
def _swarms(draw: st.DrawFn) -> tuple[random.Random, int, int, int, bool]:
    rng = random.Random(draw(st.integers(0, 2**32)))
    honest, issuers = draw(st.integers(2, 12)), draw(st.integers(1, 3))
    return rng, honest, issuers, draw(st.integers(1, 60)), draw(st.booleans())


@given(_swarms())
@examples(150)
def test_a_clique_has_at_most_its_cap_however_many_keys_it_makes(
    swarm: tuple[random.Random, int, int, int, bool],
) -> None:
    """Honest members came by a ticket each; the clique's by a few, and rate only each other, as
    much as they like. Honest members find some of its groups as useful as those of others."""
    rng, honest, issuers, keys, operator = swarm
    people = [f"honest {n}" for n in range(honest)]
    clique = [f"sybil {n}" for n in range(keys)]
    issuer = {
        **{name: name for name in people},
        **{name: f"ticket {rng.randrange(issuers)}" for name in clique},
    }
    ratings = {
        name: {other: float(rng.randint(0, 50)) for other in [*people, *clique] if other != name}
        for name in people
    }
    ratings |= {name: {other: 1e9 for other in clique if other != name} for name in clique}
    trusted = {people[0]} if operator else set()
    shares = trust(ratings, issuer, trusted)
    tickets = {issuer[name] for name in clique}
    passed = max(
        sum(part for peer, part in opinion(ratings[name], issuer).items() if peer in clique)
        for name in people
    )
    # Without an opinion, trust returns as it began.
    begun = 0.0 if operator else len(tickets) / (len(tickets) + honest)
    passed = max(passed, begun)
    cap = (RETURN * begun + (1 - RETURN) * passed) / (RETURN + (1 - RETURN) * passed)
    assert sum(shares[name] for name in clique) <= cap + 1e-6
    # What honest members pass on is bounded by issuers, not by keys.
    for name in people:
        best = [ratings[name][peer] for peer in people if peer != name]
        most = 50.0 * len(tickets)
        if sum(best):
            given_away = sum(
                part for peer, part in opinion(ratings[name], issuer).items() if peer in clique
            )
            assert given_away <= most / (most + sum(best)) + 1e-9


def test_ten_times_the_keys_get_the_same_share() -> None:
    people = {f"p{n}": f"p{n}" for n in range(5)}

    def share(keys: int) -> float:
        clique = {f"s{n}": "one ticket" for n in range(keys)}
        everybody = {**people, **clique}
        ratings = {name: {other: 10.0 for other in everybody if other != name} for name in people}
        ratings |= {name: {other: 1e9 for other in clique if other != name} for name in clique}
        shares = trust(ratings, everybody, {"p0"})
        return sum(shares[name] for name in clique)

    assert share(20) == pytest.approx(share(2), rel=1e-3)
    assert share(200) == pytest.approx(share(2), rel=1e-3)


def test_keys_of_a_trusted_ticket_take_nothing_from_another_trusted_one() -> None:
    issuer = {"a": "one", **{f"s{n}": "many" for n in range(99)}, "c": "third"}
    shares = trust({}, issuer, {"a", *(f"s{n}" for n in range(99))})
    assert shares["a"] == pytest.approx(0.5)
    assert shares["c"] == 0.0


def test_no_ticket_moves_the_median_or_hides_who_is_trusted_least_by_making_keys() -> None:
    """The keys rate each other, so all of them are rated, and hardly trusted."""
    issuer = {**{name: name for name in "abcde"}, "bad": "bad ticket"}
    ratings = {a: {b: 10.0 for b in "abcde" if b != a} for a in "abcde"}
    ratings["a"]["bad"] = 1.0
    alone = summarize_reputation(trust(ratings, issuer, {"a"}), issuer, ratings)
    keys = [f"key {n}" for n in range(2 * MAX_ROWS)]
    issuer |= dict.fromkeys(keys, "bad ticket")
    ratings |= {key: {keys[n - 1]: 1.0} for n, key in enumerate(keys)}
    crowd = summarize_reputation(trust(ratings, issuer, {"a"}), issuer, ratings)
    assert crowd.median == pytest.approx(alone.median, rel=0.05)
    shown = {row.peer_id: row for row in crowd.rows}
    assert len(crowd.rows) == MAX_ROWS
    assert shown.keys() >= set("abcde")
    (before,) = [row for row in alone.rows if row.peer_id == "bad"]
    assert before.issuer_share < alone.median / 2
    for row in crowd.rows:
        low = row.issuer_share < crowd.median / 2
        assert low == (issuer[row.peer_id] == "bad ticket"), "each of its keys is lowered"


def test_members_of_a_ticket_with_many_are_not_lowered_for_sharing_it() -> None:
    issuer = {**{name: name for name in "abc"}, **{f"s{n}": "many" for n in range(10)}}
    people = list(issuer)
    ratings = {a: {b: 10.0 for b in people if b != a} for a in people}
    found = summarize_reputation(trust(ratings, issuer, ()), issuer, ratings)
    assert all(row.issuer_share >= found.median / 2 for row in found.rows)
