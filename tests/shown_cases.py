"""A node with something to show in every line, for `screens.py` and the tests of views."""

from __future__ import annotations

import io
from typing import Any

import msgspec
from builders import history_row, quiet_snapshot
from rich.console import Console, RenderableType

from swarm_node.cli.views.members_view import members_view, ticket_rows
from swarm_node.cli.views.peers_view import peers_view
from swarm_node.cli.views.status_view import status_view
from swarm_node.cli.views.views import eval_view
from swarm_node.node.members.ledger import Block, IssuedTicket
from swarm_node.node.metrics.history import GroupCounts
from swarm_node.node.metrics.samples import RecentRow, SampleRow
from swarm_node.node.metrics.snapshot import (
    CoordinatorRow,
    EvalPoint,
    LevelRow,
    MembershipRow,
    MixtureRow,
    PeerRow,
    RelayingRow,
    Said,
    Snapshot,
    UnmetRow,
    WorkRow,
)
from swarm_node.p2p.reach.reachability import Probed, assess

KEY = "a" * 64
#: What a peer would write into its owner's terminal: colours, a new title, markup, a line of its
#: own, an order of letters that deceives.
HOSTILE = "\x1b[31mred\x1b]0;title\x07[bold]markup[/bold]\r\nforged line\u202eevil\x9b2J"
RELAY, FAR = "12D3KooWxxxxxxxxrrrrrrrr", "12D3KooWxxxxxxxxffffffff"


LINKED = {
    "address": "/ip6/2001:db8::1/tcp/31330",
    "round_trip": 0.0042,
    "bytes_in": 1_310_000,
    "bytes_out": 812,
}
RELAYED = {"round_trip": 0.0801, "bytes_in": 9_960, "bytes_out": 184_200_000}
LOST = Said("no_answer", "warning", "10.0.0.5:31330 does not answer (3 tries)", "open the port")
SUSPENDED = Said("suspended", "warning", "suspended for 55 s more")
REVOKED = Said("revoked", "warning", "the owner of the swarm revoked its membership")
RANGE = Said("out_of_range", "warning", "192.0.2.2 is in no address range", "use --advertise")
UNTRIED = Said("untried", "good", "not tried yet: this node tries one after the other")


def id_of(number: int) -> str:
    return f"12D3KooWxxxxxxxx{number:08}"


def printed(view: RenderableType, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def peer(name: str, peer_id: str = "12D3KooWxxxxxxxx12345678", **changes: Any) -> PeerRow:
    row = PeerRow(peer_id, 7, 3.0, 11, 5, 2, ["/ip4/192.0.2.1/tcp/1/p2p/x"], name=name)
    known = {"issuer": name, "issuer_key": KEY, "until": 1_800_000_000, "standing": "member"}
    return msgspec.structs.replace(row, **(known | changes))


def full() -> Snapshot:
    probe = Probed("id", "alice", "11.0.0.1", "11.0.1.1", 7, False, {7: "timeout"}, 0.0)
    known = {"introduced": 9, "reported": 100.0, "lowered": 1}
    return quiet_snapshot(
        time=160.0,
        findings=[
            Said("nothing_to_learn", "bad", "nothing to learn: 0 of 64", "take easier tasks"),
            Said("environment", "warning", "bob uses sapo", "start with --preset sapo"),
        ],
        examples=[SampleRow("gcd", "gcd of 12\nand 18?", "Yes", 0.0, 3)],
        alarms=["style: [bold]zq zq[/bold]"],
        reach=assess([probe], (7,)),
        coordinator=CoordinatorRow("https://swarm.example", answers=True, **known),
        membership=MembershipRow("alice", "alice", 0, 90 * 86_400, "member"),
        groups=GroupCounts(
            sampled=111_650,
            announced=3_200,
            sent=1_310,
            accepted=3_063,
            trained_local=90_000,
            trained_external=3_000,
        ),
        rejected={"unreachable": 26, "not_here": 3, "stale": 2},
        latest=history_row(1.0, local_per_step=19.0, external_per_step=0.5, turns=1.75),
        recent=RecentRow(256, 8, 0.9, 1024, 300),
        levels=[
            LevelRow("addition", 2, 5, True, {"addition-1": 0.94, "addition-2": 0.63}, 0.63),
            LevelRow("product", 1, 3, False, {"product-1": 0.2, "product-2": 0.0}, 0.2),
        ],
        work=WorkRow("sampling", 37, 64, 212.4, 25.0, 61.0, 40.0, 7500.0),
        mixture=MixtureRow(4, 4, False, 0.5, None, None, 1.0),
        relaying=RelayingRow([RELAY], 200, 50, True, 7, 2_500_000, {"rate": 3}),
        peers=[
            peer("alice", RELAY, via="", useful_fraction=0.34, trained_fraction=0.12, **LINKED),
            peer("bob", FAR, via=RELAY, issuer="hq delegate", issuer_key="b" * 64, **RELAYED),
            peer("carol", accepted=0, rejected_by_reason={"stale": 3, "author": 1}, reason=LOST),
            peer("web", id_of(1), issuer_key="d" * 64, environment="sapo", model="abababab"),
            peer("web", id_of(2), issuer_key="d" * 64, via="", reason=SUSPENDED),
        ],
        former=[peer("dora", id_of(3), standing="revoked", reason=REVOKED)],
        unmet=[
            UnmetRow(id_of(4), "erin", "c" * 64, [], RANGE),
            UnmetRow(id_of(5), "", "", [], UNTRIED),
        ],
        unmet_total=70,
    )


def all_shown() -> str:
    """What each view shows of such a node."""
    shot, away = full(), peer("x").peer_id
    one = IssuedTicket("alice", KEY, 1, 10, 1, 3)
    stock = [IssuedTicket("web", f"{i:064x}", 1, 10, 1, 3, given=False) for i in range(100)]
    tickets = ticket_rows(
        [*stock, one], {KEY: [away]}, {KEY: [FAR]}, shot.peers, frozenset(), [], 5.0
    )
    measured = EvalPoint(1.0, 7, 0.25, 0.5, 0.125, {"gcd": 0.25}, train=0.75, split_version=1)
    views = {
        "status": status_view(shot),
        "peers": peers_view(shot, {"b" * 64: "bob of the lab"}, groups=True),
        "no peers": peers_view(quiet_snapshot(), {}),
        "members": members_view(tickets, [Block("mallory", 1, peer_id="x")], shot.peers),
        "eval": eval_view(measured),
    }
    return "\n".join(f"== {name}\n{printed(view, 120)}" for name, view in views.items())
