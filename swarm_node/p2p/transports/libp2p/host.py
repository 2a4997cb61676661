"""The links to peers, over py-libp2p's protocols: connections, streams, and their ends.

A peer's messages can at most end its own link: each connection and each stream has a task, and
errors end with that task. All numbers are bounded. Only addresses that the node requests are
dialled.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator

from swarm_node.errors import NotServedError, TransportError, reason_of
from swarm_node.p2p.addresses.addresses import split_endpoint
from swarm_node.p2p.addresses.internet import site
from swarm_node.p2p.limits.admission import Severed
from swarm_node.p2p.limits.gates import PeerGates
from swarm_node.p2p.limits.links import (
    ARRIVALS,
    ASKED_SECONDS,
    BARRED_SECONDS,
    LINKS,
    LINKS_PER_PEER,
    PACE,
    RETURNS,
    STREAMS_PER_PEER,
    LinkPlace,
    choose_connection_to_drop,
    surplus,
)
from swarm_node.p2p.transports.libp2p.hardened import Link, Scant, make_upgrader, select, upgrade
from swarm_node.p2p.transports.libp2p.messages import LinkKey
from swarm_node.p2p.wire.identity import public_key_of
from swarm_node.recent import Recent

UPGRADE_SECONDS = 10.0
NEGOTIATE_SECONDS = 10
#: Limit for a link's answer, before another link is tried.
_LINK_SECONDS = 1.5
MAX_STREAMS = 2048
#: Pause of a peer that opens streams faster than its pace.
_PACE_SECONDS = 0.05
#: Peers whose address is kept for another connection.
_MAX_ANSWERED = 2048
_log = logging.getLogger(__name__)

#: (peer, protocol, stream, bytes received already). Returns after the end of the stream.
Serve = Callable[[str, str, Any, bytes], Awaitable[None]]


class Host:
    """Listens, dials, and calls `serve` with each stream that a peer opens for a protocol."""

    def __init__(
        self, key: LinkKey, protocols: Sequence[str], serve: Serve, nursery: trio.Nursery
    ) -> None:
        self._upgrader = make_upgrader(key)
        self._multiselect = Multiselect(dict.fromkeys(protocols))
        self._serve = serve
        self._nursery = nursery
        #: Links by peer, the newest last: it works where an older one broke unnoticed.
        self._links: dict[str, list[Link]] = {}
        #: The site of each connection that is no link yet, the oldest first.
        self._strangers: dict[trio.CancelScope, str] = {}
        self._peer_addresses: Recent[str, str] = Recent(_MAX_ANSWERED)
        #: When this node last asked a peer.
        self._request_times: Recent[str, float] = Recent(_MAX_ANSWERED)
        self._arrivals = PeerGates(*ARRIVALS)
        self._returns = PeerGates(*RETURNS)
        self._pace = PeerGates(*PACE)
        self._barred = Severed(trio.current_time)
        #: Refused connections, links and streams by reason (wire/reasons.py), until they are taken.
        self.refusals: Counter[str] = Counter()

    async def listen(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Listen on multiaddrs. Return them with the chosen ports.

        Raises:
            TransportError: one cannot be listened on.
        """
        endpoints = []
        for address in addresses:
            kind, host, port = _endpoint(address)
            try:
                listeners = await trio.open_tcp_listeners(port, host=host)
            except OSError as error:
                raise TransportError(
                    f"cannot listen on {address}: {reason_of(error)}",
                    "choose another address or port",
                ) from error
            for listener in listeners:
                endpoints.append(f"/{kind}/{host}/tcp/{listener.socket.getsockname()[1]}")
            self._nursery.start_soon(trio.serve_listeners, self._accept, listeners)
        return tuple(endpoints)

    async def connect(self, peer: str, address: str) -> None:
        """Ensure a link to a peer that answers now.

        Raises:
            TransportError: it does not answer at this address, or somebody else does.
        """
        link = self._link(peer)
        with trio.move_on_after(_LINK_SECONDS):  # the caller waits for a few seconds only
            if link is not None and await link.answers():
                return
        _, host, port = _endpoint(address)
        with _becomes_transport_error(f"cannot reach {peer} at {address}"):
            with trio.fail_after(UPGRADE_SECONDS):
                tcp = await trio.open_tcp_stream(host, port)
                try:
                    link = await upgrade(
                        self._upgrader, tcp, ID.from_string(peer), self._held_bytes
                    )
                except BaseException:
                    await trio.aclose_forcefully(tcp)
                    raise
                self._nursery.start_soon(self._keep, link)
                await link.event_started.wait()
        self._peer_addresses[peer] = address

    async def open(self, peer: str, protocol: str) -> tuple[Any, bytes]:
        """Open a stream to a peer that is linked or has answered before. Return it with the bytes
        received already.

        Raises:
            TransportError: it does not answer. NotServedError: it lacks the protocol.
        """
        link = self._link(peer)
        if link is None:
            if peer not in self._peer_addresses:
                raise TransportError(f"no link to {peer}: dial it first")
            await self.connect(peer, self._peer_addresses[peer])
            link = self._link(peer)
        with _becomes_transport_error(f"cannot reach {peer} for {protocol}"):
            if link is None:
                raise ConnectionError("the link has just ended")
            self._request_times[peer] = trio.current_time()
            stream = await link.open_stream()
            try:
                with trio.fail_after(NEGOTIATE_SECONDS):
                    rest = await select(stream, protocol)
            except BaseException:
                await give_up(stream)
                raise
        return stream, rest

    def linked_peers(self) -> dict[str, list[str]]:
        """The linked peers with the addresses of the other end, the newest link first."""
        open_links = {
            peer: [link.stream.peer_address for link in reversed(links) if not link.has_ended]
            for peer, links in self._links.items()
        }
        return {peer: addresses for peer, addresses in open_links.items() if addresses}

    async def disconnect(self, peer: str) -> None:
        """Close all links to a peer. It may open new ones."""
        for link in list(self._links.get(peer, ())):
            await link.end()

    async def _accept(self, tcp: trio.SocketStream) -> None:
        """Turn an incoming connection into a link."""
        try:
            place = site(tcp.socket.getpeername()[0])
        except OSError:
            return  # it has gone already
        if not self._arrivals.take(place, trio.current_time()):
            self.refusals["links"] += 1
            return
        link = None
        with trio.CancelScope(deadline=trio.current_time() + UPGRADE_SECONDS) as scope:
            self._admit(place, scope)
            try:
                link = await upgrade(self._upgrader, tcp, None, self._held_bytes)
                public_key_of(link.peer)
            except Exception as error:  # noqa: BLE001 - a stranger's bytes end its own connection
                _log.debug("a connection did not become a link: %r", error)
                return
            finally:
                self._strangers.pop(scope, None)
        if link is not None and self._welcome(link.peer):
            await self._keep(link)

    def _admit(self, place: str, scope: trio.CancelScope) -> None:
        """Admit a connection that may become a link until `scope` is cancelled. Above the limits
        another one makes room."""
        index = choose_connection_to_drop(list(self._strangers.values()), place)
        if index is not None:
            oldest_scope = list(self._strangers)[index]
            del self._strangers[oldest_scope]
            oldest_scope.cancel()
            self.refusals["links"] += 1
        self._strangers[scope] = place

    def _welcome(self, peer: str) -> bool:
        """Check that a peer that opened a link may have it."""
        if peer not in self._barred:
            if self._returns.take(peer, trio.current_time()):
                return True
            self._barred.sever(peer, BARRED_SECONDS)
        self.refusals["links"] += 1
        return False

    async def _keep(self, link: Link) -> None:
        """Serve a link until it ends."""
        links = self._links.setdefault(link.peer, [])
        links.append(link)
        try:
            await self._make_room(links)
            if link.has_ended:
                return
            async with trio.open_nursery() as nursery:
                link.scope = nursery.cancel_scope
                nursery.start_soon(self._accept_streams, link, nursery)
                await link.start()
                nursery.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - what a peer does ends its own link
            _log.debug("a link ended: %r", error)
        finally:
            links.remove(link)
            if not links and self._links.get(link.peer) is links:
                del self._links[link.peer]
            link.stream.stream.socket.close()

    async def _make_room(self, links: list[Link]) -> None:
        """End links above the limits. Above the limit of a peer its oldest links end. Above the
        limit of all, links end at the site that has the most, first those of peers that this node
        does not ask."""
        now = trio.current_time()
        excess_links = [link for link in links if not link.has_ended][:-LINKS_PER_PEER]
        open_links = [
            link for peer_links in self._links.values() for link in peer_links if not link.has_ended
        ]
        if len(open_links) - len(excess_links) > LINKS:
            open_links = sorted(
                (link for link in open_links if link not in excess_links),
                key=lambda k: k.started_at,
            )
            idle_seconds = {
                link.peer: now - self._request_times.get(link.peer, -math.inf)
                for link in open_links
            }
            places = [
                LinkPlace(k.stream.site, idle_seconds[k.peer] < ASKED_SECONDS) for k in open_links
            ]
            excess_links += [open_links[index] for index in surplus(places, LINKS)]
        for link in excess_links:
            self.refusals["links"] += 1
            await link.end()

    async def _accept_streams(self, link: Link, nursery: trio.Nursery) -> None:
        while True:
            stream = await link.accept_stream()
            while not self._pace.take(link.peer, trio.current_time()):  # noqa: ASYNC110 - a rate
                await trio.sleep(_PACE_SECONDS)  # nothing else is read of this link meanwhile
            if (
                self._served_streams(link.peer) >= STREAMS_PER_PEER
            ):  # no honest program opens as many
                self.refusals["streams"] += 1
                self._barred.sever(link.peer, BARRED_SECONDS)
                await self.disconnect(link.peer)
                return
            if self._crowd(link) >= MAX_STREAMS:
                self.refusals["streams"] += 1
                await give_up(stream)
                continue
            link.served_streams += 1
            nursery.start_soon(self._answer, link, stream)

    def _crowd(self, link: Link) -> int:
        """Count the running streams that peers opened, those from this link's site twice. So a site
        has at most as many streams as are free: keys cost nothing."""
        all_links = [peer_link for links in self._links.values() for peer_link in links]
        return sum(
            peer_link.served_streams * (1 + (peer_link.stream.site == link.stream.site))
            for peer_link in all_links
        )

    def _served_streams(self, peer: str) -> int:
        """Count the running streams that a peer opened."""
        return sum(link.served_streams for link in self._links[peer])

    async def _answer(self, link: Link, stream: Any) -> None:
        """Serve one stream that a peer opened."""
        try:
            limited_stream = Scant(stream)
            communicator = MultiselectCommunicator(limited_stream)
            protocol, _ = await self._multiselect.negotiate(communicator, NEGOTIATE_SECONDS)
            await self._serve(link.peer, str(protocol), stream, limited_stream.rest)
        except Exception as error:  # noqa: BLE001 - what a peer does ends its own stream
            _log.debug("a stream ended: %r", error)
        finally:
            link.served_streams -= 1
            await give_up(stream)

    def _link(self, peer: str) -> Link | None:
        """The newest link to a peer."""
        return next(
            (link for link in reversed(self._links.get(peer, [])) if not link.has_ended), None
        )

    def _held_bytes(self) -> int:
        return sum(link.held_bytes for links in self._links.values() for link in links)


async def give_up(stream: Any) -> None:
    """Reset a stream that has not ended yet."""
    with trio.CancelScope(shield=True), contextlib.suppress(Exception):  # its link may have ended
        await stream.reset()


def _endpoint(address: str) -> tuple[str, str, int]:
    """
    Raises:
        TransportError: not a TCP multiaddr without a peer id.
    """
    endpoint = split_endpoint(address)
    if endpoint is None:
        raise TransportError(f"{address[:80]!r} is not an address like /ip4/0.0.0.0/tcp/31330")
    return endpoint


@contextlib.contextmanager
def _becomes_transport_error(message: str) -> Generator[None]:
    """Turn every error into TransportError. py-libp2p raises many types, bare `Exception` too."""
    try:
        yield
    except NotServedError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise TransportError(f"{message}: {reason[:200]}") from error
