"""The only module that uses hivemind's DHT node. process.py runs the p2pd process below it.

It uses private parts of hivemind (`_child`, `_client`), so pyproject.toml pins the exact version.
Importing hivemind brings torch, so both modules import it inside functions only. Every failure
below is raised as `TransportError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from swarm_node.errors import NotServedError, TransportError, words_of
from swarm_node.p2p.addresses.addresses import Address, endpoint_text, is_here
from swarm_node.p2p.transports.hivemind.calls import TableCalls
from swarm_node.p2p.transports.hivemind.process import (
    CONFIGURATION,
    private_file,
    private_key,
    start_p2pd,
    terminate,
)
from swarm_node.p2p.transports.hivemind.records import (
    HeartbeatRecords,
    HeartbeatStore,
    SwarmAuthorizer,
)
from swarm_node.p2p.transports.streams import MAX_WAITING, STOP_SECONDS, StreamServer
from swarm_node.p2p.transports.timeouts import on_time
from swarm_node.p2p.wire.identity import Identity
from swarm_node.recent import Recent

RPC_SECONDS = 3.0
LOOKUP_SECONDS = 15.0
#: libp2p's ping: 32 bytes that the peer returns.
_PING, _PING_BYTES = "/ipfs/ping/1.0.0", 32
#: Kademlia's k, and the number of replicas: in a small swarm every node holds every record.
REPLICAS = 20
_MAX_DIALLED = 1024
#: The words of p2pd for a peer that answers and lacks the protocol (go-multistream).
_NOT_SERVED = "protocols not supported"


def new_store(
    key: str,
    wall: Callable[[], float],
    is_member: Callable[[str], bool],
    issuer: Callable[[str], str],
    rng: random.Random,
) -> tuple[bytes, HeartbeatStore]:
    """The 20-byte id that hivemind gives `key`, and an empty store for it."""
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DictionaryDHTValue
    from hivemind.utils.timed_storage import ValueWithExpiration

    def pack(records: list[tuple[str, bytes, float]]) -> Any:
        dictionary = DictionaryDHTValue()
        for peer_id, value, expires in records:
            dictionary.store(peer_id, value, expires)
        return ValueWithExpiration(dictionary, dictionary.latest_expiration_time)

    key_id = DHTID.generate(source=key)
    return key_id.to_bytes(), HeartbeatStore(key_id, wall, pack, is_member, issuer, rng)


class DhtNode:
    """A running hivemind DHT node with its own p2pd."""

    def __init__(self, p2p: Any, node: Any, announces: bool = False) -> None:
        self._p2p = p2p
        self._node = node
        self._announces = announces
        #: Peers that this node dialled, which have a place in its table before they are known.
        self._dialled: Recent[str, None] = Recent(_MAX_DIALLED)
        self._addresses: list[str] = []
        self._listener: asyncio.Server | None = None

    @classmethod
    async def start(
        cls,
        key_file: Path,
        identity: Identity,
        *,
        listen: Sequence[str],
        announce: Sequence[str],
        records: HeartbeatRecords,
        authorizer: SwarmAuthorizer,
        store: HeartbeatStore,
        calls: TableCalls,
        patience: float,
    ) -> DhtNode:
        """Start p2pd and the DHT on it, without a peer. `key_file` and p2pd's configuration file
        beside it exist only while p2pd starts.

        Raises:
            TransportError: p2pd cannot be run or listen, or is not ready in `patience` seconds.
        """
        from hivemind.dht.node import DHTNode
        from hivemind.dht.routing import DHTID

        _calm_logging()
        with hivemind_errors("cannot start the network daemon"):
            p2p = await _start_daemon(key_file, identity, listen, announce, calls, patience)
            self = cls(p2p, None, bool(announce))
            try:
                self._node = await DHTNode.create(
                    p2p=p2p,
                    # From the peer id, so that a restarted node keeps its entry in others' tables.
                    node_id=DHTID.generate(source=identity.peer_id),
                    num_replicas=REPLICAS,
                    wait_timeout=RPC_SECONDS,
                    cache_locally=False,
                    cache_nearest=0,
                    cache_on_store=False,
                    backoff_rate=1.0,  # hivemind's default blocks a flapping peer for hours
                    record_validator=records,
                    authorizer=authorizer,
                )
                self._limit(store, calls.is_member)
                self._addresses = [str(a) for a in await p2p.get_visible_maddrs()]
            except BaseException:
                await self.stop()
                raise
        return self

    def _limit(self, store: HeartbeatStore, is_member: Callable[[str], bool]) -> None:
        """Use `store`. Keep a peer out of the routing table if it is no member and this node did
        not dial it. hivemind adds every caller."""
        protocol = self._node.protocol
        protocol.storage = protocol.cache = store
        update = protocol.update_routing_table

        async def guard(node_id: Any, peer: Any, responded: bool = True) -> None:
            name = peer.to_base58()
            if not responded or name in self._dialled or is_member(name):
                await update(node_id, peer, responded=responded)

        protocol.update_routing_table = guard

    @property
    def pid(self) -> int:
        return int(self._p2p._child.pid)

    @property
    def dead(self) -> bool:
        """True after p2pd has exited (hivemind's own `is_alive` never notices)."""
        return self._p2p._child.returncode is not None

    @property
    def addresses(self) -> list[str]:
        return list(self._addresses)

    @property
    def lonely(self) -> bool:
        """True while the routing table is empty."""
        return not self._node.protocol.routing_table.uid_to_peer_id

    async def serve(self, protocols: Sequence[str], server: StreamServer) -> None:
        """Call `server` with every stream that a peer opens for one of `protocols`. hivemind's own
        listener queues a hundred, and p2pd resets further ones of any peer."""
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings import utils
        from hivemind.proto import p2pd_pb2

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            info = p2pd_pb2.StreamInfo()
            try:
                await utils.read_pbmsg_safe(reader, info)
            except (OSError, EOFError, ValueError):  # p2pd died
                writer.transport.abort()
                return
            await server(info.proto, PeerID(info.peer).to_base58(), reader, writer)

        address = self._p2p._client_listen_maddr
        with hivemind_errors("cannot serve"):
            self._listener = await asyncio.start_unix_server(
                accept, address["unix"], backlog=MAX_WAITING
            )
            for protocol in protocols:
                handler = p2pd_pb2.StreamHandlerRequest(
                    addr=address.to_bytes(), proto=[protocol], balanced=False
                )
                request = p2pd_pb2.Request(
                    type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=handler
                )
                _, _, writer = await self._command(request)
                writer.close()

    async def connect(self, address: Address, patience: float) -> bool:
        """Connect and ping. Return True if a member of this swarm answered within `patience`
        seconds."""
        from hivemind.p2p import PeerID
        from hivemind.proto import p2pd_pb2
        from hivemind.utils.multiaddr import Multiaddr

        peer = PeerID.from_base58(address.peer_id)
        self._dialled[address.peer_id] = None
        try:
            async with asyncio.timeout(patience):
                with hivemind_errors("cannot connect"):
                    request = p2pd_pb2.Request(
                        type=p2pd_pb2.Request.CONNECT,
                        connect=p2pd_pb2.ConnectRequest(
                            peer=peer.to_bytes(),
                            addrs=[Multiaddr(address.multiaddr).to_bytes()],
                            timeout=max(1, round(patience)),
                        ),
                    )
                    _, _, writer = await self._command(request)
                    writer.close()
                return await self._node.protocol.call_ping(peer) is not None
        except (TimeoutError, TransportError):
            return False

    async def open_stream(
        self, peer_id: str, protocol: str, patience: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a stream to a peer's `protocol`; the caller closes the writer.

        Raises:
            TransportError: unreachable, or no answer in `patience` s. NotServedError: see there.
        """
        from hivemind.p2p import PeerID
        from hivemind.proto import p2pd_pb2

        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.STREAM_OPEN,
            streamOpen=p2pd_pb2.StreamOpenRequest(
                peer=PeerID.from_base58(peer_id).to_bytes(),
                proto=[protocol],
                timeout=max(1, round(patience)),
            ),
        )
        try:
            async with asyncio.timeout(patience):
                with hivemind_errors(f"cannot reach {peer_id} for {protocol}"):
                    _, reader, writer = await self._command(request)
                    return reader, writer
        except TimeoutError:
            raise TransportError(f"{peer_id} did not answer in {patience:g} s") from None
        except TransportError as error:
            if _NOT_SERVED in str(error):
                raise NotServedError(f"the peer does not serve {protocol}") from error
            raise

    async def disconnect(self, peer_id: str) -> None:
        """Close all connections to a peer. It may open new ones."""
        from hivemind.p2p import PeerID
        from hivemind.proto import p2pd_pb2

        peer = PeerID.from_base58(peer_id).to_bytes()
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.DISCONNECT, disconnect=p2pd_pb2.DisconnectRequest(peer=peer)
        )
        with contextlib.suppress(TimeoutError, TransportError):  # it has gone, or goes on
            async with asyncio.timeout(RPC_SECONDS):
                with hivemind_errors("cannot disconnect"):
                    _, _, writer = await self._command(request)
                    writer.close()

    async def answers(self, peer_id: str, patience: float) -> bool:
        """Ping a peer over its link. Return True if any bytes come back within `patience` seconds.
        The peer's daemon answers a ping without its node, however busy that is. A refusal is an
        answer too."""
        from hivemind.p2p import PeerID
        from hivemind.proto import p2pd_pb2

        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.STREAM_OPEN,
            streamOpen=p2pd_pb2.StreamOpenRequest(
                peer=PeerID.from_base58(peer_id).to_bytes(),
                proto=[_PING],
                timeout=round(patience) + 1,
            ),
        )
        try:
            async with asyncio.timeout(patience):
                with hivemind_errors(f"cannot ping {peer_id}"):
                    _, reader, writer = await self._command(request)
                    try:
                        writer.write(secrets.token_bytes(_PING_BYTES))
                        await reader.readexactly(_PING_BYTES)
                    finally:
                        writer.transport.abort()
        except TimeoutError:
            return False
        except TransportError:
            pass  # it was closed meanwhile, or its end does not know this protocol
        return True

    async def look(self) -> bool:
        """Read this node's addresses again. Return True if they changed."""
        from hivemind.p2p import PeerID
        from hivemind.proto import p2pd_pb2
        from hivemind.utils.multiaddr import Multiaddr

        old_addresses = set(self._addresses)
        with contextlib.suppress(TimeoutError, TransportError):  # the next look comes soon
            async with asyncio.timeout(RPC_SECONDS):
                with hivemind_errors("the network daemon does not answer"):
                    request = p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY)
                    response, _, writer = await self._command(request)
                    writer.close()
                    peer_id = PeerID(response.identify.id).to_base58()
                    addresses = map(str, map(Multiaddr, response.identify.addrs))
                    # p2pd adds addresses at which others see it, even if they do not lead to it.
                    self._addresses = [
                        f"{text}/p2p/{peer_id}"
                        for text in addresses
                        if self._announces or is_here(text)
                    ]
        return set(self._addresses) != old_addresses

    async def connections(self, patience: float) -> dict[str, list[str]] | None:
        """The peers that p2pd is connected to, each with the other end's TCP multiaddrs. None if
        p2pd died, or does not answer in `patience` seconds in which this node is on time."""
        if self.dead:
            return None
        try:
            async with on_time(patience, asyncio.get_running_loop().time):
                with hivemind_errors("the network daemon does not answer"):
                    links: dict[str, list[str]] = {}
                    for peer, addresses in await self._list_connections():
                        links.setdefault(peer.to_base58(), []).extend(addresses)
                    return links
        except (TimeoutError, TransportError):
            return None

    async def ping_known(self) -> None:
        """Ping every peer that is connected or in the routing table. Members that answer enter the
        table. The others leave it."""
        protocol = self._node.protocol
        with hivemind_errors("cannot list the connected peers"):
            linked_peers = [peer for peer, _ in await self._list_connections()]
            peers = {*linked_peers, *protocol.routing_table.peer_id_to_uid}
        await asyncio.gather(*(protocol.call_ping(peer) for peer in peers))
        await asyncio.sleep(0)  # hivemind updates its table in a task of its own

    async def fill_table(self, patience: float) -> None:
        """Look up this node's own id, which announces it to its neighbours."""
        with contextlib.suppress(TimeoutError):  # peers that answered in time are in the table
            async with asyncio.timeout(patience):
                await self._node.find_nearest_nodes([self._node.node_id])

    async def store(self, key: str, subkey: str, value: bytes, expires: float) -> None:
        """Store on the nodes nearest to `key`, this one included.

        Raises:
            TransportError: the lookup did not end in time.
        """
        await self._lookup(self._node.store(key, value, expires, subkey=subkey))

    async def find(self, key: str) -> dict[str, bytes]:
        """Look up subkey -> value, merged from all holders of `key`.

        Raises:
            TransportError: the lookup did not end in time.
        """
        result = await self._lookup(self._node.get(key, latest=True))
        return {} if result is None else {k: item.value for k, item in result.value.items()}

    async def stop(self, grace: float = STOP_SECONDS) -> None:
        """Terminate p2pd, kill it after `grace` seconds, and remove its sockets."""
        if self._node is not None:
            self._node.is_alive = False
        # `DHTNode.shutdown` waits for p2pd's answer, and hangs if p2pd is dead.
        try:
            await terminate(self._p2p, grace)
        finally:
            if self._listener is not None:
                self._listener.close()

    async def _lookup(self, operation: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                return await operation
        except TimeoutError:
            raise TransportError("a DHT lookup took too long: the node tries again later") from None

    async def _list_connections(self) -> list[tuple[Any, list[str]]]:
        """The PeerID of every connection of p2pd, and the other end's address if it is TCP."""
        from hivemind.p2p import PeerID
        from hivemind.proto import p2pd_pb2

        request = p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS)
        response, _, writer = await self._command(request)
        writer.close()
        return [
            (PeerID(peer.id), [text for raw in peer.addrs if (text := endpoint_text(raw))])
            for peer in response.peers
        ]

    async def _command(
        self, request: Any
    ) -> tuple[Any, asyncio.StreamReader, asyncio.StreamWriter]:
        """Send one command to p2pd. The caller closes the returned connection, which carries the
        stream if the command opened one. (hivemind's own calls leave their connection open when
        they fail or are cancelled.)"""
        from hivemind.p2p.p2p_daemon_bindings import utils
        from hivemind.proto import p2pd_pb2

        reader, writer = await self._p2p._client.control.daemon_connector.open_connection()
        try:
            await utils.write_pbmsg(writer, request)
            response = p2pd_pb2.Response()
            await utils.read_pbmsg_safe(reader, response)
            utils.raise_if_failed(response)
        except BaseException:
            writer.transport.abort()
            raise
        return response, reader, writer


async def _start_daemon(
    key_file: Path,
    identity: Identity,
    listen: Sequence[str],
    announce: Sequence[str],
    calls: TableCalls,
    patience: float,
) -> Any:
    """Start p2pd with its files, which exist only meanwhile."""
    configuration = key_file.with_suffix(".json")
    with (
        private_file(key_file, private_key(identity)),
        private_file(configuration, CONFIGURATION),
    ):
        return await start_p2pd(
            configuration,
            calls,
            host_maddrs=list(listen),
            announce_maddrs=list(announce) or None,
            identity_path=str(key_file),
            check_if_identity_free=False,
            auto_nat=False,
            nat_port_map=False,
            use_relay=False,
            patience=patience,
        )


def _calm_logging() -> None:
    """Send hivemind's log records of level WARNING and above to the root logger, and no others."""
    from hivemind.utils.logging import use_hivemind_log_handler

    use_hivemind_log_handler("nowhere")
    logging.getLogger("hivemind").setLevel(logging.WARNING)
    logging.getLogger("hivemind.p2p.p2p_daemon").addFilter(_no_ordinary_end)


def _no_ordinary_end(record: logging.LogRecord) -> bool:
    """Drop the record for a normal stop: p2pd logs as an error that its listening socket was
    closed."""
    return "use of closed network connection" not in record.getMessage()


@contextlib.contextmanager
def hivemind_errors(message: str) -> Generator[None]:
    """Turn the errors of hivemind, p2pd and the sockets between them into TransportError."""
    from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

    try:
        yield
    except (P2PDaemonError, OSError, EOFError, ValueError) as error:
        raise TransportError(f"{message}: {words_of(error)}") from error
