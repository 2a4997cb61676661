"""Which streams are served: every limit, and what follows for who runs into one."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from swarm_node.p2p.limits.admission import (
    MAX_STRANGERS_STREAMS,
    MAX_STREAMS,
    MAX_WAITING_PER_PEER,
    Admission,
    BusyError,
    PeerSlots,
    Severed,
)
from swarm_node.p2p.limits.links import STREAMS_PER_PEER


def issuer(peer: str) -> str:
    """Peers are named `issuer/number`."""
    return peer.partition("/")[0]


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_link_is_cut_for_its_time_and_a_later_cut_replaces_an_earlier_one() -> None:
    time = Time()
    severed = Severed(time)
    severed.sever("junk", 10.0)
    assert "junk" in severed
    assert "other" not in severed
    time.now = 10.0
    assert "junk" not in severed
    severed.sever("junk", 60.0)
    severed.sever("junk", 0.0)
    assert "junk" not in severed


def test_strangers_share_a_quarter_of_all_streams_and_members_do_not_notice() -> None:
    admission = Admission(8, Time())
    entries = [admission.enter(f"stranger {n}", True) for n in range(MAX_STRANGERS_STREAMS)]
    assert None not in entries
    assert not admission.enter("another", True)
    assert admission.enter("member", False)
    assert entries[0]
    admission.leave(entries[0])
    assert admission.enter("another", True)


def test_of_too_many_streams_the_last_are_not_looked_at() -> None:
    admission = Admission(8, Time())
    admission.issuer = str
    for number in range(2 * MAX_STREAMS):
        assert admission.enter(f"member {number}", False)
    assert not admission.enter("member", False)


def test_a_peer_has_a_number_of_streams_and_who_goes_on_is_cut_off() -> None:
    admission = Admission(8, Time())
    entries = [admission.enter("flooder", False) for _ in range(STREAMS_PER_PEER)]
    assert None not in entries
    for _ in range(65):
        assert "flooder" not in admission.severed_peers
        assert admission.enter("flooder", False) is None
    assert "flooder" in admission.severed_peers
    assert admission.enter("other", False)
    for entry in entries:
        assert entry
        admission.leave(entry)
    admission.severed_peers.sever("flooder", 0.0)
    assert admission.enter("flooder", False)


def test_members_of_an_issuer_have_at_most_as_many_streams_as_are_free() -> None:
    admission = Admission(8, Time())
    admission.issuer = issuer
    taken = [admission.enter(f"bad/{number // 100}", False) for number in range(2 * MAX_STREAMS)]
    assert [entry is not None for entry in taken] == [True] * MAX_STREAMS + [False] * MAX_STREAMS
    assert admission.enter("good/1", False)
    assert admission.enter("bad/0", False) is None
    for entry in taken[:2]:
        assert entry
        admission.leave(entry)
    assert admission.enter("bad/0", False)


def test_an_entry_counts_for_the_issuer_that_it_began_with() -> None:
    """A stranger that greets becomes a member while its stream runs."""
    admission = Admission(8, Time())
    entry = admission.enter("newcomer", True)
    assert entry
    admission.issuer = issuer
    admission.leave(entry)
    assert not admission._open
    assert not admission._members
    assert admission._strangers == 0


def test_early_ends_cut_a_link_when_they_are_no_accident_and_junk_cuts_it_at_once() -> None:
    admission = Admission(8, Time())
    for _ in range(64):
        admission.ended_early("careless", junk=False)
    assert "careless" not in admission.severed_peers
    admission.ended_early("careless", junk=False)
    assert "careless" in admission.severed_peers
    admission.ended_early("liar", junk=True)
    assert "liar" in admission.severed_peers
    assert not admission.enter("liar", False)


async def test_slots_of_all_keys_have_a_limit() -> None:
    slots = PeerSlots()
    async with contextlib.AsyncExitStack() as all_of_them:
        for number in range(MAX_STREAMS):
            await all_of_them.enter_async_context(slots.hold(f"peer {number}", 2))
        with pytest.raises(BusyError, match=r"^busy"):
            await all_of_them.enter_async_context(slots.hold("another", 2))
    async with slots.hold("another", 2):
        pass


async def test_slots_run_some_of_a_key_keep_some_waiting_and_refuse_more() -> None:
    slots, running, over = PeerSlots(), [], asyncio.Event()

    async def work(key: str) -> None:
        async with slots.hold(key, 2):
            running.append(key)
            await over.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(2 + MAX_WAITING_PER_PEER):
            group.create_task(work("busy"))
        await asyncio.sleep(0)
        assert running == ["busy", "busy"]
        with pytest.raises(BusyError, match="your requests"):
            await work("busy")
        group.create_task(work("other"))
        await asyncio.sleep(0)
        assert running == ["busy", "busy", "other"]
        over.set()
    assert running.count("busy") == 2 + MAX_WAITING_PER_PEER
    async with slots.hold("busy", 2):  # nothing of it is left
        pass


async def test_members_of_one_issuer_that_stall_leave_streams_to_others() -> None:
    """Twenty keys of one ticket, each with fewer streams than cost it its link."""

    admission, over = Admission(8, Time()), asyncio.Event()
    admission.issuer = issuer

    async def stall(peer: str) -> None:
        with contextlib.suppress(BusyError):
            async with admission.hold(peer, "/swarm-node/list/1"):
                await over.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(600):
            group.create_task(stall(f"bad/{number % 20}"))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match=r"^busy"):
            await admission.hold("bad/99", "/swarm-node/list/1").__aenter__()
        async with admission.hold("good/1", "/swarm-node/list/1"):
            over.set()
    async with admission.hold("bad/99", "/swarm-node/list/1"):
        pass
    assert not admission._slots._groups  # nothing of it is left
