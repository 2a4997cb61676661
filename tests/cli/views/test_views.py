"""What a terminal shows of a snapshot."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from builders import history_row, quiet_snapshot
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from swarm_node.cli.views.members_view import members_view, ticket_rows
from swarm_node.cli.views.status_view import bars, curve, figures, gave, got, refused, status_view
from swarm_node.cli.views.views import eval_view, peers_view
from swarm_node.node.figures.history import GroupCounts
from swarm_node.node.figures.samples import RecentRow, SampleRow
from swarm_node.node.figures.snapshot import (
    SEEN_SECONDS,
    CoordinatorRow,
    EvalPoint,
    MembershipRow,
    MixtureRow,
    PeerRow,
    RelayingRow,
    Said,
    Snapshot,
)
from swarm_node.node.figures.verdict import findings
from swarm_node.node.members.ledger import Ban, IssuedTicket
from swarm_node.p2p.reach.verdict import Probed, Verdict, judge

QUIET = quiet_snapshot()

#: What a peer would write into its owner's terminal: colours, a new title, markup, a line of its
#: own, an order of letters that deceives.
HOSTILE = "\x1b[31mred\x1b]0;title\x07[bold]markup[/bold]\r\nforged line\u202eevil\x9b2J"
KEY = "a" * 64


def shown(snapshot: Snapshot) -> str:
    return printed(status_view(snapshot))


def printed(view: RenderableType, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def peer(name: str, peer_id: str = "12D3KooWxxxxxxxx12345678", **changes: Any) -> PeerRow:
    row = PeerRow(peer_id, 7, 3.0, 11, 5, 2, ["/ip4/192.0.2.1/tcp/1/p2p/x"], name=name)
    known = {"issuer": name, "issuer_key": KEY, "until": 1_800_000_000, "standing": "member"}
    return msgspec.structs.replace(row, **(known | changes))


def test_status_shows_every_alarm_as_plain_text() -> None:
    alarms = ["one peer costs much", "style: [bold]zq zq[/bold]"]
    text = shown(msgspec.structs.replace(QUIET, alarms=alarms))
    assert all(alarm in text for alarm in alarms)
    assert "alarm" not in shown(QUIET)


def test_status_says_how_the_node_is_reached_and_what_to_do() -> None:
    probe = Probed("id", "alice", "11.0.0.1", "11.0.1.1", 7, False, {7: "timeout"}, 0.0)
    text = shown(msgspec.structs.replace(QUIET, reach=judge([probe], (7,))))
    assert "unreachable, because nothing answers at 11.0.1.1:7 (asked: alice)" in text
    assert "→ forward TCP port 7 of the router to this machine" in text
    known = msgspec.structs.replace(QUIET, reach=judge([probe], (7,)), peers=[peer("bob")])
    assert "this node: unreachable, because nothing answers" in printed(peers_view(known, {}))
    text = shown(msgspec.structs.replace(QUIET, reach=judge([], ())))
    assert "not probed yet: no member to ask" in text
    assert "→" not in text


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"answers": None}, "not asked yet"),
        (
            {"answers": True, "introduced": 1},
            "1 introduction, no report yet; its reputation lowers",
        ),
        (
            {"answers": True, "introduced": 9, "reported": 100.0, "lowered": 1},
            "9 introductions, last report 60 s ago; its reputation lowers 1 peer",
        ),
        (
            {"answers": False, "introduced": 9, "reported": 100.0, "fault": "[b]gone"},
            "9 introductions, last report 60 s ago; [b]gone",
        ),
    ],
)
def test_status_says_what_the_coordinator_does(known: dict[str, Any], said: str) -> None:
    row = CoordinatorRow("https://swarm.example", **known)
    text = " ".join(shown(quiet_snapshot(coordinator=row, time=160.0)).split())
    assert f"coordinator https://swarm.example: {said}" in text


def test_peers_are_shown_with_score_reasons_share_and_pause() -> None:
    refused = {"hash": 1, "too_long": 2}
    row = peer("alice", score=0.34, refused=refused, share=0.12, left_seconds=55.0)
    text = printed(peers_view(msgspec.structs.replace(QUIET, peers=[row]), {}))
    for part in ("0.34", "12%", "…12345678: refused 1 hash, 2 too_long; left alone for 55 s"):
        assert part in text


def test_peers_names_people_and_says_what_was_refused_and_why() -> None:
    rows = [
        peer("alice", refused={"stale": 3, "author": 1}),
        peer("bob", issuer="hq steward", issuer_key="b" * 64),
    ]
    former = [peer("carol", standing="revoked")]
    snapshot = msgspec.structs.replace(QUIET, peers=rows, former=former)
    text = printed(peers_view(snapshot, {"b" * 64: "bob of the lab"}))
    for said in (
        *("alice", "until 2027-01-15", "…12345678", "1 author, 3 stale", "5 of 11"),
        *("bob of the lab (by hq steward)", "carol", "revoked"),
    ):
        assert said in text
    narrow = printed(peers_view(snapshot, {}), 80)
    assert max(map(len, narrow.splitlines())) <= 80
    for said in ("alice", "until 2027-01-15", "…12345678", "1 author", "5 of 11", "0.00"):
        assert said in narrow, narrow
    assert "swarm-node invite" in printed(peers_view(QUIET, {}))


def test_peers_and_status_say_who_is_reached_through_whom() -> None:
    relay, far = "12D3KooWxxxxxxxxrrrrrrrr", "12D3KooWxxxxxxxxffffffff"
    rows = [
        peer("alice", relay, via=""),
        peer("bob", far, via=relay),
        peer("carol", refused={"stale": 1}),
    ]
    relaying = RelayingRow([relay], 200, 50, True, 7, 2_500_000, {"rate": 3})
    snapshot = msgspec.structs.replace(QUIET, peers=rows, relaying=relaying)
    for width in (80, 200):
        text = printed(peers_view(snapshot, {}), width)
        lines = {line.split()[0]: line.rstrip() for line in text.splitlines()}
        assert lines["alice"].endswith("direct")
        assert "bob …ffffffff: via alice …rrrrrrrr" in text
        assert "carol …12345678: refused 1 stale" in text
        assert max(map(len, text.splitlines())) <= width
    assert [line.rstrip().rpartition(" ")[2] for line in text.splitlines()[1:4]] == [
        *("direct", "relayed", "-"),
    ]
    for said in (
        "50 of 200 requests relayed",
        "via alice …rrrrrrrr",
        "7 for others, 2.5 MB",
        "3 rate",
    ):
        assert said in shown(snapshot)


def test_nothing_of_a_peer_writes_into_the_terminal() -> None:
    fields = {"issuer": HOSTILE, "standing": HOSTILE, "addresses": [HOSTILE]}
    row = peer(HOSTILE, HOSTILE, refused={HOSTILE: 1}, **fields)
    snapshot = msgspec.structs.replace(
        QUIET,
        peers=[row],
        alarms=[HOSTILE],
        rejected={HOSTILE: 1},
        membership=MembershipRow(HOSTILE, HOSTILE, 0, 1, "member"),
        reach=Verdict("unreachable", HOSTILE, HOSTILE),
    )
    tickets = ticket_rows([IssuedTicket("a", KEY, 1, 2, 1, 3)], {}, {}, [row], frozenset(), [], 1.0)
    for text in (
        printed(peers_view(snapshot, {})),
        shown(snapshot),
        printed(members_view(tickets, [Ban(HOSTILE, 1, peer_id="x")], [row])),
    ):
        assert all(c.isprintable() or c == "\n" for c in text), ascii(text)
        assert "[bold]" in text, "and nothing is read as markup"


def test_a_ticket_is_open_until_it_is_not() -> None:
    def state(*, now: float = 5.0, revoked: str = "", banned: str = "", **changes: Any) -> str:
        entry = msgspec.structs.replace(IssuedTicket("a", KEY, 1, 10, 2, 3), **changes)
        met = [peer("a"), peer("b", issuer_key="c" * 64)]
        bans = [Ban("x", 1, issuer_key=banned)] if banned else []
        ((row),) = ticket_rows([entry], {}, {}, met, frozenset({revoked}), bans, now)
        assert row.used == 1
        return row.state

    assert state() == "open"
    assert state(uses=0) == "open"
    assert state(uses=1) == "used up"
    assert state(given=False) == "open", "somebody came by it"
    assert state(steward=True) == "steward"
    assert state(now=10.0) == "expired"
    assert state(banned=KEY) == "banned"
    assert state(revoked=KEY, banned=KEY) == "revoked"


def test_status_counts_givers_that_are_there_and_says_how_long_a_state_has_lasted() -> None:
    groups = msgspec.structs.replace(QUIET.groups, received=7)
    there, gone = peer("a", received=3), peer("b", received=4)
    there = msgspec.structs.replace(there, seconds_since_seen=1.0)
    gone = msgspec.structs.replace(gone, seconds_since_seen=SEEN_SECONDS + 1)
    both = msgspec.structs.replace(QUIET, groups=groups, peers=[there, gone])
    assert got(both).startswith("7 groups from 1 peer,")
    assert got(msgspec.structs.replace(both, peers=[gone])).startswith("7 groups from peers now")
    for state, told in (("running", "running for 6 min"), ("stopping", "stopping (started 6 min")):
        said = dict(figures(msgspec.structs.replace(QUIET, state=state, seconds=360.0)))["node"]
        assert told in said


def test_status_counts_the_turns_of_dialogues_and_what_is_refused_after_a_replay() -> None:
    def shown(turns: float | None) -> str:
        return gave(msgspec.structs.replace(QUIET, latest=history_row(1.0, turns=turns)))

    assert shown(1.75).endswith("; 1.8 turns a dialogue")
    assert "turns" not in shown(1.0) + shown(None), "single answers, and none yet"
    rejected = {"replay": 3, "unreachable": 2}
    assert refused(msgspec.structs.replace(QUIET, rejected=rejected)) == "3 replay"


def test_a_used_ticket_stays_used_while_its_holder_is_away() -> None:
    one = IssuedTicket("alice", KEY, 1, 10, 1, 3)
    stock = [IssuedTicket("web", f"{i:064x}", 1, 10, 1, 3, given=False) for i in range(100)]
    away = peer("x").peer_id
    rows = ticket_rows([*stock, one], {KEY: [away]}, {}, [], frozenset(), [], 5.0)
    assert (rows[-1].state, rows[-1].used, rows[-1].holders) == ("used up", 1, [away])
    both = ticket_rows([one], {KEY: [away]}, {}, [peer("x")], frozenset(), [], 5.0)
    assert both[0].used == 1
    met = [peer("z", issuer_key="c" * 64)]
    lines = printed(members_view(rows, [], met)).splitlines()
    there = next(i for i, line in enumerate(lines) if "last seen" in line)
    ticket = next(i for i, line in enumerate(lines) if "alice" in line)
    assert there < ticket
    assert f"…{away[-8:]}" in lines[ticket]
    assert "in stock, until 1970-01-01: 100 tickets" in lines[-1]
    assert sum("web" in line for line in lines) == 0
    many = ticket_rows(
        [msgspec.structs.replace(one, uses=9)],
        {KEY: [f"peer-{i}" for i in range(5)]},
        {},
        [],
        frozenset(),
        [],
        5.0,
    )
    assert "and 2 more" in " ".join(printed(members_view(many, [], None)).split())


def test_a_ticket_that_a_coordinator_gave_is_no_longer_in_stock() -> None:
    web = IssuedTicket("web 16", KEY, 1, 10, 1, 3, given=False)
    for met in ([], [peer("x")]):
        (row,) = ticket_rows([web], {}, {}, met, frozenset(), [], 5.0)
        assert row.state == ("used up" if met else "in stock")
    assert "web 16" in printed(members_view([row], [], [peer("x")]))


def test_who_showed_a_used_ticket_is_named_and_holds_it_not() -> None:
    one, late = IssuedTicket("alice", KEY, 1, 10, 1, 3), peer("y")
    (row,) = ticket_rows(
        [one], {KEY: [peer("x").peer_id]}, {KEY: [late.peer_id]}, [late], frozenset(), [], 5.0
    )
    assert (row.used, row.holders, row.tried) == (1, [peer("x").peer_id], [late.peer_id])
    shown_text = " ".join(printed(members_view([row], [], None)).split())
    assert f"alice is used up, and tried by …{late.peer_id[-8:]}: if you do not know them" in (
        shown_text
    )


def test_a_node_warns_of_the_end_of_its_membership_in_the_last_third() -> None:
    day = 86_400.0
    row = MembershipRow("alice", "alice", 0, int(90 * day), "member")
    assert row.alarms(59 * day) == []
    (soon,) = row.alarms(78 * day)
    assert "ends on 1970-04-01, in 12 days" in soon
    (ended,) = msgspec.structs.replace(row, standing="expired").alarms(91 * day)
    assert "ended on 1970-04-01" in ended
    assert "--ticket-file" in ended
    (expelled,) = msgspec.structs.replace(row, standing="revoked").alarms(day)
    assert "revoked" in expelled
    text = shown(msgspec.structs.replace(QUIET, membership=row))
    assert "alice, until 1970-04-01" in text


def test_status_begins_with_a_verdict_and_ends_with_what_to_do() -> None:
    found = [
        Said("nothing_to_learn", "bad", "nothing to learn: 0 of 64", "take easier tasks"),
        Said("environment", "warning", "bob uses sapo", "start with --preset sapo"),
    ]
    examples = [
        SampleRow("gcd", "gcd of 12\nand 18?", "Yes", 0.0, 3),
        SampleRow("primes", HOSTILE, HOSTILE, 1.0, 3),
    ]
    lines = shown(msgspec.structs.replace(QUIET, findings=found, examples=examples)).splitlines()
    assert lines[0] == "✗ nothing to learn: 0 of 64"
    assert lines[1].strip() == "→ take easier tasks"
    assert lines[2].strip() == 'gcd: "gcd of 12 and 18?" answered "Yes" ✗'
    assert lines[3].strip().endswith("✓")
    assert all(c.isprintable() for c in lines[3])
    assert [line.strip() for line in lines[-2:]] == [
        "▲ bob uses sapo",
        "→ start with --preset sapo",
    ]


def test_numbers_mean_what_they_say() -> None:
    shot = msgspec.structs.replace(
        QUIET,
        groups=GroupCounts(111_650, 90_000, 3_000, 3_063, 3_200, 1_310),
        rejected={"unreachable": 26, "not_here": 3, "stale": 2},
        latest=history_row(1.0, own_per_update=19.0, peers_per_update=0.5, updates_per_second=9.8),
        recent=RecentRow(256, 8, 0.9),
        peers=[peer("bob"), peer("carol", received=0)],
        mixture=MixtureRow(4, 4, False, 0.5, None, None, 1.0),
    )
    text = shown(shot)
    assert "19.0 own, 0.5 of peers (3%)" in text, "not the setting, which is 4 and 4"
    assert "111,650 groups made, 3,200 announced, 1,310 taken by peers" in text
    assert "3% of the last 256 have unlike rewards" in text
    assert "3,063 groups from 1 peer, 3,000 trained on" in text
    refused = next(line for line in text.splitlines() if line.startswith("refused"))
    assert refused.split() == ["refused", "2", "stale"]
    assert "29 requests to peers that were away" in text


def test_status_fits_every_width_and_an_alarm_is_told_once() -> None:
    row = MembershipRow("alice", "alice", 0, 90 * 86_400, "member")
    full = msgspec.structs.replace(
        QUIET,
        membership=row,
        time=80 * 86_400.0,
        alarms=row.alarms(80 * 86_400.0),
        evals=[point(n) for n in range(100)],
    )
    full = msgspec.structs.replace(full, findings=findings(full))
    for width in (60, 80, 120, 200):
        text = printed(status_view(full), width)
        assert max(map(len, text.splitlines())) <= width
        assert " ".join(text.split()).count("was not renewed") == 1
        assert "0.00 ▁" in text
        assert "█ 0.99; seen 0.50" in text


def point(number: int, **changes: Any) -> EvalPoint:
    reward = number / 100
    known = EvalPoint(float(number), number, reward, reward, None, {}, seen=0.5, split=1)
    return msgspec.structs.replace(known, **changes)


def test_rewards_of_the_old_ground_are_marked_and_stand_apart() -> None:
    old = [point(90 + n, seen=None, split=0) for n in range(3)]
    assert curve(old, 8) == "0.90 ███ 0.92 (old ground: held out by seed, texts occur in training)"
    both = curve([*old, point(40)], 8)
    assert both == (
        "0.40; seen 0.50; 0.92 before (old ground: held out by seed, texts occur in training)"
    )
    assert curve([*old, point(40), point(50)], 8).startswith("0.40 ▄▅ 0.50; seen 0.50; 0.92 before")
    assert curve([point(40), point(30, split=2)], 8) == (
        "0.30; seen 0.50; 0.40 before (another split)"
    )


def test_an_evaluation_says_which_texts_a_figure_is_of() -> None:
    measured = EvalPoint(1.0, 7, 0.25, 0.5, 0.125, {"gcd": 0.25}, seen=0.75, split=1)
    text = " ".join(printed(eval_view(measured)).split())
    assert "unseen texts, policy version 7" in text
    assert "all 0.250 own 0.500 never sampled 0.125 seen texts 0.750" in text
    old = msgspec.structs.replace(measured, seen=None, split=0)
    assert "seen texts -" in " ".join(printed(eval_view(old)).split())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300), st.integers(1, 80))
def test_bars_are_as_many_as_asked_and_follow_the_values(values: list[float], width: int) -> None:
    drawn = bars(values, width)
    assert len(drawn) == min(width, len(values))
    assert bars(sorted(values), width) == "".join(sorted(bars(sorted(values), width)))
