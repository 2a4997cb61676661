"""A node's credentials: its chain, its delegate's key, and the newest list and secret of its swarm.
They survive a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgpack
import structlog

from swarm_node.errors import Rejected
from swarm_node.p2p.membership.delegates import Signer, in_last_third, issue_renewal, next_list
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.members import Keeper, Member
from swarm_node.p2p.membership.membership import Chain, open_chain
from swarm_node.p2p.membership.statements import (
    MAX_REVOKED,
    ROOT_ONLY,
    NewSecret,
    Revocations,
    Statement,
    verify_revocations,
    verify_secret,
)

_log = structlog.get_logger(__name__)
T = TypeVar("T", bound=Revocations | NewSecret)


class Office(Keeper, Protocol):
    """A keeper that may also hold a delegate's key."""

    def delegate(self) -> Signer | None: ...


class MemoryOffice:
    """Keeps files in memory, so they end with the process."""

    def __init__(self, signer: Signer | None = None) -> None:
        self._files: dict[str, bytes] = {}
        self._signer = signer

    def load(self, name: str) -> bytes | None:
        return self._files.get(name)

    def save(self, name: str, data: bytes) -> None:
        self._files[name] = data

    def delegate(self) -> Signer | None:
        return self._signer


class Shelf(Generic[T]):
    """The newest statement of one kind, in memory and in a small file. `use` is called with every
    newer one, `on_outdated` with one from the file that was no newer. `is_unsent` is true until
    peers were told of it."""

    def __init__(
        self,
        name: str,
        keeper: Keeper,
        verify: Callable[[bytes, float | None], Statement[T] | Rejected],
        use: Callable[[T], None],
        wall: Callable[[], float],
        min_number: int = 0,
        on_outdated: Callable[[T], None] = lambda body: None,
    ) -> None:
        self._name = name
        self._keeper = keeper
        self._verify = verify
        self._use = use
        self._wall = wall
        self._min_number = min_number
        self._on_outdated = on_outdated
        self._file: bytes | None = None
        self.statement: Statement[T] | None = None
        self.is_unsent = False

    @property
    def number(self) -> int:
        """Number of the newest statement that this node holds or knows of from its ticket."""
        return self.statement.body.number if self.statement else self._min_number

    @property
    def raw(self) -> bytes:
        """The packed statement, empty without one."""
        return self.statement.raw if self.statement else b""

    def offer(self, raw: bytes) -> Rejected | None:
        """Accept a statement if it is valid and outranks the one held."""
        statement = self._verify(raw, self._wall())
        if isinstance(statement, Rejected):
            return statement
        if self._outranks(statement):
            self.refresh()  # or it overwrites a command's newer file
        if self._take(statement):
            self._keeper.save(self._name, raw)
            self._file = raw
        return None

    def exchange(self, raw: bytes) -> bytes | Rejected:
        """Answer a peer that offers a statement, or none. Return the one held if it differs."""
        rejection = self.offer(raw) if raw else None
        return rejection or (b"" if self.raw == raw else self.raw)

    def refresh(self) -> None:
        """Read a statement that a command has written into the file."""
        raw = self._keeper.load(self._name)
        if raw is None or raw == self._file:
            return
        self._file = raw
        statement = self._verify(raw, None)
        if isinstance(statement, Rejected):
            _log.warning(
                "a file of this data directory is damaged", file=self._name, reason=statement.reason
            )
        elif not self._take(statement):
            self._on_outdated(statement.body)

    def _take(self, statement: Statement[T]) -> bool:
        if not self._outranks(statement):
            return False
        self.statement, self.is_unsent = statement, True
        self._use(statement.body)
        return True

    def _outranks(self, statement: Statement[T]) -> bool:
        return statement.body.number >= self._min_number and (
            self.statement is None or statement.rank > self.statement.rank
        )


