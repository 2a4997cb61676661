"""What only the hivemind transport can get wrong: its daemon, its DHT, its secret."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import stat
import time
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import psutil
import pytest
from sites.faults import FaultProxy
from transports import ECHO, PATIENT, echo, hivemind, running, until

from swarm_node.errors import RefusedError, TransportError
from swarm_node.p2p.addresses.addresses import Address, unused_port
from swarm_node.p2p.transports.hivemind.process import private_file, private_key
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.transport import MAX_REQUEST_BYTES

HOLD = "/swarm-node/hold/1"


def transport(home: Path, **settings: Any) -> HivemindTransport:
    made = hivemind(home, **settings)
    made.serve(ECHO, echo)
    return made


def daemon_of(one: HivemindTransport) -> psutil.Process:
    pid = one.daemon_pid
    assert pid is not None
    return psutil.Process(pid)


def sockets_of(daemon: psutil.Process) -> list[Path]:
    """The daemon's control socket, from its own command line."""
    arguments = [a.removeprefix("-listen=/unix") for a in daemon.cmdline() if "-listen=/unix" in a]
    return [Path(argument) for argument in arguments]


async def test_a_daemon_that_was_stopped_together_with_its_node_is_not_killed(
    tmp_path: Path,
) -> None:
    one, other = transport(tmp_path), transport(tmp_path)
    async with running(one, other):
        assert await other.dial(one.addresses(), PATIENT) == 1
        daemon = daemon_of(other)

        def stop_both() -> None:
            daemon.send_signal(signal.SIGSTOP)
            time.sleep(5.0)
            daemon.send_signal(signal.SIGCONT)

        daemon.send_signal(signal.SIGSTOP)  # so that it is asked and does not answer before
        asyncio.get_running_loop().call_later(0.5, stop_both)
        assert await other.heal(one.addresses()) != "restarted"
        assert other.daemon_pid == daemon.pid
        assert await other.request(one.peer_id, ECHO, b"x") == b"x"


async def test_nothing_is_left_after_stop(tmp_path: Path) -> None:
    one = transport(tmp_path)
    async with running(one):
        daemon = daemon_of(one)
        sockets = sockets_of(daemon)
        assert [socket.exists() for socket in sockets] == [True]
        assert list((tmp_path / one.peer_id).iterdir()) == []
        os.kill(daemon.pid, signal.SIGSTOP)  # SIGTERM will have to wait: stop must not
    assert not daemon.is_running()
    assert not any(socket.exists() for socket in sockets)
    assert one.daemon_pid is None


def test_a_stop_that_is_given_up_leaves_nothing_either(tmp_path: Path) -> None:
    async def main() -> None:
        one = transport(tmp_path)
        async with running(one):
            daemon = daemon_of(one)
            os.kill(daemon.pid, signal.SIGSTOP)
            await until(lambda: daemon.status() == psutil.STATUS_STOPPED)
            stopping = asyncio.create_task(one.stop())
            await until(lambda: one.daemon_pid is None)  # stop() has begun, and waits for p2pd
            for _ in range(2):
                stopping.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await stopping
            assert not daemon.is_running()

    asyncio.run(main())
    gc.collect()  # asyncio warns here of a process or a pipe that is left, and a warning fails


