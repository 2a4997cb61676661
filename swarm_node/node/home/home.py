"""A node's directory: keys, swarm file, membership.

node.key  root.key*                Ed25519 seeds, mode 0600 (* only the swarm's owner)
issuer.key*  issuer.certificate*   a steward, which renews members while this node runs
site.key                           admits the other hosts of this node's trainer, if it has some
swarm.json                         which swarm this is (holds its shared secret: mode 0600)
membership                         the certificate chain that admits this node
revoked  secret                    the newest statements of the swarm: who is out, which secret
admitted  coordinator              whom limited issuers admitted; a coordinator's newest batch
port                               the TCP port chosen at first start, kept so tickets stay good
settings.json                      what earlier starts were given (config/remembered.py)
node.db  checkpoints/              groups, windows, counters; training state
metrics.jsonl  node.log            history and log, JSON objects; older ones in *.1
editing                            locked while a command changes one of these files
control.json  metrics.token  prometheus.json    where the running node answers (mode 0600)
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgpack

from swarm_node.errors import HomeError, Rejected, TicketError
from swarm_node.p2p.addresses.addresses import coordinator_url
from swarm_node.p2p.membership.membership import (
    IssuerBody,
    MemberBody,
    SwarmInfo,
    create_swarm,
    issue_issuer,
    issue_member,
    open_chain,
)
from swarm_node.p2p.membership.statements import verify_secret
from swarm_node.p2p.membership.stewards import Signer
from swarm_node.p2p.membership.ticket import Ticket, make_ticket, redeem
from swarm_node.p2p.wire.identity import Identity
from swarm_node.program.private_directory import PrivateDirectory

_MAX_SMALL_FILE = 8192
OWNER_MEMBER_SECONDS = 10 * 365 * 86_400


@dataclass(frozen=True)
class Membership:
    """This node's place in a swarm."""

    identity: Identity
    swarm: SwarmInfo
    chain: tuple[bytes, bytes]

    def opened(self) -> tuple[IssuerBody, MemberBody] | Rejected:
        """The bodies of the chain; see `open_chain`."""
        return open_chain(self.chain, self.swarm, self.identity.public_key)


