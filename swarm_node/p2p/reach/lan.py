"""Finds members on the same network without a known address: presences by UDP multicast.

A datagram is a random nonce and a ciphertext of this node's key and its presence, padded to one
length (ChaCha20-Poly1305, RFC 8439). The encryption key follows from the swarm's secret
(HKDF-SHA-256, RFC 5869). So a stranger on the network sees that some node of some swarm is present,
but neither its swarm nor its peer id. Anybody with the secret can send any datagram, and any
listener can replay one. So a presence is verified as one from a peer, and an older one replaces
none.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable, Collection, Iterable

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from swarm_node.clock import Clock
from swarm_node.errors import reason_of
from swarm_node.p2p.addresses.addresses import endpoint_of
from swarm_node.p2p.limits.gates import TokenBucket
from swarm_node.p2p.wire.identity import Identity, peer_id_of
from swarm_node.p2p.wire.wire import MAX_PRESENCE_BYTES
from swarm_node.recent import Recent

#: Group of the organisation-local scope (RFC 2365), which routers of a site do not forward outside.
GROUP, PORT = "239.192.83.78", 31329
_KEY, _NONCE, _TAG, _LENGTH = 32, 12, 16, 2
_PADDED = _KEY + _LENGTH + MAX_PRESENCE_BYTES
DATAGRAM_BYTES = _NONCE + _PADDED + _TAG
#: Rate and burst of datagrams that are decrypted, over all senders. 128 members send 6.4
#: announcements a second.
_PER_SECOND, _AT_ONCE = 32.0, 128.0
_MAX_HEARD = 128
#: Rate and burst of announcements to new peers, so that they need not wait for the next one.
_ANSWERS = (1.0, 4.0)
_log = structlog.get_logger(__name__)


def own_networks(addresses: Iterable[str]) -> list[str]:
    """Select the IPv4 addresses of private networks among these."""
    hosts = [host for kind, host, _ in filter(None, map(endpoint_of, addresses)) if kind == "ip4"]
    private = (ip for ip in map(ipaddress.IPv4Address, hosts) if ip.is_private)
    return sorted({str(ip) for ip in private if not (ip.is_loopback or ip.is_unspecified)})


class Lan(asyncio.DatagramProtocol):
    """One node's end. `port` is the multicast group's."""

    def __init__(
        self, identity: Identity, swarm_id: bytes, secret: bytes, clock: Clock, port: int = PORT
    ) -> None:
        self._public_key = identity.public_key
        self._swarm_id = swarm_id
        self._port = port
        self._clock = clock
        self._secret = secret
        self._ciphers = [self._cipher(secret)]
        self._bucket = TokenBucket(_PER_SECOND, _AT_ONCE)
        self._presences: Recent[str, tuple[bytes, float, int]] = Recent(_MAX_HEARD)
        self._hosts: set[str] = set()
        self._issue_time: Callable[[bytes, str], int] = lambda presence, peer: 0
        self._own_presence = b""
        self._answers = TokenBucket(*_ANSWERS)
        self._socket: socket.socket | None = None
        self._receiver: asyncio.DatagramTransport | None = None

    def screen(self, issue_time: Callable[[bytes, str], int]) -> None:
        """Set the filter. `issue_time` returns the time of issue (Unix ms) of a peer's presence, -1
        for one that is not kept."""
        self._issue_time = issue_time

    def use(self, secret: bytes) -> None:
        """Send under this secret from now on. The previous secret is still accepted on receipt, so
        that members that missed the change are met and learn of it."""
        if secret != self._secret:
            self._secret = secret
            self._ciphers = [self._cipher(secret), self._ciphers[0]]

    async def announce(self, presence: bytes, hosts: Collection[str]) -> None:
        """Send `presence` on the networks of these own IPv4 addresses, and listen there. An
        unusable network is left out. Without multicast on this machine all networks are left
        out."""
        if not hosts:
            return
        self._own_presence = presence
        try:
            if self._socket is None:
                await self._open()
        except OSError as error:
            _log.debug("multicast is not available", error=reason_of(error))
            return
        for host in hosts:
            self._join(host)
        self._hosts = set(hosts)
        self._send()

    def _send(self) -> None:
        """Send the newest presence on all networks."""
        assert self._socket is not None
        datagram = self.datagram(self._own_presence, os.urandom(_NONCE))
        for host in list(self._hosts):
            try:
                self._socket.setsockopt(
                    socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host)
                )
                self._socket.sendto(datagram, (GROUP, self._port))
            except OSError as error:
                self._hosts.discard(host)
                _log.debug("nothing sent on this network", host=host, error=reason_of(error))

    def datagram(self, presence: bytes, nonce: bytes) -> bytes:
        """Encrypt `presence` as a datagram under a fresh nonce (12 bytes)."""
        body = self._public_key + len(presence).to_bytes(_LENGTH, "big") + presence
        return nonce + self._ciphers[0].encrypt(nonce, body.ljust(_PADDED, b"\0"), None)

    def heard_presences(self, seconds: float) -> dict[str, bytes]:
        """peer id -> presence that was announced in the last `seconds`."""
        start = self._clock.now() - seconds
        return {
            peer: presence for peer, (presence, at, _) in self._presences.items() if at >= start
        }

    def close(self) -> None:
        """Leave the networks. `announce` opens them again."""
        if self._receiver is not None:
            self._receiver.close()
        self._receiver = self._socket = None
        self._hosts.clear()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if len(data) != DATAGRAM_BYTES or not self._bucket.take(self._clock.now()):
            return
        nonce, ciphertext = data[:_NONCE], data[_NONCE:]
        for cipher in self._ciphers:
            try:
                body = cipher.decrypt(nonce, ciphertext, None)
            except InvalidTag:
                continue
            self._hear(body)
            return

    def _hear(self, body: bytes) -> None:
        key, length = body[:_KEY], int.from_bytes(body[_KEY : _KEY + _LENGTH], "big")
        presence, peer = body[_KEY + _LENGTH :][:length], peer_id_of(key)
        entry, now = self._presences.get(peer), self._clock.now()
        issued_ms = -1 if key == self._public_key else self._issue_time(presence, peer)
        if issued_ms < (0 if entry is None else entry[2]):
            return
        self._presences[peer] = presence, now, issued_ms
        if entry is None and self._own_presence and self._answers.take(now):
            self._send()

    def error_received(self, exc: Exception) -> None:
        _log.debug("a network refused a datagram", error=str(exc))

    async def _open(self) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
            sock.bind((GROUP if os.name == "posix" else "", self._port))
            loop = asyncio.get_running_loop()
            self._receiver, _ = await loop.create_datagram_endpoint(lambda: self, sock=sock)
        except OSError:
            sock.close()
            raise
        self._socket = sock

    def _join(self, host: str) -> None:
        """Listen on a network. An error means that it was joined before, or that the network is
        unusable. In the second case nothing can be sent there either."""
        assert self._socket is not None
        member = socket.inet_aton(GROUP) + socket.inet_aton(host)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)

    def _cipher(self, secret: bytes) -> ChaCha20Poly1305:
        info = b"swarm-node/lan/1" + self._swarm_id
        return ChaCha20Poly1305(HKDF(SHA256(), 32, None, info).derive(secret))
