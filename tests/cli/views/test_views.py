"""What a terminal shows of a snapshot."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from builders import history_row, quiet_snapshot
from hypothesis import given
from hypothesis import strategies as st
from shown_cases import FAR, HOSTILE, KEY, full, peer, printed

from swarm_node.cli.views.members_view import members_view, ticket_rows
from swarm_node.cli.views.peers_view import milliseconds, peers_view, size
from swarm_node.cli.views.status_view import (
    bars,
    curve,
    external_groups,
    figures,
    format_rejections,
    local_groups,
    status_view,
)
from swarm_node.node.members.ledger import Block, IssuedTicket
from swarm_node.node.metrics.health import findings
from swarm_node.node.metrics.snapshot import (
    SEEN_SECONDS,
    EvalPoint,
    MembershipRow,
    Said,
    Snapshot,
    UnmetRow,
)
from swarm_node.p2p.reach.reachability import Reachability

QUIET = quiet_snapshot()


def shown(snapshot: Snapshot) -> str:
    return printed(status_view(snapshot))


def test_nothing_of_a_peer_writes_into_the_terminal() -> None:
    fields = {"issuer": HOSTILE, "standing": HOSTILE, "address": HOSTILE, "model": HOSTILE}
    why = Said(HOSTILE, "warning", HOSTILE, HOSTILE)
    row = peer(
        HOSTILE, HOSTILE, rejected_by_reason={HOSTILE: 1}, reason=why, environment=HOSTILE, **fields
    )
    snapshot = msgspec.structs.replace(
        QUIET,
        peers=[row],
        unmet=[UnmetRow("x", HOSTILE, "", [HOSTILE], why)],
        alarms=[HOSTILE],
        rejected={HOSTILE: 1},
        membership=MembershipRow(HOSTILE, HOSTILE, 0, 1, "member"),
        reach=Reachability("unreachable", HOSTILE, HOSTILE),
    )
    tickets = ticket_rows([IssuedTicket("a", KEY, 1, 2, 1, 3)], {}, {}, [row], frozenset(), [], 1.0)
    for text in (
        printed(peers_view(snapshot, {}, groups=True)),
        shown(snapshot),
        printed(members_view(tickets, [Block(HOSTILE, 1, peer_id="x")], [row])),
    ):
        assert all(c.isprintable() or c == "\n" for c in text), ascii(text)
        assert "[bold]" in text, "and nothing is read as markup"


def test_bytes_and_round_trips_have_the_unit_that_suits_them() -> None:
    counts = (0, 999, 1_000, 9_949, 9_950, 999_499, 999_500, 12_345_678, 5 * 10**12)
    said = ["0 B", "999 B", "1.0 kB", "9.9 kB", "10 kB", "999 kB", "1.0 MB", "12 MB", "5.0 TB"]
    assert [size(count) for count in counts] == said
    trips = [milliseconds(seconds) for seconds in (0.00042, 0.0099, 0.00996, 1.2345)]
    assert trips == ["0.4", "9.9", "10", "1,234"]


def test_a_ticket_is_open_until_it_is_not() -> None:
    def state(*, now: float = 5.0, revoked: str = "", blocked: str = "", **changes: Any) -> str:
        entry = msgspec.structs.replace(IssuedTicket("a", KEY, 1, 10, 2, 3), **changes)
        met = [peer("a"), peer("b", issuer_key="c" * 64)]
        blocks = [Block("x", 1, issuer_key=blocked)] if blocked else []
        ((row),) = ticket_rows([entry], {}, {}, met, frozenset({revoked}), blocks, now)
        assert row.used == 1
        return row.state

    assert state() == "open"
    assert state(uses=0) == "open"
    assert state(uses=1) == "used up"
    assert state(given=False) == "open", "somebody came by it"
    assert state(delegate=True) == "delegate"
    assert state(now=10.0) == "expired"
    assert state(blocked=KEY) == "blocked"
    assert state(revoked=KEY, blocked=KEY) == "revoked"


def test_status_counts_turns_and_what_a_rerun_rejects() -> None:
    def shown(turns: float | None) -> str:
        return local_groups(msgspec.structs.replace(QUIET, latest=history_row(1.0, turns=turns)))

    assert "1.8" in shown(1.75)
    assert "turns" not in shown(1.0) + shown(None), "single answers, and none yet"
    counts = {"rerun_mismatch": 3, "unreachable": 2}
    assert format_rejections(msgspec.structs.replace(QUIET, rejected=counts)) == "3 rerun_mismatch"


def test_a_used_ticket_stays_used_while_its_holder_is_away_and_who_tried_it_holds_it_not() -> None:
    one = IssuedTicket("alice", KEY, 1, 10, 1, 3)
    away, late = peer("x").peer_id, peer("y", FAR).peer_id
    for met in ([], [peer("x")]):
        (row,) = ticket_rows([one], {KEY: [away]}, {KEY: [late]}, met, frozenset(), [], 5.0)
        assert (row.state, row.used, row.holders, row.tried) == ("used up", 1, [away], [late])


def test_a_ticket_that_a_coordinator_gave_is_no_longer_in_stock() -> None:
    web = IssuedTicket("web 16", KEY, 1, 10, 1, 3, given=False)
    for met in ([], [peer("x")]):
        (row,) = ticket_rows([web], {}, {}, met, frozenset(), [], 5.0)
        assert row.state == ("used up" if met else "in stock")
    assert "web 16" in printed(members_view([row], [], [peer("x")]))


def test_a_node_warns_of_the_end_of_its_membership_in_the_last_third() -> None:
    day = 86_400.0
    row = MembershipRow("alice", "alice", 0, int(90 * day), "member")
    assert row.alarms(59 * day) == []
    (soon,) = row.alarms(78 * day)
    assert re.findall(r"[\d-]+", soon) == ["1970-04-01", "12"]
    (ended,) = msgspec.structs.replace(row, standing="expired").alarms(91 * day)
    assert "1970-04-01" in ended
    assert "--ticket-file" in ended
    revoked = msgspec.structs.replace(row, standing="revoked", revoked=int(5 * day))
    assert "1970-01-06" in revoked.alarms(day)[0]
    (undated,) = msgspec.structs.replace(revoked, revoked=0).alarms(day)
    assert "revoked" in undated
    assert "1970" not in undated
    text = shown(msgspec.structs.replace(QUIET, membership=row))
    assert "alice, until 1970-04-01" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_views_fit_every_width_and_an_alarm_is_told_once(width: int) -> None:
    row = MembershipRow("alice", "alice", 0, 90 * 86_400, "member")
    shot = msgspec.structs.replace(full(), time=80 * 86_400.0, membership=row)
    shot = msgspec.structs.replace(shot, alarms=row.alarms(shot.time), evals=[point(1), point(99)])
    shot = msgspec.structs.replace(shot, findings=findings(shot))
    peers = printed(peers_view(shot, {}, groups=True), width)
    for text in (printed(status_view(shot), width), peers):
        assert max(map(len, text.splitlines())) <= width
    assert " ".join(printed(status_view(shot), width).split()).count("not renewed") == 1


def test_a_state_other_than_running_and_givers_that_left_are_told_apart() -> None:
    gone = peer("b", accepted=4, seconds_since_seen=SEEN_SECONDS + 1)
    groups = msgspec.structs.replace(QUIET.groups, accepted=4)
    assert " from peers " in external_groups(
        msgspec.structs.replace(QUIET, groups=groups, peers=[gone])
    )
    said = dict(figures(msgspec.structs.replace(QUIET, state="stopping", seconds=360.0)))["node"]
    assert "(started 6 min" in said


def point(number: int, **changes: Any) -> EvalPoint:
    reward = number / 100
    known = EvalPoint(float(number), number, reward, reward, None, {}, train=0.5, split_version=1)
    return msgspec.structs.replace(known, **changes)


def test_rewards_of_another_split_stand_apart() -> None:
    assert curve([point(40), point(50)], 8) == "0.40 ▄▅ 0.50; training prompts 0.50"
    text = curve([point(40), point(30, split_version=2)], 8)
    assert text.startswith("0.30; training prompts 0.50; 0.40 ")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300), st.integers(1, 80))
def test_bars_are_as_many_as_asked_and_follow_the_values(values: list[float], width: int) -> None:
    drawn = bars(values, width)
    assert len(drawn) == min(width, len(values))
    assert bars(sorted(values), width) == "".join(sorted(bars(sorted(values), width)))
