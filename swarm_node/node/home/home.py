"""A node's directory: keys, swarm file, membership.

node.key  root.key*                Ed25519 seeds, mode 0600 (* only the swarm's owner)
issuer.key*  issuer.certificate*   a delegate, which renews members while this node runs
site.key                           admits the other hosts of this node's trainer, if it has some
swarm.json                         which swarm this is (holds its shared secret: mode 0600)
membership                         the certificate chain that admits this node
revoked  secret                    the newest statements of the swarm: who is out, which secret
admitted  coordinator              whom limited issuers admitted; a coordinator's newest batch
port                               the TCP port chosen at first start, kept so tickets stay good
addresses                          those of the node when it last started, for tickets
settings.json                      what earlier starts were given (config/remembered.py)
node.db  node.db.sha256  checkpoints/   groups, windows, counters; its digest between two runs;
                                   training state
home.json                          the files that this home has had; see file_checks.py
metrics.jsonl  node.log            history and log, JSON objects; older ones in *.1
editing  recording                 locked while a command changes one of these files, home.json
runs/                              files of the tracker (`run.track`)
control.json  metrics.token  openai.token  prometheus.json  where the node answers (mode 0600)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgpack
import msgspec

from swarm_node.durable import open_regular, replace_private
from swarm_node.errors import (
    HomeError,
    NotRunningError,
    OtherSwarmError,
    Rejected,
    TicketError,
)
from swarm_node.node.home.file_checks import (
    FILES,
    RECORD,
    RECORD_VERSION,
    HomeState,
    Record,
    present,
)
from swarm_node.node.home.read_files import DATABASE_DIGEST, take_stock
from swarm_node.p2p.addresses.addresses import coordinator_url, unused_port
from swarm_node.p2p.membership.delegates import Signer
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
from swarm_node.p2p.membership.ticket import Ticket, make_ticket, redeem
from swarm_node.p2p.wire.identity import Identity
from swarm_node.program.commands import with_home
from swarm_node.program.private_directory import PrivateDirectory, content_of

_MAX_SMALL_FILE = 8192
#: The lock of home.json, which a node and a command may change at once.
_RECORDING = "recording"
OWNER_MEMBER_SECONDS = 10 * 365 * 86_400


@dataclass(frozen=True)
class Membership:
    """This node's place in a swarm."""

    identity: Identity
    swarm: SwarmInfo
    chain: tuple[bytes, bytes]

    def open_chain(self) -> tuple[IssuerBody, MemberBody] | Rejected:
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
        self.runs = self.path / "runs"
        self.log = self.path / "node.log"
        self._recorded_names: set[str] = set()

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
        """Return this node's key.

        Raises:
            HomeError: it is missing or damaged, or others can read it.
        """
        return Identity.load(self.path / "node.key")

    def not_running(self) -> NotRunningError:
        """Make the error that no node answers for this home."""
        from swarm_node.config import named_home

        start = with_home("start one with `swarm-node join`", named_home(self.path))
        return NotRunningError(f"no node is running in {self.path}", start)

    def state(self, *, deep: bool = False, ticket: bool = False) -> HomeState:
        """Judge this home as a whole. `deep`: database and checkpoints too, which takes seconds
        where they are large. With a `ticket`, what it may restore is no error. Nothing is written.
        """
        return take_stock(self.path, deep=deep).state(ticket=ticket)

    def require_sound(self) -> None:
        """Raise unless the files of this home are those of one member of one swarm.

        Raises:
            HomeError: with every fault and what restores it, or it belongs to no swarm yet.
        """
        home_state = self.state()
        _refuse(self.path, home_state)
        if home_state.state != "whole":
            self.swarm()

    def begin(self) -> Identity:
        """Return the key of this home, which belongs to no swarm yet; the first call makes it.

        Raises:
            HomeError: something of a swarm lies here, or it cannot be written.
        """
        home_state = self.state()
        _refuse(self.path, home_state)
        if home_state.state == "new":
            self.create()
            with self.editing(_RECORDING):
                self._write(Record(RECORD_VERSION, False, []))
        return Identity.load_or_create(self.path / "node.key")

    def record(self) -> None:
        """Record the files that this home has now. The start has reported lost ones.

        Raises:
            HomeError: it cannot be written.
        """
        with self.editing(_RECORDING):
            names = present(take_stock(self.path).files)
            self._write(Record(RECORD_VERSION, True, names))

    @contextmanager
    def using_database(self) -> Iterator[None]:
        """Let the block change the database, and keep its digest when the block has closed it.
        SQLite has none, so the next start would not find a changed bit inside a row.

        Raises:
            HomeError: it cannot be read, or its digest not written.
        """
        if self.has_swarm:
            self.record()  # what is lost has been told
        (self.path / DATABASE_DIGEST).unlink(missing_ok=True)
        yield
        try:
            with self.database.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise HomeError(f"cannot read {self.database}: {error.strerror}") from error
        self.save(DATABASE_DIGEST, digest)
        self.record()

    def save(self, name: str, data: bytes) -> None:
        """Replace a small file, and record that this home has it.

        Raises:
            HomeError: it cannot be written.
        """
        super().save(name, data)
        self.note(name)

    def note(self, name: str) -> None:
        """Record that this home has the small file `name`, which was written without `save`.

        Raises:
            HomeError: it cannot be written.
        """
        # Without a record this is no node's home, or one before its first start.
        if name in self._recorded_names or name not in FILES or not (self.path / RECORD).exists():
            return
        with self.editing(_RECORDING):
            try:
                record = msgspec.json.decode(self.load(RECORD) or b"", type=Record)
            except (ValueError, RecursionError):  # the next start names it
                return
            if record.finished and name not in record.files:
                self._write(Record(RECORD_VERSION, True, sorted([*record.files, name])))
            if record.finished:
                self._recorded_names.add(name)

    def _write(self, record: Record) -> None:
        super().save(RECORD, msgspec.json.encode(record))

    def site_key(self) -> bytes:
        """Return the key for the other hosts of this node's trainer; the first call makes it.

        Raises:
            HomeError: it cannot be made, or others can read it.
        """
        return Identity.load_or_create(self.path / "site.key").seed()

    def swarm(self) -> SwarmInfo:
        """Return the swarm that this home belongs to.

        Raises:
            HomeError: none yet, or its file or its newest secret is damaged.
        """
        if not self.has_swarm:
            _refuse(self.path, self.state())
            raise HomeError(
                f"{self.path} belongs to no swarm yet",
                "run `swarm-node init NAME` to create one, "
                "or `swarm-node join --ticket-file FILE` to join one",
            )
        info, raw = SwarmInfo.load(self._swarm_file), self.load("secret")
        if raw is None:
            return info
        secret = verify_secret(raw, info)
        if isinstance(secret, Rejected):
            raise HomeError(
                f"{self.path / 'secret'} is damaged ({secret.reason})",
                "restore it from a backup, "
                "or copy it from another member's data directory (`swarm-node doctor` lists all "
                "checks)",
            )
        if secret.body.number <= info.secret_number:
            return info
        return info.with_secret(secret.body.secret, secret.body.number)

    def found_swarm(self, name: str, now: float) -> Membership:
        """Found a new private swarm. Its root key lives here.

        Raises:
            HomeError: something of a swarm lies here already, or the name is impossible.
        """
        if self.has_swarm:
            raise HomeError(
                f"{self.path} already belongs to swarm {self.swarm().name!r}",
                "use another --home to found a new one",
            )
        try:  # before anything is written
            create_swarm(name, Identity.generate(), bytes(32))
        except ValueError as error:
            raise HomeError(f"this cannot be a swarm's name: {error}") from error
        identity = self.begin()
        root = Identity.load_or_create(self.path / "root.key")
        swarm = create_swarm(name, root, os.urandom(32))
        issuer = Identity.generate()
        start, end = int(now), int(now) + OWNER_MEMBER_SECONDS
        issuer_certificate = issue_issuer(
            root,
            swarm,
            issuer.public_key,
            name="owner",
            not_before=start,
            not_after=end,
            member_seconds=OWNER_MEMBER_SECONDS,
            delegate=True,
        )
        member = issue_member(
            issuer, swarm, identity.public_key, name="owner", not_before=start, not_after=end
        )
        self.keep_delegate(Signer(issuer, issuer_certificate))
        return self._keep(Membership(identity, swarm, (issuer_certificate, member)))

    def join_swarm(self, ticket: Ticket, now: float) -> Membership:
        """Redeem a ticket for a membership of this home's key.

        Raises:
            HomeError: this home belongs to another swarm.
            TicketError: the ticket cannot be used.
        """
        stock = take_stock(self.path)
        home_state = stock.state(ticket=True)
        _refuse(self.path, home_state)
        if stock.files["swarm.json"].state == "sound":
            swarm = SwarmInfo.load(self._swarm_file)
            if swarm.swarm_id != ticket.info.swarm_id:
                raise OtherSwarmError(
                    f"{self.path} belongs to swarm {swarm.name!r}, the ticket to "
                    f"{ticket.info.name!r}",
                    "use another --home",
                )
        # What lies here must be of the ticket's swarm, whether or not swarm.json can tell.
        _refuse(self.path, take_stock(self.path, swarm=ticket.info).state(ticket=True))
        identity = self.identity() if home_state.state == "whole" else self.begin()
        swarm, chain = redeem(ticket, identity, now)
        for name in ("swarm.json", "membership", "secret"):
            if stock.files[name].state in ("damaged", "empty"):
                (self.path / name).replace(self.path / f"{name}.damaged")
        self.save("bootstrap", "\n".join(ticket.addresses).encode())
        if self.is_owner and stock.files["membership"].state == "sound":
            swarm.save(self._swarm_file)
            self.record()
            return self.membership()
        return self._keep(Membership(identity, swarm, chain))

    def last_addresses(self) -> list[str]:
        """The addresses that the node had when it last started; none before."""
        return self._text("addresses").split()

    def keep_addresses(self, addresses: Sequence[str]) -> None:
        """Keep the `addresses` of the node, for tickets that are made while it does not run.

        Raises:
            HomeError: they cannot be written.
        """
        self.save("addresses", "\n".join(addresses).encode())

    def bootstraps(self) -> list[str]:
        """The addresses of peers that came with the ticket."""
        return [address for address in self._addresses() if coordinator_url(address) is None]

    def coordinator(self) -> str:
        """The URL of the coordinator that came with the ticket, "" for none."""
        return next(filter(None, map(coordinator_url, self._addresses())), "")

    def _addresses(self) -> list[str]:
        return self._text("bootstrap").split()

    def _text(self, name: str) -> str:
        """The text of a small file, "" without one. The start refuses a damaged one."""
        try:
            with open_regular(self.path / name) as file:
                content = content_of(file.read(_MAX_SMALL_FILE))
        except OSError:
            return ""
        return content.decode("utf-8", "replace") if isinstance(content, bytes) else ""

    def membership(self) -> Membership:
        """Read the membership that an earlier `found_swarm` or `join_swarm` stored.

        Raises:
            HomeError: nothing, or damaged.
        """
        swarm = self.swarm()
        path = self.path / "membership"
        try:
            chain = msgpack.unpackb((self.load(path.name) or b"")[:_MAX_SMALL_FILE])
            issuer_certificate, member = chain
            if not isinstance(issuer_certificate, bytes) or not isinstance(member, bytes):
                raise ValueError("not certificates")
        except (ValueError, TypeError) as error:
            raise HomeError(f"{path} is damaged", "join again with a ticket") from error
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
                f"only the node that created {swarm.name!r} holds its root key and can invite"
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
        stored_port = self.kept_port()
        if stored_port:
            return stored_port
        port = unused_port()
        self.save("port", f"{port}\n".encode())
        return port

    def kept_port(self) -> int:
        """Return the port that an earlier start chose; 0 before the first."""
        text = self._text("port").strip()[:8]
        return int(text) if text.isdecimal() and 0 < int(text) < 65_536 else 0

    def _keep(self, membership: Membership) -> Membership:
        # The swarm's file comes last: a home without it can be founded or joined again.
        self.save("membership", msgpack.packb(list(membership.chain)))
        membership.swarm.save(self._swarm_file)
        self.record()
        return replace(membership, swarm=self.swarm())

    def delegate(self) -> Signer | None:
        """Return the delegate whose key lies here, None without one.

        Raises:
            HomeError: its files are damaged, or others can read them.
        """
        certificate = self.load("issuer.certificate")
        if certificate is None:
            return None
        return Signer(Identity.load(self.path / "issuer.key"), certificate)

    def keep_delegate(self, delegate: Signer) -> None:
        """Let this node renew members with the key of `delegate`, from its next heartbeat on.

        Raises:
            HomeError: it cannot be written.
        """
        try:
            replace_private(self.path / "issuer.key", delegate.key.seed())
        except OSError as error:
            raise HomeError(f"cannot write {self.path / 'issuer.key'}: {error.strerror}") from error
        self.save("issuer.certificate", delegate.certificate)


def listen_addresses(listen: Sequence[str], own_port: Callable[[], int]) -> list[str]:
    """Return the addresses to listen on. Port 0 becomes the home's own port, so tickets stay valid
    after a restart."""

    def fill_port(address: str) -> str:
        head, separator, tail = address.partition("/tcp/0")
        return f"{head}/tcp/{own_port()}{tail}" if separator else address

    return [fill_port(address) for address in listen]


def _refuse(path: Path, home_state: HomeState) -> None:
    if home_state.errors:
        faults = "; ".join(map(str, home_state.errors))
        raise HomeError(f"{path}: {faults} (`swarm-node doctor` lists all checks)")
