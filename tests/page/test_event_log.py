"""The log of a swarm's events."""

from __future__ import annotations

from dataclasses import replace

from swarm_node.page.event_log import MAX_ROWS, EventLog, Sight

HERE = Sight("alice", "a", "member", True, 5, ("/ip4/10.0.0.1/tcp/1",), {"size": 1})


def _kinds(log: EventLog) -> list[tuple[str, str, int]]:
    return [(row.name, row.kind, row.count) for row in log.report().rows]


def test_what_changes_between_two_sights_is_an_event() -> None:
    log = EventLog()
    log.see("p", HERE, 1.0)
    log.see("p", HERE, 2.0)
    assert _kinds(log) == [("alice", "joined", 1)]
    for changed, kind in (
        (replace(HERE, epoch=6), "restarted"),
        (replace(HERE, addresses=("/ip4/10.0.0.2/tcp/1",)), "address changed"),
        (replace(HERE, rejections={"size": 1, "task": 2}), "refused"),
        (replace(HERE, is_present=False), "left"),
        (replace(HERE, standing="revoked"), "revoked"),
    ):
        log = EventLog()
        log.see("p", HERE, 1.0)
        log.see("p", changed, 2.0)
        assert _kinds(log) == [("alice", kind, 1), ("alice", "joined", 1)]
    log.see("p", HERE, 3.0)
    assert _kinds(log)[0] == ("alice", "member again", 1)


def test_refusals_are_told_by_reason() -> None:
    log = EventLog()
    log.see("p", HERE, 1.0)
    log.see("p", replace(HERE, rejections={"size": 1, "task": 2}), 2.0)
    assert log.report().rows[0].text.startswith("task 2; 3 ")
    log.see("p", replace(HERE, rejections={}), 3.0)  # it was forgotten and met again
    log.see("p", replace(HERE, rejections={"task": 1}), 4.0)
    row = log.report().rows[0]
    assert (row.text[:9], row.count, row.since, row.at) == ("task 1; 1", 2, 2.0, 4.0)


def test_a_node_that_was_there_before_does_not_join() -> None:
    log = EventLog()
    log.see("p", replace(HERE, is_present=False, epoch=0), 1.0)
    assert _kinds(log) == []
    log.see("p", HERE, 2.0)
    assert _kinds(log) == [("alice", "returned", 1)]


def test_keys_of_one_ticket_push_nobody_out() -> None:
    log = EventLog()
    log.see("first", HERE, 0.0)
    for number in range(2 * MAX_ROWS):
        log.see(f"p{number}", replace(HERE, name="mallory", issuer="m"), float(number))
    rows = log.report().rows
    assert len(rows) == MAX_ROWS
    assert rows[0].peer_id == f"p{2 * MAX_ROWS - 1}"
    assert rows[-1].peer_id == "first"


def test_a_peer_that_moves_for_ever_has_one_row() -> None:
    log = EventLog()
    for number in range(1000):
        log.see("p", replace(HERE, addresses=(f"/ip4/10.0.0.{number}/tcp/1",)), float(number))
    assert _kinds(log) == [("alice", "address changed", 999), ("alice", "joined", 1)]


def test_addresses_are_shown_cut_and_without_control_characters() -> None:
    log = EventLog()
    log.see("p", HERE, 1.0)
    log.see("p", replace(HERE, addresses=("\x1b[2J" + "a" * 999,)), 2.0)
    text = log.report().rows[0].text
    assert "\x1b" not in text
    assert len(text) <= 200
