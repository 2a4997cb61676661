"""Nodes on which there is a verdict, for its tests and for `screens.py`."""

from __future__ import annotations

from typing import Any

import msgspec
from builders import quiet_snapshot

from swarm_node.node.metrics.health import ENOUGH_GROUPS, findings
from swarm_node.node.metrics.samples import RecentRow
from swarm_node.node.metrics.snapshot import EvalPoint, MembershipRow, PeerRow, Said, Snapshot
from swarm_node.p2p.peers.causes import Cause

DAY = 86_400.0
MEMBER = MembershipRow("me", "boss", 0, int(90 * DAY), "member")
SHORT, SAPO = "drills short", "reasoning_gym sapo"


def peer(name: str = "laptop", seen: float = 1.0, **changes: Any) -> PeerRow:
    row = PeerRow(f"12D3KooW{name}", 7, seen, 11, 5, 0, [], name=name)
    return msgspec.structs.replace(row, **changes)


def node(**changes: Any) -> Snapshot:
    """A node that is well, among one peer, with these changes."""
    well = {
        "membership": MEMBER,
        "time": DAY,
        "seconds_since_step": 2.0,
        "seconds_between_steps": 1.0,
        "recent": RecentRow(256, 100, 0.4),
        "environment": SHORT,
        "peers": [peer()],
    }
    return quiet_snapshot(**{**well, **changes})


def curve(*rewards: float) -> list[EvalPoint]:
    return [
        EvalPoint(float(n), n, reward, reward, None, {}, split_version=1)
        for n, reward in enumerate(rewards)
    ]


REVOKED = Cause("revoked", "12D3KooWalice", "alice")
AHEAD = Cause("clock", "12D3KooWalice", "alice", seconds=3602.0)
CLOSED = Cause("nobody_listens", "12D3KooWalice", where="10.77.0.1:31330", tries=3)

#: What is so of a node, and the code and level of the first finding on it. What it says stands in
#: cli/screens/findings.txt.
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "sharing", "good"),
    ({"steps": 0}, "sharing", "good"),
    ({"state": "starting"}, "starting", "warning"),
    ({"state": "stopping"}, "stopping", "warning"),
    ({"peers": []}, "unvisited", "good"),
    ({"peers": [peer(seen=61.0)]}, "alone", "warning"),
    ({"membership": None}, "sharing", "good"),
    ({"time": 78 * DAY}, "membership", "warning"),
    ({"time": 91 * DAY, "membership": msgspec.structs.replace(MEMBER, standing="expired")},
     "membership", "bad"),
    ({"membership": msgspec.structs.replace(MEMBER, standing="revoked")}, "membership", "bad"),
    ({"evals": curve(0.1, 0.2, 0.3, 0.4)}, "sharing", "good"),
    ({"evals": curve(0.5, 0.52, 0.48, 0.51, 0.5)}, "sharing", "good"),
    ({"causes": [REVOKED], "peers": []}, "revoked", "bad"),
    ({"causes": [REVOKED], "peers": [peer("alice")]}, "revoked", "bad"),
    ({"causes": [AHEAD], "peers": []}, "clock", "bad"),
    ({"causes": [Cause("link_down")], "peers": []}, "link_down", "bad"),
    ({"causes": [CLOSED], "peers": [], "configured": 1}, "alone", "bad"),
    ({"causes": [CLOSED], "peers": [], "former": [peer(seen=99.0)]}, "alone", "warning"),
    ({"peers": [peer(seen=41.0, lost=True)]}, "alone", "warning"),
    ({"peers": [peer(seen=19.0, lost=True)]}, "sharing", "good"),
    ({"peers": [peer(model="a1b2c3d4")]}, "sharing", "good"),
    ({"membership": msgspec.structs.replace(MEMBER, standing="revoked", revoked=int(DAY))},
     "membership", "bad"),
    ({"causes": [CLOSED]}, "sharing", "good"),
    ({"peers": [], "configured": 1}, "alone", "warning"),
    ({"peers": [peer(seen=75.0)]}, "alone", "warning"),
    ({"peers": [peer(seen=180.0), peer("b", 181.0)]}, "alone", "warning"),
    ({"alarms": ["one peer costs much: see `swarm-node peers`"]}, "alarm", "warning"),
    ({"seconds_since_step": 301.0}, "stalled", "bad"),
    ({"seconds_since_step": 301.0, "faults": {"trainer": 7}}, "stalled", "bad"),
    ({"seconds_since_step": 301.0, "seconds_between_steps": 60.0}, "sharing", "good"),
    ({"seconds_since_step": 601.0, "seconds_between_steps": 60.0}, "stalled", "bad"),
    ({"seconds_since_step": 899.0, "seconds_between_steps": None}, "sharing", "good"),
    ({"seconds_since_step": 901.0, "seconds_between_steps": None}, "stalled", "bad"),
    ({"recent": RecentRow(0, 0, 0.0), "faults": {"prompt_too_long": 8}}, "too_long", "bad"),
    ({"recent": RecentRow(0, 0, 0.0), "faults": {"prompt_too_long": 7}}, "sharing", "good"),
    ({"recent": RecentRow(1, 0, 0.0), "faults": {"prompt_too_long": 99}}, "sharing", "good"),
    ({"recent": RecentRow(ENOUGH_GROUPS, 0, 0.0)}, "nothing_to_learn", "bad"),
    ({"recent": RecentRow(ENOUGH_GROUPS - 1, 0, 0.0)}, "sharing", "good"),
    ({"recent": RecentRow(256, 13, 0.1)}, "sharing", "good"),
    ({"recent": RecentRow(256, 12, 0.97)}, "saturated", "warning"),
    ({"recent": RecentRow(64, 0, 0.0, 256, 256)}, "truncated", "bad"),
    ({"recent": RecentRow(64, 0, 0.0, 256, 129)}, "truncated", "bad"),
    ({"recent": RecentRow(64, 0, 0.0, 256, 128)}, "nothing_to_learn", "bad"),
    ({"recent": RecentRow(64, 0, 0.0, 256, 25)}, "nothing_to_learn", "bad"),
    ({"recent": RecentRow(64, 20, 0.2, 256, 200)}, "truncated", "warning"),
    ({"recent": RecentRow(64, 0, 0.97, 256, 200)}, "truncated", "warning"),
    ({"peers": [peer(environment=SAPO)]}, "environment", "warning"),
    ({"peers": [peer("a", environment=SAPO), peer("b", environment=SAPO)]},
     "environment", "warning"),
    ({"peers": [peer(environment="mine:create 1")]}, "environment", "warning"),
    ({"peers": [peer(environment="reasoning_gym 0.1-2-abc")]}, "environment", "warning"),
    ({"peers": [peer(environment=SAPO, seen=100.0)]}, "alone", "warning"),
    ({"peers": [peer(accepted=0, rejected_by_reason={"too_large": 11})]}, "rejected", "warning"),
    ({"peers": [peer(accepted=3, rejected_by_reason={"too_large": 11})]}, "sharing", "good"),
    ({"peers": [peer(accepted=0, rejected_by_reason={"unreachable": 900})]}, "sharing", "good"),
]  # fmt: skip


def told(said: Said) -> str:
    return f"{said.kind} ({said.level}): {said.text}\n" + (
        f"  → {said.remedy}\n" * bool(said.remedy)
    )


def all_told() -> str:
    """The first finding of each case, each text once."""
    return "".join(dict.fromkeys(told(findings(node(**changes))[0]) for changes, *_ in CASES))
