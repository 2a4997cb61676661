"""What only the libp2p transport can get wrong: its process, its limits, its company."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import ROOT
from transports import ECHO, PATIENT, SIZED, echo, hivemind, running, sized

from swarm_node.errors import TransportError
from swarm_node.p2p.addresses.addresses import split_endpoint
from swarm_node.p2p.reach.address_check import knock
from swarm_node.p2p.transports.libp2p import daemon
from swarm_node.p2p.transports.libp2p.transport import Libp2pTransport
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.transport import MAX_REQUEST_BYTES

pytest.importorskip("trio", reason="py-libp2p is not installed")

WAIT = "/swarm-node/wait/1"
LISTEN = ["/ip4/127.0.0.1/tcp/0"]


async def wait(peer: str, payload: bytes) -> bytes:
    await asyncio.sleep(60)
    return b""


def prepared(made: Any) -> Any:
    for protocol, handler in ((ECHO, echo), (SIZED, sized), (WAIT, wait)):
        made.serve(protocol, handler)
    return made


def transport(**settings: Any) -> Libp2pTransport:
    chosen = {"listen": LISTEN, "rng": random.Random(0), **settings}
    identity = chosen.pop("identity", None) or Identity.generate()
    made: Libp2pTransport = prepared(Libp2pTransport(identity, **chosen))
    return made


def process_of(one: Libp2pTransport) -> psutil.Process:
    pid = one.daemon_pid
    assert pid is not None
    return psutil.Process(pid)


def place_of(one: Libp2pTransport) -> tuple[str, int]:
    """The host and the port on which it listens."""
    return (split_endpoint(one.addresses()[0].rpartition("/p2p/")[0]) or ("", "", 0))[1:]


def test_nothing_is_left_after_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(place: str) -> None:
        one = transport()
        async with running(one):
            (sockets,) = os.scandir(place)
            assert sockets.stat().st_mode & 0o777 == 0o700
            process = process_of(one)
            os.kill(process.pid, signal.SIGSTOP)  # it does not see that it should end
        assert not process.is_running()
        assert one.daemon_pid is None
        assert os.listdir(place) == []

    with tempfile.TemporaryDirectory() as place:  # pytest's are too deep for a socket
        monkeypatch.setattr(tempfile, "tempdir", place)
        asyncio.run(main(place))
    gc.collect()  # asyncio warns here of a process or a pipe that is left, and a warning fails


async def test_the_process_sees_no_variable_that_may_be_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")

    one = transport()
    async with running(one):
        assert "HF_TOKEN" not in process_of(one).environ()


def _holds(process: psutil.Process, secret: bytes) -> bool:
    """Search the memory that a process can write."""
    with Path(f"/proc/{process.pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            area, rights, *_, name = f"{line} -".split()[:7]
            if not rights.startswith("rw") or "[v" in name:  # the kernel's own pages
                continue
            begin, end = (int(number, 16) for number in area.split("-"))
            memory.seek(begin)
            if secret in memory.read(end - begin):
                return True
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process")
async def test_the_process_that_talks_to_strangers_never_has_the_nodes_key() -> None:
    identity = Identity.generate()
    one = transport(identity=identity)
    async with running(one):
        host, port = place_of(one)
        assert await knock(host, port, one.peer_id, seconds=30.0) == "open"
        assert await knock(host, port, Identity.generate().peer_id, seconds=30.0) == "other"
        process = process_of(one)
        assert _holds(process, identity.public_key), "its memory can be searched"
        assert not _holds(process, identity.seed())


async def test_a_port_in_use_and_a_missing_package_are_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = transport()
    async with running(one):
        endpoint = one.addresses()[0].rpartition("/p2p/")[0]
        with pytest.raises(TransportError, match="cannot listen"):
            await transport(listen=[endpoint]).start()
    monkeypatch.setattr(daemon, "is_installed", lambda: False)
    with pytest.raises(TransportError, match=r"\[libp2p\]"):
        await transport().start()


async def test_all_interfaces_are_announced_loopback_last_or_what_the_settings_say() -> None:
    announced = ["/dns4/node.example/tcp/31330"]
    one = transport(listen=["/ip4/0.0.0.0/tcp/0"])
    other = transport(announce=announced)
    async with running(one, other):
        endpoints = [text.rpartition("/p2p/")[0] for text in one.addresses()]
        hosts = [(split_endpoint(text) or ("", "", 0))[1] for text in endpoints]
        own = {
            item.address
            for each in psutil.net_if_addrs().values()
            for item in each
            if item.family.name == "AF_INET"
        }
        assert set(hosts) == own
        assert hosts[-1].startswith("127.")
        assert other.addresses() == [f"{announced[0]}/p2p/{other.peer_id}"]


async def test_links_run_over_ipv6_too() -> None:
    one, other = transport(listen=["/ip6/::1/tcp/0"]), transport(listen=["/ip6/::1/tcp/0"])
    async with running(one, other):
        assert await other.dial(one.addresses(), PATIENT) == 1
        assert await one.is_connected(other.peer_id)
        assert await one.request(other.peer_id, ECHO, b"x") == b"x"


async def test_there_is_no_table_of_heartbeats() -> None:
    one, other = transport(), transport()
    async with running(one, other):
        assert await other.dial(one.addresses(), PATIENT) == 1
        await other.publish_heartbeat(b"beat", ttl=60)
        assert not one.has_table
        assert await one.heartbeats() == {}


async def test_a_node_dials_the_address_that_answered_before_where_a_link_has_ended() -> None:
    one, other = transport(), transport()
    async with running(one, other):
        assert await other.dial(one.addresses(), PATIENT) == 1
        one.sever(other.peer_id, 60.0)
        with pytest.raises(TransportError):
            await other.request(one.peer_id, ECHO, b"cuts the link")
        one.sever(other.peer_id, 0.0)
        async with asyncio.timeout(60):
            while await other.is_connected(one.peer_id):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        assert await other.request(one.peer_id, ECHO, b"x") == b"x"
        assert await other.is_connected(one.peer_id)


async def test_connections_of_a_few_places_that_say_nothing_keep_nobody_out() -> None:
    one, other = transport(), transport()
    async with running(one, other):
        host, port = place_of(one)
        async with contextlib.AsyncExitStack() as stack:
            for number in range(128):  # MAX_STRANGERS, of as few addresses as can
                place = (f"127.0.1.{1 + number // 16}", 0)
                _, writer = await asyncio.open_connection(host, port, local_addr=place)
                stack.callback(writer.close)
            assert await other.dial(one.addresses(), PATIENT) == 1


@pytest.mark.slow(reason="four starts of daemons, two of which import py-libp2p")
async def test_nodes_of_both_stacks_ask_each_other(tmp_path: Path) -> None:
    one, other = transport(), prepared(hivemind(tmp_path))
    for dials, dialled in ((one, other), (other, one)):
        async with running(one, other):
            await dials.dial(dialled.addresses())
            assert await dials.is_connected(dialled.peer_id)
            for asks, asked in ((one, other), (other, one)):
                for size in (0, 1000, MAX_REQUEST_BYTES):
                    payload = random.Random(size).randbytes(size)
                    assert await asks.request(asked.peer_id, ECHO, payload) == payload
                replies = [asks.request(asked.peer_id, SIZED, b"3000000") for _ in range(8)]
                assert await asyncio.gather(*replies) == [bytes(3_000_000)] * 8
                with pytest.raises(TransportError, match="the limit"):
                    await asks.request(asked.peer_id, SIZED, b"1001", max_reply=1000)
                with pytest.raises(TransportError):
                    await asks.request(asked.peer_id, "/swarm-node/nothing/1", b"")
                assert await asks.request(asked.peer_id, ECHO, b"on") == b"on"


@pytest.mark.slow(reason="14 attacks, one of which sends 300 MiB")
async def test_nothing_that_is_sent_below_the_frames_harms_the_node() -> None:
    one, other = transport(), transport()
    async with running(one, other):
        assert await other.dial(one.addresses(), PATIENT) == 1
        before, peak = process_of(one).memory_info().rss, 0
        host, port = place_of(one)
        attacker = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ROOT / "tests" / "libp2p_attacker.py")),
            *(host, str(port), one.peer_id, WAIT),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        async with asyncio.TaskGroup() as group:
            said = group.create_task(attacker.communicate())
            while not said.done():  # an honest peer is answered all the while
                assert await other.request(one.peer_id, ECHO, b"x") == b"x"
                peak = max(peak, process_of(one).memory_info().rss)
                await asyncio.sleep(0.05)
        ended = json.loads(said.result()[0])
        refused = dict.fromkeys(("plaintext", "secio", "tls"), "na")
        reset = dict.fromkeys(("endless negotiation", "forged request"), "reset")
        assert ended == {**dict.fromkeys(ended, "cut"), **refused, **reset}
        assert len(ended) == 14
        assert peak - before < 200 << 20
        assert await other.heal([]) == "ok"
