"""The names of all protocols between nodes, with the bodies of their requests and replies.

Every server and client imports them from here. `.ci/tools/protocol_page.py` writes the table of
docs/protocol-streams.md from `PROTOCOLS`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

HELLO: Final = "/swarm-node/hello/1"
LIST: Final = "/swarm-node/list/1"
PULL: Final = "/swarm-node/pull/1"
PEERS: Final = "/swarm-node/peers/1"
REVOKED: Final = "/swarm-node/revoked/1"
SECRET: Final = "/swarm-node/secret/1"  # noqa: S105 - the name of a protocol
RENEW: Final = "/swarm-node/renew/1"
CLAIMS: Final = "/swarm-node/claims/1"
PROBE: Final = "/swarm-node/probe/1"
PROBE_FOR: Final = "/swarm-node/probe-for/1"
PUNCH: Final = "/swarm-node/punch/1"
KEEP: Final = "/swarm-node/keep/1"
#: Requests for a third peer (reach/), on both hops: asker to relay, relay to target. One such link
#: carries requests of many askers, so its peer is not blamed for all of them.
RELAY: Final = "/swarm-node/relay/1"
RELAYED: Final = "/swarm-node/relayed/1"


class StreamProtocol(NamedTuple):
    """A protocol's name, and the bodies of its request and reply in words."""

    name: str
    request: str
    reply: str


_STATEMENT = "a packed statement, or nothing"

PROTOCOLS: Final = (
    StreamProtocol(
        HELLO,
        "chain (array of at most 2 bin, each ≤ 320), agent, addresses (array of at most 8), "
        "revoked counter, secret counter",
        "the same five fields",
    ),
    StreamProtocol(
        LIST,
        "epoch counter, since counter, limit 1 to 1,000",
        "epoch counter, head counter, left-out counter, items (array of at most 1,000 bin, each ≤ "
        "768)",
    ),
    StreamProtocol(PULL, "id (bin of 34)", "the sealed group itself, without an array around it"),
    StreamProtocol(PEERS, "limit 1 to 100", "presences (array of at most 100 bin, each ≤ 1,366)"),
    StreamProtocol(REVOKED, _STATEMENT, _STATEMENT),
    StreamProtocol(SECRET, _STATEMENT, _STATEMENT),
    StreamProtocol(RENEW, "nothing", "issuer certificate, member certificate"),
    StreamProtocol(
        CLAIMS,
        "digest (bin of 32)",
        "claims (array of at most 8 arrays: subject bin of 32, chain as in hello, met ms)",
    ),
    StreamProtocol(
        PROBE,
        "ports (array of at most 4 integers, 1 to 65,535); at most 512 bytes",
        "seen (str of at most 160: `/ip4/A/tcp/P`, `/ip6/A/tcp/P` or empty), outcomes (array of at "
        "most 5 arrays: port, outcome), stranger (outcome), wall ms; at most 512 bytes",
    ),
    StreamProtocol(
        PROBE_FOR, "peer id (str of at most 64), address without it; at most 512 bytes", "outcome"
    ),
    StreamProtocol(
        PUNCH,
        "address str of the form `/ip4/A/tcp/P` or `/ip6/A/tcp/P`; at most 256 bytes",
        "the same, or nothing",
    ),
    StreamProtocol(KEEP, "nothing", "nothing"),
    StreamProtocol(RELAY, "a sealed request (6.1)", "a sealed reply"),
    StreamProtocol(RELAYED, "the same sealed request", "the same sealed reply"),
)
