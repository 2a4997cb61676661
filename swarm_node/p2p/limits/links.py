"""Limits of connections, links and streams, before a request is read. Pure.

Above a limit the opener loses its own oldest first. Before the handshake the opener is a site,
after it a peer. When all places are taken, the site with the most loses its oldest.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

#: Links of one peer, and of all peers.
LINKS_PER_PEER: Final = 4
LINKS: Final = 512
#: Streams that one peer has open. Its requests take at most a hundred of one kind, the rest is for
#: requests that it passes on for others.
STREAMS_PER_PEER: Final = 256
#: Connections that are no links yet: in all, and of one site (an IPv4 address or an IPv6 /64).
HANDSHAKES: Final = 128
HANDSHAKES_PER_SITE: Final = 16
#: Rate per second and burst of connections from one site, of links of one peer, and of streams of
#: one peer. A handshake takes a process in Python up to ten milliseconds, a stream up to four.
ARRIVALS: Final = (4.0, 32.0)
RETURNS: Final = (1.0, 32.0)
PACE: Final = (128.0, 64.0)
#: Seconds for which a peer that opened too many links or streams gets no new link.
BARRED_SECONDS: Final = 60.0

#: Seconds since this node asked a peer, during which the peer's links end last.
ASKED_SECONDS: Final = 900.0

#: Links of one peer above which p2pd closes all of them: it cannot close some. Two ends that dial
#: each other at once, also through a router, have a few.
P2PD_LINKS_PER_PEER: Final = 2 * LINKS_PER_PEER
#: Every limit for the page of the protocol: what is counted, on which stack, how many, and what
#: happens above it.
LIMITS: Final = (
    (
        "connections of one site before their handshake",
        "libp2p",
        f"{HANDSHAKES_PER_SITE}, of all sites {HANDSHAKES}",
        "the oldest of the site, or of the site with the most, is closed",
    ),
    (
        "connections of one site",
        "libp2p",
        f"{ARRIVALS[1]:g} at once, {ARRIVALS[0]:g} a second",
        "closed unread",
    ),
    (
        "links of one peer",
        "libp2p",
        f"{LINKS_PER_PEER}; {RETURNS[1]:g} new ones at once, {RETURNS[0]:g} a second",
        f"its oldest is closed; it gets none for {BARRED_SECONDS:g} s",
    ),
    (
        "links of one peer",
        "hivemind",
        f"{P2PD_LINKS_PER_PEER}, looked at every 3 s",
        f"all of them are closed, and its streams for {BARRED_SECONDS:g} s",
    ),
    (
        "links of all peers",
        "both",
        f"{LINKS}",
        "those to peers that the node asks end last, on hivemind those to strangers first; within "
        "these the oldest of the site or issuer with the most",
    ),
    (
        "open streams of one peer",
        "both",
        f"{STREAMS_PER_PEER}",
        f"refused; then its links are closed for {BARRED_SECONDS:g} s",
    ),
    (
        "open streams of the members of one issuer",
        "both",
        "as many as are free",
        "refused",
    ),
    (
        "open streams of one site",
        "libp2p",
        "as many as are free",
        "refused",
    ),
    (
        "new streams of one peer",
        "libp2p",
        f"{PACE[1]:g} at once, {PACE[0]:g} a second",
        "its link is read more slowly",
    ),
)


class LinkPlace(NamedTuple):
    """The place that a link takes. `source` is a site or an issuer, because nobody gets many of
    these for free. Links of the lowest `rank` end first."""

    source: str
    rank: int


def surplus(places: Sequence[LinkPlace], limit: int) -> list[int]:
    """Choose places to give up until `limit` are left. `places` has the oldest first. One by one,
    the source with the most places of the lowest rank loses its oldest."""
    indices: list[int] = []
    for rank in sorted({place.rank for place in places}):
        of: defaultdict[str, deque[int]] = defaultdict(deque)
        for index, place in enumerate(places):
            if place.rank == rank:
                of[place.source].append(index)
        while of and len(places) - len(indices) > limit:
            fullest = max(of, key=lambda source: len(of[source]))
            indices.append(of[fullest].popleft())
            if not of[fullest]:
                del of[fullest]
    return indices


def choose_connection_to_drop(sites: Sequence[str], arriving: str) -> int | None:
    """Choose the connection that makes room for one from the site `arriving`, None if there is
    room. `sites` are those of connections before their handshake, the oldest first. A site at its
    limit loses its oldest; if all places are taken, the site with the most does."""
    counts = Counter(sites)
    if counts[arriving] >= HANDSHAKES_PER_SITE:
        return sites.index(arriving)
    if len(sites) >= HANDSHAKES:
        return sites.index(counts.most_common(1)[0][0])
    return None
