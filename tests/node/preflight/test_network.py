"""What `doctor --network` says: of a running node by what members found, and before a start."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from swarm_node.node.metrics.snapshot import NetworkReport, Said, TriedRow
from swarm_node.node.preflight.doctor import Finding
from swarm_node.node.preflight.network import check_addresses, check_network, try_addresses
from swarm_node.p2p.peers.causes import Cause, advice, text_here
from swarm_node.p2p.reach.connect_attempts import DialAttempt
from swarm_node.p2p.reach.reachability import Outcome, Probed, Relay, assess
from swarm_node.p2p.wire.identity import Identity

ADDRESS = "/ip4/11.0.1.1/tcp/7/p2p/12D3KooW"


def probed(name: str, outcome: Outcome, ahead: float = 0.2) -> Probed:
    at = f"11.0.0.{len(name)}"
    return Probed(f"id of {name}", name, at, "11.0.1.1", 7, False, {7: outcome}, ahead)


def report(*probes: Probed, relays: tuple[Relay, ...] = (), **changes: Any) -> NetworkReport:
    told = NetworkReport(assess(probes, (7,), relays), [ADDRESS], 2, 3, 0.25)
    told = msgspec.structs.replace(told, tried=[TriedRow("peer", "al", 0.02)])
    return msgspec.structs.replace(told, **changes)


def judged(told: NetworkReport) -> dict[str, Finding]:
    """The findings by subject; none has two."""
    findings = list(check_network(told))
    by_subject = {finding.subject: finding for finding in findings}
    assert len(by_subject) == len(findings)
    return by_subject


def levels(told: NetworkReport) -> dict[str, str]:
    return {subject: finding.level for subject, finding in judged(told).items()}


def test_a_node_that_is_reached() -> None:
    found = judged(report(probed("al", "open"), probed("bob", "open")))
    assert {finding.level for finding in found.values()} == {"ok"}
    named = {"reach": "direct at 11.0.1.1:7", "observed": "11.0.1.1:7", "advertised": ADDRESS}
    named |= {"clocks": "al and bob", "dht": "answering: 2", "relay": "none", "nat": "arrive"}
    assert {subject: word in found[subject].found for subject, word in named.items()} == (
        dict.fromkeys(named, True)
    )


def test_a_node_that_is_not_reached_is_told_what_to_do() -> None:
    found = judged(report(probed("al", "timeout"), probed("bob", "timeout")))
    assert found["reach"].level == found["relay"].level == "warning"
    assert "TCP port 7" in found["reach"].remedy
    assert "dropped" in found["nat"].found
    assert "one join" in found["relay"].remedy


def test_each_relay_is_told_and_one_that_is_silent_is_no_good() -> None:
    relays = (Relay("hub", 0.05), Relay("spare"))
    hub = TriedRow("relay", "hub", 0.05)
    spare = TriedRow("relay", "spare", 5.0, Cause("no_answer", name="spare", seconds=5.0))
    peer = TriedRow("peer", "al", 0.02)

    def told(*tried: TriedRow) -> tuple[list[Finding], Finding]:
        found = list(check_network(report(probed("al", "timeout"), relays=relays, tried=[*tried])))
        (reach,) = [each for each in found if each.subject == "reach"]
        return [each for each in found if each.subject == "relay"], reach

    (first, second), reach = told(peer, hub, spare)
    assert (first.level, first.found[:3], second.level) == ("ok", "hub", "warning")
    assert second.found.startswith("spare ")
    assert second.remedy.endswith("enough"), "another one answers"
    assert reach.level == "ok"
    (alone,), reach = told(peer, spare)
    assert not alone.remedy.endswith("enough")
    assert (reach.level, "hub (50 ms)" in reach.found) == ("warning", True)


def test_a_stack_without_a_table_has_none_to_judge() -> None:
    assert judged(report(heartbeats=None))["dht"].level == "ok"


def test_nothing_is_claimed_that_was_not_probed() -> None:
    unknown = report(peers=0, heartbeats=0)
    ok = ("reach", "nat", "observed", "relay", "clocks")
    assert {levels(unknown)[subject] for subject in ok} == {"ok"}
    table = judged(unknown)["dht"]
    assert (table.level, "-node config" in table.remedy) == ("warning", True)
    shut = Cause("nobody_listens", where="11.0.0.1:7")
    assert judged(report(peers=0, heartbeats=0, causes=[shut]))["dht"].remedy == advice(shut)
    alone = judged(report(peers=0, heartbeats=0, tried=[]))
    assert (alone["dht"].level, alone["peers"].level) == ("ok", "warning")
    assert "-node invite" in alone["peers"].remedy
    (fault,) = [each for each in check_network(report(fault="late")) if each.remedy]
    assert (fault.subject, fault.found) == ("dht", "late")


def test_a_wrong_clock_is_seen_by_the_majority() -> None:
    def clock(*ahead: float) -> Finding:
        names = ("al", "bob", "carl")
        probes = (probed(name, "open", each) for name, each in zip(names, ahead, strict=False))
        return judged(report(*probes))["clocks"]

    assert clock(1.0, 9e9, -2.0).level == "ok"
    assert clock(40.0, 41.0, 0.0).level == "warning"
    for ahead in (400.0, -400.0):
        told = Cause("clock", name="al, bob and carl", seconds=-ahead)
        assert clock(ahead, ahead, 0.0)[1:] == ("error", text_here(told), advice(told))


def test_before_a_start_the_nodes_that_the_ticket_names_are_tried() -> None:
    one, two = (f"/ip4/11.0.0.{i}/tcp/7/p2p/{Identity.generate().peer_id}" for i in (1, 2))
    lost = DialAttempt(two, "timeout", 3.0)
    _, first, second = check_addresses([DialAttempt(one, "open", 0.012), lost])
    assert (first.subject, first.level, first.found[:10]) == ("address", "ok", "11.0.0.1:7")
    assert (second.level, second.found[:10]) == ("warning", "11.0.0.2:7")
    assert second.remedy.endswith("enough"), "another one answers"
    (_, alone, reached) = check_addresses([DialAttempt(two, "refused")])
    assert alone.found.startswith("11.0.0.2:7 refuses ")
    assert not alone.remedy.endswith("enough")
    assert (reached.subject, reached.level) == ("peers", "error")
    (_, nobody) = check_addresses([])
    assert (nobody.level, nobody.subject) == ("warning", "peers")
    peer = Identity.generate().peer_id
    tried = asyncio.run(try_addresses([f"/ip4/127.0.0.1/tcp/1/p2p/{peer}", "nonsense"]))
    assert [each.outcome for each in tried] == ["refused", "untried"]


def test_a_running_node_that_reaches_nobody_is_an_error_whatever_members_found_before() -> None:
    gone = TriedRow("peer", "al", 5.0, Cause("no_answer", name="al", seconds=5.0))
    closed = TriedRow("address", "11.0.0.1:7", 0.1, Cause("nobody_listens", where="11.0.0.1:7"))
    found = list(check_network(report(probed("al", "open"), tried=[closed, gone])))
    assert [(each.subject, each.level) for each in found] == [
        *(("address", "warning"), ("peer", "warning"), ("peers", "error"))
    ]
    there = TriedRow("coordinator", "http://11.0.0.9", 0.1)
    beside = check_network(report(probed("al", "open"), tried=[gone, there]))
    assert "error" in {each.level for each in beside}, "a coordinator is no peer"
    well = levels(report(probed("al", "open"), tried=[closed, TriedRow("peer", "al", 0.02)]))
    assert "error" not in well.values()
    assert (well["peer"], well["reach"]) == ("ok", "ok")


def test_the_verdict_comes_first_and_no_cause_is_told_twice() -> None:
    lost = Cause("other_swarm", "id of al", "al")
    shut = Cause("nobody_listens", "id of bob", where="11.0.0.2:7")
    far = Cause("no_answer", "id of carl", where="11.0.0.3:7")
    first, second, *others = check_network(
        report(
            findings=[Said("other_swarm", "bad", text_here(lost), "do it")],
            causes=[lost, shut, far],
            tried=[TriedRow("address", "11.0.0.2:7", 0.1, shut), TriedRow("peer", "di", 0.02)],
        )
    )
    assert first == Finding("other_swarm", "error", text_here(lost), "do it")
    assert second == Finding("no_answer", "warning", text_here(far), advice(far))
    assert len([each for each in others if "11.0.0.2:7" in each.found]) == 1
