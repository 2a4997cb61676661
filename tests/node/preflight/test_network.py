"""What `doctor --network` says: of a running node by what members found, and before a start."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from swarm_node.node.figures.snapshot import NetworkReport, Said, TriedRow
from swarm_node.node.preflight.doctor import Finding
from swarm_node.node.preflight.network import judge_addresses, judge_network, try_addresses
from swarm_node.p2p.peers.causes import Cause, advice, told_here
from swarm_node.p2p.reach.attempts import DialAttempt
from swarm_node.p2p.reach.verdict import Outcome, Probed, Relay, judge
from swarm_node.p2p.wire.identity import Identity

ADDRESS = "/ip4/11.0.1.1/tcp/7/p2p/12D3KooW"


def probed(name: str, outcome: Outcome, ahead: float = 0.2) -> Probed:
    at = f"11.0.0.{len(name)}"
    return Probed(f"id of {name}", name, at, "11.0.1.1", 7, False, {7: outcome}, ahead)


def report(*probes: Probed, relays: tuple[Relay, ...] = (), **changes: Any) -> NetworkReport:
    told = NetworkReport(judge(probes, (7,), relays), [ADDRESS], 2, 3, 0.25)
    told = msgspec.structs.replace(told, tried=[TriedRow("peer", "al", 0.02)])
    return msgspec.structs.replace(told, **changes)


def judged(told: NetworkReport) -> dict[str, Finding]:
    """The findings by subject; none has two."""
    findings = list(judge_network(told))
    by_subject = {finding.subject: finding for finding in findings}
    assert len(by_subject) == len(findings)
    return by_subject


def test_a_node_that_is_reached() -> None:
    found = judged(report(probed("al", "open"), probed("bob", "open")))
    assert {finding.level for finding in found.values()} == {"ok"}
    assert found["reach"].found == "direct at 11.0.1.1:7, by al and bob"
    assert found["nat"].found == "translated, and new connections arrive"
    assert found["seen"].found == "at 11.0.1.1:7 by al and at 11.0.1.1:7 by bob"
    assert found["told"].found == f"to others: {ADDRESS}"
    assert found["relay"].found == "none, and none is needed"
    assert found["clocks"].found == "this clock is 0 s behind that of al and bob"
    assert found["dht"].found == "3 heartbeats in 0.2 s; answering: 2"


def test_a_node_that_is_not_reached_is_told_what_to_do() -> None:
    found = judged(report(probed("al", "timeout"), probed("bob", "timeout")))
    assert found["reach"].level == found["relay"].level == "warning"
    assert found["reach"].remedy == "forward TCP port 7 of the router to this machine"
    assert found["nat"].found == "translated, new connections are dropped"
    assert found["relay"].found == "none holds a link for this node"
    assert "let one join" in found["relay"].remedy


def test_each_relay_is_told_and_one_that_is_silent_is_no_good() -> None:
    relays = (Relay("hub", 0.05), Relay("spare"))
    hub = TriedRow("relay", "hub", 0.05)
    spare = TriedRow("relay", "spare", 5.0, Cause("no_answer", name="spare", seconds=5.0))
    peer = TriedRow("peer", "al", 0.02)

    def told(*tried: TriedRow) -> tuple[list[Finding], Finding]:
        found = list(judge_network(report(probed("al", "timeout"), relays=relays, tried=[*tried])))
        (reach,) = [each for each in found if each.subject == "reach"]
        return [each for each in found if each.subject == "relay"], reach

    (first, second), reach = told(peer, hub, spare)
    assert first == Finding("relay", "ok", "hub answers in 50 ms")
    assert (second.level, second.found) == ("warning", "spare does not answer, after 5.0 s")
    assert second.remedy.endswith("another one answers, which is enough")
    assert reach.level == "ok"
    (alone,), reach = told(peer, spare)
    assert "another one" not in alone.remedy
    assert (reach.level, reach.found.split(";")[0]) == (
        "warning",
        "via relay hub (50 ms) and spare",
    )


def test_a_stack_without_a_table_says_so() -> None:
    table = judged(report(heartbeats=None))["dht"]
    assert (table.level, table.found) == (
        "ok",
        "none: this stack asks peers instead; answering: 2",
    )


def test_nothing_is_claimed_that_was_not_probed() -> None:
    found = judged(report(peers=0, heartbeats=0))
    assert found["reach"] == Finding("reach", "ok", "not probed yet: no member to ask")
    assert found["nat"].found == "not known"
    assert found["seen"].found == "by no member yet"
    assert found["relay"].found == "none"
    assert found["clocks"].found == "no member to compare with"
    assert found["dht"].level == "warning"
    assert "swarm-node config" in found["dht"].remedy
    shut = Cause("nobody_listens", where="11.0.0.1:7")
    assert judged(report(peers=0, heartbeats=0, causes=[shut]))["dht"].remedy == advice(shut)
    alone = judged(report(peers=0, heartbeats=0, tried=[]))
    assert (alone["dht"].level, alone["reached"].level) == ("ok", "warning")
    assert "swarm-node invite" in alone["reached"].remedy
    (fault,) = [each for each in judge_network(report(fault="took too long")) if each.remedy]
    assert (fault.subject, fault.found) == ("dht", "took too long")


def test_a_wrong_clock_is_seen_by_the_majority() -> None:
    def clock(*ahead: float) -> Finding:
        names = ("al", "bob", "carl")
        probes = (probed(name, "open", each) for name, each in zip(names, ahead, strict=False))
        return judged(report(*probes))["clocks"]

    assert clock(1.0, 9e9, -2.0).level == "ok"
    assert clock(40.0, 41.0, 0.0).level == "warning"
    assert clock(-400.0, -401.0, 0.0).level == "error"
    told = Cause("clock", name="al, bob and carl", seconds=400.0)
    assert clock(-400.0, -401.0, 0.0)[2:] == (told_here(told), advice(told))
    assert clock(400.0, 401.0, 0.0).found.startswith("this clock is 400 s behind that of")


def test_before_a_start_the_nodes_that_the_ticket_names_are_tried() -> None:
    one, two = (f"/ip4/11.0.0.{i}/tcp/7/p2p/{Identity.generate().peer_id}" for i in (1, 2))
    lost = DialAttempt(two, "timeout", 3.0)
    first, *found = judge_addresses([DialAttempt(one, "open", 0.012), lost])
    assert first.found == "known while the node runs: start it, and ask again"
    assert found[0] == Finding("address", "ok", "11.0.0.1:7 answers in 12 ms")
    assert (found[1].level, found[1].found) == (
        "warning",
        "11.0.0.2:7 does not answer, after 3.0 s",
    )
    assert found[1].remedy.endswith("another one answers, which is enough")
    (_, alone, reached) = judge_addresses([DialAttempt(two, "refused")])
    assert alone.found == "11.0.0.2:7 refuses connections, after 0.0 s"
    assert "another one" not in alone.remedy
    assert (reached.level, reached.found) == ("error", "nobody is reached")
    (_, nobody) = judge_addresses([])
    assert (nobody.level, nobody.subject) == ("warning", "reached")

    peer = Identity.generate().peer_id
    tried = asyncio.run(try_addresses([f"/ip4/127.0.0.1/tcp/1/p2p/{peer}", "nonsense"]))
    assert [each.outcome for each in tried] == ["refused", "untried"]


def test_a_running_node_that_reaches_nobody_is_an_error_whatever_members_found_before() -> None:
    gone = TriedRow("peer", "al", 5.0, Cause("no_answer", name="al", seconds=5.0))
    closed = TriedRow("address", "11.0.0.1:7", 0.1, Cause("nobody_listens", where="11.0.0.1:7"))
    dead = report(probed("al", "open"), tried=[closed, gone])
    found = list(judge_network(dead))
    assert [each.level for each in found] == ["warning", "warning", "error"]
    assert [each.subject for each in found] == ["address", "peer", "reached"]
    there = TriedRow("coordinator", "http://11.0.0.9", 0.1)
    assert any(
        each.level == "error"
        for each in judge_network(report(probed("al", "open"), tried=[gone, there]))
    ), "a coordinator is no peer"
    well = [
        *judge_network(report(probed("al", "open"), tried=[closed, TriedRow("peer", "al", 0.02)]))
    ]
    assert "error" not in {each.level for each in well}
    assert Finding("peer", "ok", "al answers in 20 ms") in well
    assert "reach" in {each.subject for each in well}


def test_the_verdict_comes_first_and_no_cause_is_told_twice() -> None:
    lost = Cause("other_swarm", "id of al", "al")
    shut = Cause("nobody_listens", "id of bob", where="11.0.0.2:7")
    far = Cause("no_answer", "id of carl", where="11.0.0.3:7")
    first, second, *others = judge_network(
        report(
            findings=[Said("other_swarm", "bad", f"training alone: {told_here(lost)}", "do it")],
            causes=[lost, shut, far],
            tried=[TriedRow("address", "11.0.0.2:7", 0.1, shut), TriedRow("peer", "di", 0.02)],
        )
    )
    assert first == Finding("other_swarm", "error", f"training alone: {told_here(lost)}", "do it")
    assert second == Finding("no_answer", "warning", told_here(far), advice(far))
    assert [each.found for each in others if "refuses" in each.found] == [
        "11.0.0.2:7 refuses connections, after 0.1 s"
    ]
