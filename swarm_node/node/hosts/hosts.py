"""The hosts that train together: their admission by the node, and its messages to them.

Each further host runs `swarm-node train-host`, keeps a connection to the node, and proves that it
has the node's key; the node proves the same. While the connection stands, the host's processes
train. When it breaks, both ends kill theirs. No message is unpickled.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar

import msgspec
import psutil
import structlog

from swarm_node.errors import ChildError, ConfigError, words_of
from swarm_node.p2p.addresses.addresses import unused_port
from swarm_node.policy.training.processes.launching import Rendezvous
from swarm_node.process.frames import HEAD, make_frame, read_head
from swarm_node.version import __version__

_MOST_BYTES = 4096
_NONCE_BYTES = 32
_HANDSHAKE_SECONDS = 10.0
_MOST_CONNECTIONS = 256
_Message = TypeVar("_Message", bound=msgspec.Struct)
_log = structlog.get_logger(__name__)


class Challenge(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The node's first message."""

    nonce: bytes


class Hello(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The host's only message: its release, the sha256 of its model, and its proof."""

    nonce: bytes
    release: str
    model: bytes
    proof: bytes


class Refused(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The node's answer to a host that cannot take part."""

    reason: str


class NodeEnded(msgspec.Struct, frozen=True, tag="Ended", forbid_unknown_fields=True):
    """The node's last message when it ends for good. If the connection closes without it, the host
    waits for the node again."""


class HostWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work of a host: `processes` train on it, from `device` on. It is number `index` of `hosts`.
    The processes of all hosts meet at `port` of the node's address."""

    index: int
    hosts: int
    processes: int
    device: str
    threads: int
    port: int


class Welcome(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The node's answer once all hosts are there."""

    task: HostWork
    proof: bytes


class Needs(NamedTuple):
    """Needs and work of the node's hosts: the sha256 of their `model`; the rest as in
    `HostWork`."""

    model: bytes
    processes: int
    device: str
    threads: int


def release() -> str:
    """Release that all hosts must run."""
    return f"swarm-node {__version__}, torch {version('torch')}"


def proof(key: bytes, role: str, nonces: tuple[bytes, bytes], payload: object) -> bytes:
    """HMAC-SHA256 of the words of `role`, after the nonces of the node and of the host."""
    return hmac.digest(key, msgspec.msgpack.encode([role, *nonces, payload]), "sha256")


async def receive(reader: asyncio.StreamReader, message_type: type[_Message] | Any) -> _Message:
    """The next message, of type `message_type`.

    Raises:
        OSError, asyncio.IncompleteReadError: the connection is broken.
        ValueError: something else came.
    """
    length, _ = read_head(await reader.readexactly(HEAD.size), _MOST_BYTES)
    message: _Message = msgspec.msgpack.decode(await reader.readexactly(length), type=message_type)
    return message


def send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    writer.write(make_frame(0, msgspec.msgpack.encode(message)))


async def shut(writer: asyncio.StreamWriter) -> None:
    """Close the connection, which may be broken."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def watch(writer: asyncio.StreamWriter) -> None:
    """Let the kernel break the connection half a minute after the other machine has gone."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        for option, value in (("KEEPIDLE", 10), ("KEEPINTVL", 5), ("KEEPCNT", 4)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), value)


def interface_of(address: str) -> str:
    """The network interface of this machine that has the IPv4 `address`.

    Raises:
        ConfigError: none has.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.family == socket.AF_INET and entry.address == address for entry in addresses):
            return str(name)
    raise ConfigError(
        f"run.trainer_hosts: no network interface of this machine has the address {address}",
        "name one that has, and that the other hosts reach",
    )


class _Host(NamedTuple):
    """A host that was admitted, and the nonces of its handshake."""

    writer: asyncio.StreamWriter
    nonces: tuple[bytes, bytes]


class Hosts:
    """The node's end: listens as long as the node runs. Hosts above the number needed wait, and
    take the place of one that is lost."""

    def __init__(self, at: str, key: bytes, needs: Needs) -> None:
        """`at` is `run.trainer_hosts`, "HOST:PORT*HOSTS"; `key` is the one that all hosts have."""
        self._at, _, hosts = at.partition("*")
        self.count = int(hosts)
        self._key, self._needs = key, needs
        self._server: asyncio.Server | None = None
        self._waiting: list[_Host] = []
        self._active_hosts: list[_Host] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._change_event = asyncio.Event()
        self._on_lost: Callable[[], Awaitable[object]] | None = None

    @property
    def complete(self) -> bool:
        """Check that no host was lost since `gather`."""
        return len(self._active_hosts) == self.count - 1

    @property
    def waiting(self) -> int:
        """Hosts that were admitted and wait for the others."""
        return len(self._waiting)

    @property
    def port(self) -> int:
        """Port that the node listens on."""
        return int(self._at.rpartition(":")[2])

    async def gather(
        self, patience: float, on_lost: Callable[[], Awaitable[object]]
    ) -> dict[str, str]:
        """Wait until all hosts are there, and tell them to begin. Hosts that were told before are
        released. `on_lost` is called when one goes. Returns variables for the node's own processes.

        Raises:
            ConfigError: the address cannot be listened on.
            ChildError: they were not there within `patience` seconds.
        """
        self._on_lost = None
        for host in self._active_hosts:
            host.writer.close()
        self._active_hosts.clear()
        address, interface = await self._listen()
        _log.warning("waiting for trainer hosts", address=self._at, needed=self.count - 1)
        try:
            async with asyncio.timeout(patience):
                while len(self._waiting) < self.count - 1:
                    self._change_event.clear()
                    await self._change_event.wait()
        except TimeoutError:
            raise ChildError(
                f"{len(self._waiting)} of {self.count - 1} trainer hosts came to {self._at} within "
                f"{patience:g} s",
                f"run `swarm-node train-host {self._at}` on each host (run.trainer_hosts)",
            ) from None
        self._active_hosts = self._waiting[: self.count - 1]
        del self._waiting[: self.count - 1]
        self._on_lost = on_lost
        port = unused_port(address)
        for index, host in enumerate(self._active_hosts, start=1):
            needs = self._needs
            task = HostWork(index, self.count, needs.processes, needs.device, needs.threads, port)
            send(host.writer, Welcome(task, proof(self._key, "node", host.nonces, task)))
        return Rendezvous(0, self.count, address, port).environment(interface)

    async def close(self) -> None:
        """Tell the hosts that the node ends."""
        self._on_lost = None
        if self._server is not None:
            self._server.close()
        for host in (*self._active_hosts, *self._waiting):
            send(host.writer, NodeEnded())
        for writer in self._open:
            writer.close()
        while self._open:
            self._change_event.clear()
            await self._change_event.wait()

    async def _listen(self) -> tuple[str, str]:
        """The address that is listened on, and its network interface."""
        name = self._at.rpartition(":")[0]
        if self._server is None:
            try:
                self._server = await asyncio.start_server(
                    self._serve, name, self.port, family=socket.AF_INET
                )
            except (OSError, OverflowError) as error:
                raise ConfigError(
                    f"run.trainer_hosts: cannot listen on {self._at} ({words_of(error)})",
                    "name an address of this machine and a free port",
                ) from error
        address = str(self._server.sockets[0].getsockname()[0])
        return address, interface_of(address)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if len(self._open) > _MOST_CONNECTIONS:
                return
            watch(writer)
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                host = await self._admit(reader, writer)
            if host is not None:
                await self._stay(reader, host)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            # A stranger, or a host whose connection broke before it was admitted.
            _log.warning("a trainer host could not connect", reason=words_of(error))
        finally:
            await shut(writer)
            self._open.discard(writer)
            self._change_event.set()

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Host | None:
        nonce = os.urandom(_NONCE_BYTES)
        send(writer, Challenge(nonce))
        hello: Hello = await receive(reader, Hello)
        nonces, claims = (nonce, hello.nonce), [hello.release, hello.model]
        reason = None
        if not hmac.compare_digest(hello.proof, proof(self._key, "host", nonces, claims)):
            reason = "its key is not that of the node: copy site.key from the node's data directory"
        elif hello.release != release():
            reason = f"it runs {hello.release} and the node {release()}: install the same"
        elif hello.model != self._needs.model:
            reason = "its model has another digest than the node's: give the same --model"
        if reason is None:
            return _Host(writer, nonces)
        _log.warning("a trainer host was rejected", reason=reason)
        send(writer, Refused(reason))
        return None

    async def _stay(self, reader: asyncio.StreamReader, host: _Host) -> None:
        """Keep an admitted host until its connection breaks."""
        self._waiting.append(host)
        self._change_event.set()
        with suppress(OSError):  # it is gone in either case
            await reader.read(1)
        if host in self._waiting:
            self._waiting.remove(host)
        elif host in self._active_hosts:
            self._active_hosts.remove(host)
            if self._on_lost is not None:
                _log.warning("a trainer host disconnected")
                await self._on_lost()
