"""The node's end of the process of py-libp2p: starts it, sends it requests, ends it.

Every failure below is raised as `TransportError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import psutil

from swarm_node.errors import (
    ChildError,
    NotServedError,
    SlowStartError,
    TransportError,
    words_of,
)
from swarm_node.p2p.addresses.addresses import Address, split_endpoint
from swarm_node.p2p.transports.libp2p import INSTALL, is_installed
from swarm_node.p2p.transports.libp2p.messages import (
    HOST,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    NODE,
    Connect,
    Disconnect,
    Done,
    Incoming,
    Linked,
    LinkKey,
    Links,
    Message,
    Open,
    Reply,
    Start,
    Started,
    StreamOpened,
)
from swarm_node.p2p.transports.streams import MAX_WAITING, STOP_SECONDS, StreamServer
from swarm_node.p2p.transports.timeouts import on_time
from swarm_node.p2p.wire.identity import Identity
from swarm_node.process import Child, ReportedError, exchange
from swarm_node.process.frames import HEAD, Failed, read_head

START_SECONDS = 60.0  # py-libp2p's imports take most of a second on a machine that does nothing
_LINK_SECONDS = 3.0
#: Allowed environment variables. The process talks to strangers, so no token or key of the owner
#: reaches it.
_VARIABLES = frozenset({"HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "VIRTUAL_ENV"})
_replies = msgspec.msgpack.Decoder[Reply | Failed](Reply | Failed)
_incoming = msgspec.msgpack.Decoder(Incoming)
_Wanted = TypeVar("_Wanted", bound=Message)
_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Libp2pDaemon:
    """The running process."""

    def __init__(
        self,
        child: Child,
        sockets: str,
        server: StreamServer,
        on_refusal: Callable[[str, int], None],
    ) -> None:
        self._on_refusal = on_refusal
        self._child = child
        self._sockets = sockets
        self._server = server
        self._listener: asyncio.Server | None = None
        self.addresses: tuple[str, ...] = ()

    @classmethod
    async def start(
        cls,
        identity: Identity,
        *,
        listen: Sequence[str],
        announce: Sequence[str],
        protocols: Sequence[str],
        server: StreamServer,
        on_refusal: Callable[[str, int], None],
        patience: float,
    ) -> Libp2pDaemon:
        """Start the process. It calls `server` with every stream that a peer opens, and
        `on_refusal` with the reason and the number of connections, links and streams over the
        limits.

        Raises:
            SlowStartError: the process ended or did not start in `patience` seconds, a minute at
                least.
            TransportError: py-libp2p is missing, or it cannot listen.
        """
        if not is_installed():
            raise TransportError("py-libp2p is not installed", f"run {INSTALL}")
        child = Child(
            "network",
            "swarm_node.p2p.transports.libp2p.process",
            Started,
            inherit=lambda name: name in _VARIABLES or name.startswith(("LC_", "PYTHON")),
        )
        # The path of a Unix socket has 107 bytes at most, so the node's home may be too deep.
        self = cls(child, tempfile.mkdtemp(prefix="swarm-node-"), server, on_refusal)
        try:
            path = os.path.join(self._sockets, NODE)
            self._listener = await asyncio.start_unix_server(
                self._accept, path, backlog=MAX_WAITING
            )
            await child.start()
            key = LinkKey.of(identity)
            request = Start(key, tuple(listen), tuple(protocols), self._sockets)
            limit = max(patience, START_SECONDS)
            reply = await child.call(request, Started, patience=limit)
        except BaseException as error:
            await self.stop(grace=0.0)
            if isinstance(error, ReportedError):
                raise TransportError(error.reason) from error
            if isinstance(error, ChildError | OSError):
                kind = SlowStartError if isinstance(error, ChildError) else TransportError
                raise kind(f"cannot start the network process: {words_of(error)}") from error
            raise
        addresses = announce or [address for text in reply.listening for address in _visible(text)]
        self.addresses = tuple(f"{address}/p2p/{identity.peer_id}" for address in addresses)
        return self

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def dead(self) -> bool:
        """True after the process has exited."""
        return not self._child.alive

    async def connect(self, address: Address, patience: float) -> bool:
        """Connect. Return True if the peer answers at this address within `patience` seconds."""
        request = Connect(address.peer_id, address.multiaddr)
        try:
            await self._request(request, Done, patience)
        except TransportError:
            return False
        return True

    async def open_stream(self, peer_id: str, protocol: str, patience: float) -> _Stream:
        """Open a stream to a peer's `protocol`; the caller closes the writer.

        Raises:
            TransportError: unreachable, or no answer in `patience` s. NotServedError: see there.
        """
        _, stream = await self._ask(Open(peer_id, protocol), StreamOpened, patience)
        return stream

    async def connections(self, patience: float) -> dict[str, list[str]] | None:
        """The linked peers, each with the other end's TCP multiaddrs. None if the process died or
        does not answer in `patience` seconds in which this node is on time."""
        try:
            reply = await self._request(Links(), Linked, patience)
        except TransportError:
            return None
        for reason, count in reply.refused.items():
            self._on_refusal(reason, count)
        return reply.peers

    async def disconnect(self, peer_id: str) -> None:
        """Close all links to a peer. It may open new ones."""
        with contextlib.suppress(TransportError):  # it has gone, or goes on
            await self._request(Disconnect(peer_id), Done, _LINK_SECONDS)

    async def stop(self, grace: float = STOP_SECONDS) -> None:
        """End the process, kill it after `grace` seconds, and remove its sockets."""
        try:
            await self._child.stop(grace)
        finally:
            if self._listener is not None:
                self._listener.close()
            shutil.rmtree(self._sockets, ignore_errors=True)

    async def _request(
        self, request: Message, reply_type: type[_Wanted], patience: float
    ) -> _Wanted:
        """Send a request that needs no stream, and return its reply."""
        reply, (_, writer) = await self._ask(request, reply_type, patience)
        writer.close()
        return reply

    async def _ask(
        self, request: Message, reply_type: type[_Wanted], patience: float
    ) -> tuple[_Wanted, _Stream]:
        """Send a request on a connection of its own. The caller closes it.

        Raises:
            TransportError: the process is dead or refuses, or did not answer in `patience` s.
        """
        try:
            async with on_time(patience, asyncio.get_running_loop().time):
                reader, writer = await asyncio.open_unix_connection(
                    os.path.join(self._sockets, HOST)
                )
                try:
                    body = msgspec.msgpack.encode(request)
                    raw = await exchange(reader, writer, 0, body, MAX_REPLY_BYTES)
                    reply = _replies.decode(raw)
                    if isinstance(reply, Failed):
                        is_unserved = reply.kind == NotServedError.__name__
                        raise (NotServedError if is_unserved else TransportError)(reply.reason)
                    if not isinstance(reply, reply_type):
                        raise ValueError("not a reply to this request")
                except BaseException:
                    writer.transport.abort()
                    raise
        except TimeoutError:
            raise TransportError(f"no answer in {patience:g} s") from None
        except (OSError, EOFError, ValueError) as error:
            raise TransportError(
                f"the network process does not answer: {words_of(error)}"
            ) from error
        return reply, (reader, writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one stream that a peer opened."""
        try:
            length, _ = read_head(await reader.readexactly(HEAD.size), MAX_REQUEST_BYTES)
            header = _incoming.decode(await reader.readexactly(length))
        except (OSError, EOFError, ValueError):  # the process died
            writer.transport.abort()
            return
        await self._server(header.protocol, header.peer, reader, writer)


def _visible(endpoint: str) -> list[str]:
    """Multiaddrs at which others see a listening address: those of all interfaces, if it listens on
    all."""
    kind, host, port = split_endpoint(endpoint) or ("", "", 0)
    family = {"0.0.0.0": socket.AF_INET, "::": socket.AF_INET6}.get(host)  # noqa: S104
    if family is None:
        return [endpoint]
    interfaces = (item for entry in psutil.net_if_addrs().values() for item in entry)
    hosts = [
        item.address for item in interfaces if item.family == family and "%" not in item.address
    ]
    return [f"/{kind}/{entry}/tcp/{port}" for entry in hosts]
