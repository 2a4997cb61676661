"""The verdict on a node, case by case."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from builders import quiet_snapshot

from swarm_node.environments import drills
from swarm_node.environments.presets import environment_name
from swarm_node.environments.reasoning_gym.environment import create
from swarm_node.environments.split import with_split
from swarm_node.node.figures.samples import RecentRow
from swarm_node.node.figures.snapshot import MembershipRow, PeerRow, Said, Snapshot
from swarm_node.node.figures.verdict import ENOUGH_GROUPS, findings

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
        "seconds_since_update": 2.0,
        "seconds_between_updates": 1.0,
        "recent": RecentRow(256, 100, 0.4),
        "environment": SHORT,
        "peers": [peer()],
    }
    return quiet_snapshot(**{**well, **changes})


CASES: list[tuple[dict[str, Any], str, str, str]] = [
    ({}, "sharing", "learning and sharing", ""),
    ({"updates": 0}, "sharing", "sampling and sharing", ""),
    ({"state": "starting"}, "starting", "the node is starting", ""),
    ({"state": "stopping"}, "stopping", "the node is stopping", ""),
    ({"peers": []}, "alone", "learning alone: no peers yet", "swarm-node invite --name"),
    ({"peers": [peer(seen=61.0)]}, "alone", "no peer answers now", "doctor --network"),
    ({"membership": None}, "sharing", "learning and sharing", ""),
    ({"time": 78 * DAY}, "membership", "in 12 days", "ask for a new ticket"),
    ({"time": 91 * DAY, "membership": msgspec.structs.replace(MEMBER, standing="expired")},
     "membership", "membership ended on 1970-04-01", "--ticket-file"),
    ({"membership": msgspec.structs.replace(MEMBER, standing="revoked")},
     "membership", "peers refuse this node (revoked)", "ask the owner"),
    ({"seconds_since_update": 301.0}, "stalled", "no update for 5 min", "swarm-node logs"),
    ({"seconds_since_update": 301.0, "faults": {"trainer": 7}}, "stalled", "7 trainer", ""),
    ({"seconds_since_update": 301.0, "seconds_between_updates": 60.0}, "sharing", "", ""),
    ({"seconds_since_update": 601.0, "seconds_between_updates": 60.0}, "stalled", "10 min", ""),
    ({"seconds_since_update": 899.0, "seconds_between_updates": None}, "sharing", "", ""),
    ({"seconds_since_update": 901.0, "seconds_between_updates": None}, "stalled", "15 min", ""),
    ({"recent": RecentRow(ENOUGH_GROUPS, 0, 0.0)},
     "nothing_to_learn", "0 of the last 64 own groups have unlike rewards", "env check"),
    ({"recent": RecentRow(ENOUGH_GROUPS - 1, 0, 0.0)}, "sharing", "", ""),
    ({"recent": RecentRow(256, 13, 0.1)}, "sharing", "", ""),
    ({"recent": RecentRow(256, 12, 0.97)}, "saturated", "nearly all is learnt", "export DIR"),
    ({"peers": [peer(environment=SAPO)]}, "environment",
     "laptop uses reasoning_gym sapo, this node drills short: they exchange nothing",
     "--preset sapo"),
    ({"peers": [peer("a", environment=SAPO), peer("b", environment=SAPO)]}, "environment",
     "a, b use reasoning_gym sapo", "--preset sapo"),
    ({"peers": [peer(environment="mine:create 1")]}, "environment", "mine:create 1",
     "same environment.name"),
    ({"peers": [peer(environment="reasoning_gym 0.1-2-abc")]}, "environment", "0.1-2-abc",
     "same environment.name"),
    ({"peers": [peer(environment=SAPO, seen=100.0)]}, "alone", "no peer answers now", ""),
    ({"peers": [peer(received=0, refused={"too_large": 11})]}, "refused",
     "what laptop sends is refused (11 too_large)", "asked for less"),
    ({"peers": [peer(received=3, refused={"too_large": 11})]}, "sharing", "", ""),
    ({"peers": [peer(received=0, refused={"unreachable": 900})]}, "sharing", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "kind", "text", "remedy"), CASES)
def test_the_first_finding(changes: dict[str, Any], kind: str, text: str, remedy: str) -> None:
    first = findings(node(**changes))[0]
    assert first.kind == kind
    assert text in first.text
    assert remedy in first.remedy


def test_the_most_serious_comes_first_and_nothing_is_lost() -> None:
    found = findings(
        node(
            time=78 * DAY,
            seconds_since_update=1e4,
            recent=RecentRow(256, 0, 0.0),
            peers=[peer(environment=SAPO, seen=2.0)],
        )
    )
    kinds = [said.kind for said in found]
    assert kinds == ["stalled", "nothing_to_learn", "membership", "environment"]
    assert [said.level for said in found] == ["bad", "bad", "warning", "warning"]


def test_a_node_alone_is_told_so_beside_what_is_worse() -> None:
    found = findings(node(recent=RecentRow(256, 0, 0.0), peers=[]))
    assert [said.kind for said in found] == ["nothing_to_learn", "alone"]


def test_a_preset_has_its_name_and_anything_else_its_version() -> None:
    for made, preset in (
        *((drills.create(preset), f"drills {preset}") for preset in drills.PRESETS),
        *((create(preset=preset), f"reasoning_gym {preset}") for preset in ("chat", "sapo")),
    ):
        assert environment_name(made.name, with_split(made.version)) == preset
    own = create(datasets={"gcd": {}})
    assert environment_name(own.name, with_split(own.version)) == f"reasoning_gym {own.version}"
    assert environment_name("mine:create", with_split("short")) == "mine:create short"


def test_an_environment_of_another_release_is_named_with_the_release_that_one_node_needs() -> None:
    """A node that shares the preset but not the split is not told to take the same preset."""
    old, new = drills.create("short").version, "2-ab split 2, swarm-node 0.3.1"
    for version, named, remedy in (
        (old, "drills short before swarm-node 0.2", "its node runs an older release"),
        (new, "drills 2-ab of swarm-node 0.3.1", "needs swarm-node 0.3.1 or newer"),
    ):
        assert environment_name("drills", version) == named
        (said,) = findings(node(peers=[peer(environment=named, seen=2.0)]))
        assert said.kind == "environment"
        assert named in said.text
        assert remedy in said.remedy


def test_findings_travel_with_the_snapshot() -> None:
    shot = node(findings=[Said("alone", "warning", "text", "remedy")])
    assert msgspec.json.decode(msgspec.json.encode(shot), type=Snapshot) == shot
