"""Cuts of lists, by issuer in turn. Pure.

Keys cost the holder of a ticket nothing. So every list is cut here: its first entries have as many
issuers as possible, and further keys of one ticket displace no others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def in_turn(items: Iterable[Item], issuer: Callable[[Item], str], limit: int) -> list[Item]:
    """Return `limit` of the items: the first of every issuer, then the second of every issuer, and
    so on. Issuers are in the order of their first items."""
    of: dict[str, list[Item]] = {}
    for item in items:
        of.setdefault(issuer(item), []).append(item)
    rounds = max(map(len, of.values()), default=0)
    turns = (queue[turn] for turn in range(rounds) for queue in of.values() if turn < len(queue))
    return [item for item, _ in zip(turns, range(limit), strict=False)]


def drawn_in_turn(
    rng: random.Random, items: Collection[Item], issuer: Callable[[Item], str], limit: int
) -> list[Item]:
    """Return `limit` of the items as `in_turn` does, of issuers and items in random order."""
    return in_turn(rng.sample(list(items), len(items)), issuer, limit)
