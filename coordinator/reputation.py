"""Trust in members, computed from their reports, after EigenTrust (Kamvar, Schlosser and
Garcia-Molina, 2003, doi 10.1145/775152.775242). Pure.

A member passes its own trust on to those whose groups it found useful, and a part of all trust
returns to those that the operator trusts beforehand. Keys cost nothing, so a member's opinion
counts by issuer: the weight of an issuer is that of its best member, and its members share it.

A set of members that rate only each other gets from all others the share e of their trust, and the
share p of what returns. Then its own share is at most (a p + (1 - a) e) / (a + (1 - a) e), with
a = RETURN, however many keys it has. Opinions weigh issuers, so e and p do not grow with keys.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from swarm_node.p2p.coordinator.coordinator_api import MAX_ROWS, Reputation, ReputationRow
from swarm_node.p2p.limits.round_robin import in_turn

#: The part of all trust that returns to the pre-trusted in each step.
RETURN: Final = 0.2
_MOST_STEPS = 100
_PRECISION = 1e-9

#: For each rater, how many useful groups it got from whom.
Ratings = Mapping[str, Mapping[str, float]]
_Item = TypeVar("_Item")


def trust(
    ratings: Ratings, issuer: Mapping[str, str], trusted_ids: Collection[str]
) -> dict[str, float]:
    """The share of each member in all trust; the shares add up to 1. `issuer` has all members and
    who admitted each. A peer outside it neither rates nor is rated. The issuers of the
    `trusted_ids` are trusted alike; if nobody is, all issuers are."""
    members = sorted(issuer)
    if not members:
        return {}
    place = {peer_id: index for index, peer_id in enumerate(members)}
    start = _start(place, issuer, trusted_ids)
    source, target, weight = _edges(ratings, issuer, place)
    is_silent = np.ones(len(members), dtype=bool)
    is_silent[source] = False
    shares = start
    for _ in range(_MOST_STEPS):
        inflow = np.zeros(len(members))
        np.add.at(inflow, target, weight * shares[source])
        # A member without an opinion passes its trust to the pre-trusted.
        inflow += shares[is_silent].sum() * start
        following = (1 - RETURN) * inflow + RETURN * start
        change = float(np.abs(following - shares).sum())
        shares = following
        if change < _PRECISION:
            break
    return {peer_id: float(shares[index]) for peer_id, index in place.items()}


def summarize_reputation(
    shares: Mapping[str, float],
    issuer: Mapping[str, str],
    ratings: Ratings,
) -> Reputation:
    """The shares of members about whom others reported, the least trusted first. The median is over
    issuers. Of too many rows each issuer keeps equally many. So further keys of a ticket change
    neither."""
    raters = Counter(
        peer_id for rater, scores in ratings.items() for peer_id in scores if peer_id != rater
    )
    of: defaultdict[str, list[str]] = defaultdict(list)
    for peer_id in sorted(shares, key=lambda peer_id: (shares[peer_id], peer_id)):
        if raters[peer_id]:
            of[issuer[peer_id]].append(peer_id)
    lowest = [peer_id for members in of.values() for peer_id in members]
    sums = {key: min(1.0, sum(map(shares.__getitem__, members))) for key, members in of.items()}
    rows = [
        ReputationRow(peer_id, min(1.0, shares[peer_id]), sums[issuer[peer_id]], raters[peer_id])
        for peer_id in in_turn(lowest, issuer.__getitem__, MAX_ROWS)
    ]
    rows.sort(key=lambda row: (row.share, row.peer_id))
    median = statistics.median(sums.values()) if sums else 0.0
    return Reputation(sum(map(len, of.values())), median, rows)


def opinion(rated: Mapping[str, float], issuer: Mapping[str, str]) -> dict[str, float]:
    """Divide a rater's trust: by issuer, with the weight of its best member, and then by member.
    The parts add up to 1; without a useful peer there are none."""
    by_issuer: dict[str, dict[str, float]] = {}
    for peer_id, score in rated.items():
        if score > 0 and peer_id in issuer:
            by_issuer.setdefault(issuer[peer_id], {})[peer_id] = score
    best_scores = {key: max(of.values()) for key, of in by_issuer.items()}
    total = sum(best_scores.values())
    return {
        peer_id: best_scores[key] / total * score / sum(of.values())
        for key, of in by_issuer.items()
        for peer_id, score in of.items()
    }


def _start(
    place: Mapping[str, int], issuer: Mapping[str, str], trusted_ids: Collection[str]
) -> NDArray[np.float64]:
    """The division of the trust that returns."""
    start = np.zeros(len(place))
    of: dict[str, list[int]] = {}
    for peer_id in place.keys() & set(trusted_ids) or place:
        of.setdefault(issuer[peer_id], []).append(place[peer_id])
    for members in of.values():
        start[members] = 1 / len(of) / len(members)
    return start


def _edges(
    ratings: Ratings, issuer: Mapping[str, str], place: Mapping[str, int]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Indices of rater and rated, and the part of the rater's trust."""
    source: list[int] = []
    target: list[int] = []
    weight: list[float] = []
    for rater, rated in sorted(ratings.items()):
        if rater not in place:
            continue
        peer_scores = {peer_id: score for peer_id, score in rated.items() if peer_id != rater}
        for peer_id, part in opinion(peer_scores, issuer).items():
            source.append(place[rater])
            target.append(place[peer_id])
            weight.append(part)
    return np.array(source, np.intp), np.array(target, np.intp), np.array(weight, np.float64)