class Credentials:
    """The credentials of one node. `use_secret` is called with every new secret of the swarm."""

    def __init__(
        self,
        local: LocalNode,
        chain: Chain,
        *,
        office: Office,
        use_secret: Callable[[bytes], None],
    ) -> None:
        self.identity = local.identity
        self.chain = chain
        self.delegate: Signer | None = None
        self._swarm = local.swarm
        self._members = local.members
        self._office = office
        self._wall = local.clock.wall
        self._listed_keys: set[bytes] = set()
        self.lists = Shelf(
            "revoked",
            office,
            lambda raw, now: verify_revocations(raw, local.swarm, now),
            self._obey,
            local.clock.wall,
            on_outdated=self._note_listed,
        )
        self.secrets = Shelf(
            "secret",
            office,
            lambda raw, now: verify_secret(raw, local.swarm, now),
            lambda body: use_secret(body.secret),
            local.clock.wall,
            local.swarm.secret_number,
        )
        self.refresh()
        self.me()  # counts this node as the first use of an issuer with limited uses

    def refresh(self) -> None:
        """Read what commands have written into the home. A delegate also renews this node's own
        membership, and issues the list anew before it ends, or if the list lacks keys of earlier
        lists. If two delegates expel at once, they make two lists with one number, and only one of
        them is valid."""
        self.lists.refresh()
        self.secrets.refresh()
        self.delegate, now = self._office.delegate(), self._wall()
        if self.delegate is None:
            return
        statement = self.lists.statement
        missing_keys = (
            self._listed_keys.difference(statement.body.keys)
            if statement and self._below_root(statement)
            else ()
        )
        if statement and (
            missing_keys or in_last_third(statement.body.issued, statement.body.not_after, now)
        ):
            try:
                self.lists.offer(
                    next_list(self.delegate, self._swarm, statement, missing_keys, now).raw
                )
            except ValueError as error:
                _log.warning("the revocation list cannot be reissued", error=str(error))
        me = self.me()
        if isinstance(me, Member) and self.ends_soon(me):
            chain = issue_renewal(self.delegate, self._swarm, me, now)
            if not isinstance(chain, Rejected):
                self.adopt(chain)

    def _obey(self, body: Revocations) -> None:
        self._members.obey(body)
        self._note_listed(body)

    def _note_listed(self, body: Revocations) -> None:
        """Remember the keys that a list named, as many as one list can name."""
        self._listed_keys.update(body.keys)
        if len(self._listed_keys) > MAX_REVOKED:
            self._listed_keys = set(body.keys)

    def _below_root(self, statement: Statement[Revocations]) -> bool:
        """Check that a delegate may still add to the list."""
        return statement.body.number + 1 < ROOT_ONLY

    def me(self) -> Member | Rejected:
        """Return this node's own membership now, or the reason why it has none."""
        return self._members.admit(self.chain, self.identity.peer_id)

    def ends_soon(self, me: Member) -> bool:
        """Check that a membership is in the last third of its period."""
        return in_last_third(me.body.not_before, me.until, self._wall())

    def renewal_of(self, peer_id: str) -> Chain | Rejected:
        """Renew a member's chain, if this node is a delegate."""
        member = self._members.check(peer_id)
        if isinstance(member, Rejected):
            return member
        if self.delegate is None:
            return Rejected("not_delegate", "this node renews nobody")
        return issue_renewal(self.delegate, self._swarm, member, self._wall())

    def adopt(self, chain: Chain) -> Rejected | None:
        """Use a renewed chain of this node from now on, and store it. A chain of another ticket is
        refused: anybody with a ticket could send one, and this node would be expelled together with
        that ticket."""
        old_bodies, new_bodies = (
            open_chain(candidate, self._swarm, self.identity.public_key)
            for candidate in (self.chain, chain)
        )
        if isinstance(new_bodies, Rejected):
            return new_bodies
        if (
            not isinstance(old_bodies, Rejected)
            and old_bodies[1].admitted_by != new_bodies[1].admitted_by
        ):
            return Rejected("unknown_member", "a renewal keeps the issuer that admitted this node")
        member, me = self._members.admit(chain, self.identity.peer_id), self.me()
        if isinstance(member, Rejected):
            return member
        if isinstance(me, Member) and member.until <= me.until:
            return Rejected("expired", "it ends no later than the one held")
        self._office.save("membership", msgpack.packb(list(chain)))
        self.chain = chain
        _log.info("membership renewed", until=member.until)
        return None
