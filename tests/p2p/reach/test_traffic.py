"""What is counted of the traffic with each peer, and which round trip is told."""

from __future__ import annotations

import asyncio

from swarm_node.p2p.reach.traffic import RECENT_SECONDS, REMEMBERED, PeerTraffic, Usage


def test_the_round_trip_is_the_smallest_recent_one() -> None:
    traffic = PeerTraffic()
    assert traffic.round_trip(0.0) is None
    for second, trip in ((1.0, 0.3), (2.0, 0.1), (3.0, 0.2)):
        traffic.record_answer(10, 100, trip, second)
    assert (traffic.bytes_out, traffic.bytes_in) == (30, 300)
    assert traffic.round_trip(4.0) == 0.1
    later = 1.0 + RECENT_SECONDS
    traffic.record_answer(0, 0, 0.5, later)
    assert traffic.round_trip(later + 1.0) == 0.1, "of the last minutes"
    assert traffic.round_trip(later + RECENT_SECONDS) == 0.5
    assert traffic.round_trip(later + 5 * RECENT_SECONDS) is None


def test_another_route_has_other_round_trips() -> None:
    usage = Usage()
    usage.record_answer("peer", "", 1, 2, 0.0, 0.01)
    usage.record_answer("peer", "relay", 1, 2, 1.0, 1.2)
    traffic = usage.traffic("peer")
    assert traffic is not None
    assert usage.relay_ids["peer"] == "relay"
    assert traffic.round_trip(2.0) == 1.2 - 1.0
    assert (traffic.bytes_out, traffic.bytes_in) == (2, 4)


def test_what_members_ask_is_counted_and_strangers_displace_nobody() -> None:
    usage = Usage()

    async def double(peer: str, payload: bytes) -> bytes:
        return 2 * payload

    async def main() -> None:
        serve = usage.counting(double, lambda peer: peer.startswith("member"))
        assert await serve("member", b"ask") == b"askask"
        for number in range(2 * REMEMBERED):
            await serve(f"stranger {number}", b"ask")

    asyncio.run(main())
    traffic = usage.traffic("member")
    assert traffic is not None
    assert (traffic.bytes_in, traffic.bytes_out) == (3, 6)
    assert usage.traffic("stranger 1") is None
    for number in range(2 * REMEMBERED):
        usage.record_answer(f"member {number}", "", 1, 1, 0.0, 0.1)
    kept = [usage.traffic(f"member {number}") is not None for number in range(2 * REMEMBERED)]
    assert sum(kept) == REMEMBERED
