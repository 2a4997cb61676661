"""Cost of a relay: many members, half of which ask the others for groups through one relay.

    python benchmarks/relay.py [--members 20] [--groups 40] [--kilobytes 100]

All run on this machine over real daemons, the relay in a process of its own. Printed are the CPU
time of the relay per megabyte and its memory (Python and daemon), and requests through it against
direct ones. On a loaded machine only comparisons hold.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from reach_ends import WHO, End
from swarm_keys import Swarm
from transports import SIZED

from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.wire.identity import Identity

AT_ONCE = 4
PINGS = 100


def meet(swarm: Swarm, ends: Sequence[End], numbers: Sequence[int], relay: str) -> None:
    """Let all ends hear of all members; member 0 relays at the address `relay`."""
    for number in numbers:
        fields = {"addresses": (relay,), "relays": True} if not number else {"addresses": ()}
        presence = swarm.presence(swarm.member(number), 60.0, **fields)
        for end in ends:
            end.members.read_presence(presence)


async def serve(place: Path, begin: int, count: int) -> None:
    """The relay's process: until its input ends."""
    swarm = Swarm(begin)
    end = End(place, swarm, 0, hidden=False)
    meet(swarm, [end], range(1, count + 1), "")
    await end.reaching.start()
    print(end.reaching.addresses()[0], end.inner.daemon_pid, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(
        end.reaching.forwarding_metrics.requests, end.reaching.forwarding_metrics.bytes, flush=True
    )
    await end.reaching.stop()


def usage(pids: Sequence[int]) -> list[tuple[float, float]]:
    """CPU seconds and resident MiB of processes."""
    processes = [psutil.Process(pid) for pid in pids]
    return [(sum(p.cpu_times()[:2]), p.memory_info().rss / 2**20) for p in processes]


async def pings(end: End, peer: str) -> float:
    """The median of the milliseconds of small requests, one after the other."""
    durations = []
    for _ in range(PINGS):
        begin = time.perf_counter()
        await end.reaching.request(peer, WHO, b"")
        durations.append(time.perf_counter() - begin)
    return 1000 * statistics.median(durations)


async def pull(end: End, peer: str, groups: int, size: int) -> None:
    """Ask for `groups` replies of `size` bytes, a few at once."""
    remaining_groups = iter(range(groups))

    async def one_after_the_other() -> None:
        for _ in remaining_groups:
            reply = await end.reaching.request(peer, SIZED, b"%d" % size, max_reply=size)
            assert len(reply) == size

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


def start_relay(place: Path, begin: int, count: int) -> subprocess.Popen[str]:
    """The relay of `count` members, in a swarm that began at this Unix second."""
    return subprocess.Popen(
        [sys.executable, __file__, "--relay", str(place), str(begin), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def measure(
    relay: subprocess.Popen[str], place: Path, begin: int, count: int, groups: int, size: int
) -> None:
    assert relay.stdin is not None
    assert relay.stdout is not None
    address, daemon = relay.stdout.readline().split()
    swarm, pids = Swarm(begin), (relay.pid, int(daemon))
    ends = [End(place, swarm, number, hidden=True) for number in range(1, count + 1)]
    meet(swarm, ends, range(count + 1), address)
    for end in ends:
        await end.reaching.start()
        while not end.reaching.relays.relay_addresses():
            await end.reaching.keep()
    pairs = list(zip(ends[::2], ends[1::2], strict=True))
    for client, server in pairs:
        addresses = circuit.advertised_addresses(server.reaching.addresses())
        assert await client.reaching.dial(circuit.complete_circuits(addresses, server.peer_id)) == 1
    relay_id = Identity.from_seed(bytes(32)).peer_id
    (client, server), asker = pairs[0], ends[0]
    direct_ms, relayed_ms = await pings(asker, relay_id), await pings(client, server.peer_id)
    print(
        f"small request  direct {direct_ms:.1f} ms, relayed {relayed_ms:.1f} ms: "
        f"x{relayed_ms / direct_ms:.1f}"
    )
    old_usages, start = usage(pids), time.perf_counter()
    await asyncio.gather(*(pull(client, server.peer_id, groups, size) for client, server in pairs))
    seconds, new_usages = time.perf_counter() - start, usage(pids)
    megabytes = len(pairs) * groups * size / 1e6
    print(f"relayed        {megabytes:.0f} MB in {seconds:.1f} s: {megabytes / seconds:.1f} MB/s")
    start = time.perf_counter()
    await pull(asker, relay_id, groups * len(pairs), size)
    direct_s = time.perf_counter() - start
    print(
        f"direct         {megabytes / direct_s:.1f} MB/s from the relay itself: "
        f"x{seconds / direct_s:.1f}"
    )
    for name, old_usage, new_usage in zip(("Python", "p2pd"), old_usages, new_usages, strict=True):
        cpu, memory = (
            1000 * (new_usage[0] - old_usage[0]) / megabytes,
            f"{old_usage[1]:.0f} to {new_usage[1]:.0f} MiB",
        )
        print(f"{name:<14} {cpu:.1f} CPU ms/MB, {memory}")
    relay.stdin.close()
    print("forwarded     ", *relay.stdout.readline().split())
    relay.wait(60)
    for end in ends:
        await end.reaching.stop()


def main() -> None:
    if sys.argv[1:2] == ["--relay"]:
        asyncio.run(serve(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--kilobytes", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        begin, size = int(time.time()) - 60, 1000 * options.kilobytes
        relay = start_relay(Path(place), begin, options.members)
        asyncio.run(measure(relay, Path(place), begin, options.members, options.groups, size))


if __name__ == "__main__":
    main()