def test_the_daemons_files_are_private_and_short_lived(tmp_path: Path) -> None:
    path = tmp_path / "p2pd.key"
    path.write_bytes(b"left by a crash")
    path.chmod(0o644)
    identity = Identity.generate()
    with private_file(path, private_key(identity)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_bytes().endswith(identity.seed() + identity.public_key)
    assert not path.exists()


async def test_a_failed_start_says_why_and_can_be_stopped(tmp_path: Path) -> None:
    one = transport(tmp_path)
    async with running(one):
        taken = one.addresses()[0].rpartition("/p2p/")[0]
        late = transport(tmp_path, listen=[taken])
        with pytest.raises(TransportError, match="cannot listen"):
            await late.start()
        await late.stop()
    nowhere = transport(tmp_path, listen=["/dns4/nobody.invalid/tcp/1"])
    with pytest.raises(TransportError, match="network daemon"):
        await nowhere.start()
    await nowhere.stop()


@pytest.mark.parametrize("listen", ["127.0.0.1:80", "/ip4/1.2.3.4/udp/1", "/ip4/x/tcp/1", ""])
def test_an_impossible_listen_address_is_refused_at_once(tmp_path: Path, listen: str) -> None:
    with pytest.raises(TransportError, match="an address"):
        transport(tmp_path, listen=[listen])


async def test_an_outsider_neither_reads_nor_writes(tmp_path: Path) -> None:
    one, other = transport(tmp_path), transport(tmp_path)
    outsider = transport(tmp_path, secret=b"a guess")
    async with running(one, other, outsider):
        assert await other.dial(one.addresses(), PATIENT) == 1
        await one.publish_heartbeat(b"for members", ttl=60)
        assert await outsider.dial([*one.addresses(), *other.addresses()]) == 0
        await outsider.publish_heartbeat(b"from outside", ttl=60)
        assert await outsider.heartbeats() == {}
        assert await other.heartbeats() == {one.peer_id: b"for members"}
        assert await one.heartbeats() == {}


async def test_a_member_cannot_forge_anothers_heartbeat(tmp_path: Path) -> None:
    victim, reader, forger = (transport(tmp_path) for _ in range(3))
    async with running(victim, reader, forger):
        for one in (reader, forger):
            assert await one.dial(victim.addresses(), PATIENT) == 1
        await victim.publish_heartbeat(b"genuine", ttl=30)
        expires = time.time() + 3000
        await forger._node.store(forger._key, victim.peer_id, b"forged", expires)
        await forger._node.store(forger._key, "not a peer id", b"junk", expires)
        await forger.publish_heartbeat(b"own", ttl=30)
        expected = {victim.peer_id: b"genuine", forger.peer_id: b"own"}
        assert await reader.heartbeats() == expected
        assert (await forger.heartbeats())[victim.peer_id] == b"genuine"


async def test_a_hung_bootstrap_does_not_delay_joining_through_another(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await asyncio.sleep(3600)

    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    hung = f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.generate().peer_id}"
    one, other = transport(tmp_path), transport(tmp_path)
    async with running(one, other):
        assert await other.dial([hung], patience=0.5) == 0
        assert await other.dial([hung, *one.addresses()], patience=1.0) == 1
        assert await other.request(one.peer_id, ECHO, b"x") == b"x"
    silent.close()


async def test_an_emptied_routing_table_heals_through_open_connections(tmp_path: Path) -> None:
    one, other = transport(tmp_path), transport(tmp_path)
    async with running(one, other):
        assert await other.dial(one.addresses(), PATIENT) == 1
        table = other._node._node.protocol.routing_table
        for node_id in list(table.uid_to_peer_id):  # as hivemind does after a stalled loop
            del table[node_id]
        assert await other.heal([]) == "healed"
        assert await other.heal([]) == "ok"


async def test_a_silent_link_is_cut_and_the_next_request_dials_anew(tmp_path: Path) -> None:
    one, other = transport(tmp_path), transport(tmp_path)
    async with running(one, other):
        (address,) = one.addresses()
        _, host, _, port = address.split("/")[1:5]
        proxy = FaultProxy((host, int(port)))
        listener = socket.create_server(("127.0.0.1", 0))
        through = address.replace(port, str(listener.getsockname()[1]), 1)
        async with await proxy.serve(listener):
            assert await other.dial([through], PATIENT) == 1
            assert await other.heal([]) == "ok"
            proxy.half_open()
            assert await other.is_connected(one.peer_id), "TCP says nothing"
            assert await other.heal([]) == "cut"
            assert await other.request(one.peer_id, ECHO, b"x") == b"x"
            await proxy.close()


async def test_an_address_that_was_silent_is_dialled_as_soon_as_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p2pd itself would leave it alone for five seconds after a failure, and longer after more."""

    one, other = transport(tmp_path), transport(tmp_path)
    # Another process could get a port from the system's range while the transport is stopped.
    one._listen = (f"/ip4/127.0.0.1/tcp/{unused_port('127.0.0.1')}",)
    async with running(other):
        await one.start()
        addresses = one.addresses()
        assert await other.dial(addresses, PATIENT) == 1  # others are dialled without a look
        await one.stop()
        while await other.is_connected(one.peer_id):
            pass  # p2pd notices the closed socket a moment later
        connect = other._node.connect
        asked: list[str] = []

        async def noted(address: Address, patience: float) -> bool:
            asked.append(address.multiaddr)
            return await connect(address, patience)

        monkeypatch.setattr(other._node, "connect", noted)
        # An address that is its own here, too: behind another router it may be the peer's.
        here = other.addresses()[0].replace(other.peer_id, one.peer_id)
        for _ in range(2):
            assert await other.dial([*addresses, here]) == 0
        assert asked == [], "p2pd has no failure to remember"
        await one.start()
        try:
            while not await other.dial([*addresses, here]):
                pass
        finally:
            await one.stop()
        assert {f"{address}/p2p/{one.peer_id}" for address in asked} == set(addresses)


async def test_one_peer_cannot_occupy_the_node(tmp_path: Path) -> None:
    working = peak = 0

    async def hold(peer: str, payload: bytes) -> bytes:
        nonlocal working, peak
        working += 1
        peak = max(peak, working)
        await asyncio.sleep(0.05)
        working -= 1
        return payload

    one, other = transport(tmp_path, max_concurrent_per_peer=2), transport(tmp_path)
    one.serve(HOLD, hold)
    async with running(one, other):
        assert await other.dial(one.addresses(), PATIENT) == 1
        outcomes = await asyncio.gather(
            *(other.request(one.peer_id, HOLD, b"x") for _ in range(80)),
            return_exceptions=True,
        )
        refused = [o for o in outcomes if isinstance(o, RefusedError)]
        assert peak == 2
        assert outcomes.count(b"x") + len(refused) == 80
        assert refused
        assert {o.code for o in refused} == {"queue_full"}
        assert await other.request(one.peer_id, HOLD, b"next") == b"next"


async def test_strangers_with_many_keys_cannot_occupy_the_node(tmp_path: Path) -> None:
    """They open streams and send nothing: streams that no socket carries here."""

    one = transport(tmp_path)
    one.screen(lambda presence, peer: True, lambda peer: peer == "member", str)

    def serve(peer: str) -> tuple[asyncio.StreamReader, Mock, asyncio.Task[None]]:
        reader, writer = asyncio.StreamReader(), Mock(drain=AsyncMock())
        served = one._serve_stream(ECHO, peer, reader, writer)
        return reader, writer, asyncio.create_task(served)

    held = [serve(f"stranger {number // 60}") for number in range(1200)]
    await asyncio.sleep(0)
    reader, writer, served = serve("member")
    reader.feed_data((1).to_bytes(8, "big") + b"x" + b"\x06")
    await served
    sent = b"".join(call.args[0] for call in writer.write.call_args_list)
    assert sent[:10] == b"\0" + (1).to_bytes(8, "big") + b"x"
    for stranger, _, _ in held:
        stranger.feed_eof()
    await asyncio.gather(*(task for _, _, task in held))
    assert one._admission._strangers == 0


async def _send_stream(sender: HivemindTransport, peer: str, junk: bytes) -> None:
    _, writer = await sender._node.open_stream(peer, ECHO, 5.0)
    writer.write(junk)
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("junk", "streams"),
    [((MAX_REQUEST_BYTES + 1).to_bytes(8, "big"), 1), (b"", 80)],
    ids=["oversize", "ends early"],
)
async def test_streams_that_no_honest_peer_opens_cut_its_link(
    tmp_path: Path, junk: bytes, streams: int
) -> None:
    one, sender, other = (transport(tmp_path) for _ in range(3))
    async with running(one, sender, other):
        for each in (sender, other):
            assert await each.dial(one.addresses(), PATIENT) == 1
        with contextlib.suppress(TransportError):  # its link may be cut before the last
            for _ in range(streams):
                await _send_stream(sender, one.peer_id, junk)
        await until(lambda: sender.peer_id in one._admission.severed_peers)
        with pytest.raises(TransportError):
            await sender.request(one.peer_id, ECHO, b"x")
        assert await other.request(one.peer_id, ECHO, b"x") == b"x"


async def test_stop_ends_requests_in_work(tmp_path: Path) -> None:
    begun = asyncio.Event()
    ended = []

    async def hold(peer: str, payload: bytes) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(peer)
        return payload

    async def stop_when_begun() -> None:
        await begun.wait()
        await one.stop()
        assert ended == [other.peer_id]

    one, other = transport(tmp_path), transport(tmp_path)
    one.serve(HOLD, hold)
    async with running(one, other):
        assert await other.dial(one.addresses(), PATIENT) == 1
        outcomes = await asyncio.gather(
            other.request(one.peer_id, HOLD, b"x"), stop_when_begun(), return_exceptions=True
        )
        assert isinstance(outcomes[0], TransportError)
        assert outcomes[1] is None


async def test_heartbeats_live_an_hour_at_most(tmp_path: Path) -> None:
    one = transport(tmp_path)
    async with running(one):
        for ttl in (0.0, -1.0, 3601.0, float("nan")):
            with pytest.raises(ValueError, match="3600"):
                await one.publish_heartbeat(b"", ttl)
        await one.publish_heartbeat(b"", 3600.0)