class Home(PrivateDirectory):
    """The files in the directory of one node; see the module."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.control_file = self.path / "control.json"
        self.database = self.path / "node.db"
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.log = self.path / "node.log"

    @property
    def _swarm_file(self) -> Path:
        return self.path / "swarm.json"

    @property
    def has_swarm(self) -> bool:
        return self._swarm_file.exists()

    @property
    def is_owner(self) -> bool:
        return (self.path / "root.key").exists()

    def identity(self) -> Identity:
        return Identity.load_or_create(self.path / "node.key")

    def site_key(self) -> bytes:
        """Return the key for the other hosts of this node's trainer; the first call makes it.

        Raises:
            HomeError: it cannot be made, or others can read it.
        """
        return Identity.load_or_create(self.path / "site.key").seed()

    def swarm(self) -> SwarmInfo:
        """Return the swarm that this home belongs to.

        Raises:
            HomeError: none yet, or the file is damaged.
        """
        if not self.has_swarm:
            raise HomeError(
                f"{self.path} belongs to no swarm yet: run `swarm-node init NAME` to found one, "
                "or `swarm-node join --ticket-file FILE` to join one"
            )
        info = SwarmInfo.load(self._swarm_file)
        newest = verify_secret(self.load("secret") or b"", info)
        if isinstance(newest, Rejected) or newest.body.number <= info.secret_number:
            return info
        return info.with_secret(newest.body.secret, newest.body.number)

    def found_swarm(self, name: str, now: float) -> Membership:
        """Found a new private swarm. Its root key lives here.

        Raises:
            HomeError: this home belongs to a swarm already, or the name is impossible.
        """
        if self.has_swarm:
            raise HomeError(
                f"{self.path} already belongs to swarm {self.swarm().name!r}; "
                "use another --home to found a new one"
            )
        self.create()
        try:  # before anything is written
            create_swarm(name, Identity.generate(), bytes(32))
        except ValueError as error:
            raise HomeError(f"this cannot be a swarm's name: {error}") from error
        root = Identity.load_or_create(self.path / "root.key")
        swarm = create_swarm(name, root, os.urandom(32))
        issuer = Identity.generate()
        identity = self.identity()
        start, end = int(now), int(now) + OWNER_MEMBER_SECONDS
        issuer_certificate = issue_issuer(
            root,
            swarm,
            issuer.public_key,
            name="owner",
            not_before=start,
            not_after=end,
            member_seconds=OWNER_MEMBER_SECONDS,
            steward=True,
        )
        member = issue_member(
            issuer, swarm, identity.public_key, name="owner", not_before=start, not_after=end
        )
        self.keep_steward(Signer(issuer, issuer_certificate))
        return self._keep(Membership(identity, swarm, (issuer_certificate, member)))

    def join_swarm(self, ticket: Ticket, now: float) -> Membership:
        """Redeem a ticket for a membership of this home's key.

        Raises:
            HomeError: this home belongs to another swarm.
            TicketError: the ticket cannot be used.
        """
        self.create()
        identity = self.identity()
        swarm, chain = redeem(ticket, identity, now)
        if self.has_swarm and self.swarm().swarm_id != swarm.swarm_id:
            raise HomeError(
                f"{self.path} belongs to swarm {self.swarm().name!r}, the ticket to "
                f"{swarm.name!r}; use another --home"
            )
        self.save("bootstrap", "\n".join(ticket.addresses).encode())
        if self.is_owner:
            return self.membership()
        return self._keep(Membership(identity, swarm, chain))

    def bootstraps(self) -> list[str]:
        """The addresses of peers that came with the ticket."""
        return [address for address in self._addresses() if coordinator_url(address) is None]

    def coordinator(self) -> str:
        """The URL of the coordinator that came with the ticket, "" for none."""
        return next(filter(None, map(coordinator_url, self._addresses())), "")

    def _addresses(self) -> list[str]:
        path = self.path / "bootstrap"
        return path.read_text()[:_MAX_SMALL_FILE].split() if path.exists() else []

    def membership(self) -> Membership:
        """Read the membership that an earlier `found_swarm` or `join_swarm` stored.

        Raises:
            HomeError: nothing, or damaged.
        """
        swarm = self.swarm()
        path = self.path / "membership"
        try:
            raw = path.read_bytes()[:_MAX_SMALL_FILE]
            chain = msgpack.unpackb(raw)
            issuer_certificate, member = chain
            if not isinstance(issuer_certificate, bytes) or not isinstance(member, bytes):
                raise ValueError("not certificates")
        except (OSError, ValueError, TypeError) as error:
            raise HomeError(f"{path} is damaged; join again with a ticket") from error
        return Membership(self.identity(), swarm, (issuer_certificate, member))

    def invite(
        self,
        addresses: Sequence[str],
        *,
        now: float,
        valid_seconds: int,
        member_seconds: int,
        name: str = "ticket",
        uses: int = 0,
    ) -> str:
        """Make a ticket for this home's swarm, for `uses` members called `name`.

        Raises:
            HomeError: the root key is not here.
            TicketError: an address is malformed.
        """
        swarm = self.swarm()
        if not self.is_owner:
            raise HomeError(
                f"only the home that founded {swarm.name!r} holds its root key and can invite"
            )
        try:
            return make_ticket(
                Identity.load(self.path / "root.key"),
                swarm,
                addresses[:8],
                now=now,
                valid_seconds=valid_seconds,
                member_seconds=member_seconds,
                name=name,
                uses=uses,
            )
        except ValueError as error:
            raise TicketError(f"no ticket can be made: {error}") from error

    def port(self) -> int:
        """Return the TCP port of this node. It is chosen once and then kept, so tickets stay
        valid."""
        kept = self.kept_port()
        if kept:
            return kept
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        self.save("port", f"{port}\n".encode())
        return port

    def kept_port(self) -> int:
        """Return the port that an earlier start chose; 0 before the first."""
        path = self.path / "port"
        text = path.read_text()[:8].strip() if path.exists() else ""
        return int(text) if text.isdecimal() and 0 < int(text) < 65_536 else 0

    def _keep(self, membership: Membership) -> Membership:
        # The swarm's file comes last: a home without it can be founded or joined again.
        self.save("membership", msgpack.packb(list(membership.chain)))
        membership.swarm.save(self._swarm_file)
        return replace(membership, swarm=self.swarm())

    def steward(self) -> Signer | None:
        """Return the steward whose key lies here, None without one.

        Raises:
            HomeError: its files are damaged, or others can read them.
        """
        certificate = self.load("issuer.certificate")
        if certificate is None:
            return None
        return Signer(Identity.load(self.path / "issuer.key"), certificate)

    def keep_steward(self, steward: Signer) -> None:
        """Let this node renew members with the key of `steward`, from its next heartbeat on.

        Raises:
            HomeError: it cannot be written.
        """
        self.save("issuer.key", steward.key.seed())
        self.save("issuer.certificate", steward.certificate)
