"""The members now: the certificates that peers presented, the revocation list, and the one
membership check that all other modules use. No I/O but the small file of counted admissions.
"""

from __future__ import annotations

import functools
import math
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import msgpack
import msgspec

from swarm_node.errors import HomeError, Rejected
from swarm_node.p2p.limits.round_robin import drawn_in_turn
from swarm_node.p2p.membership.membership import (
    CLOCK_SKEW_SECONDS,
    MAX_USES,
    IssuerBody,
    MemberBody,
    SwarmInfo,
    check_times,
    open_chain,
    verify_issuer,
)
from swarm_node.p2p.membership.statements import Revocations
from swarm_node.p2p.membership.ticket_uses import TicketUses
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, open_sealed
from swarm_node.p2p.wire.identity import peer_id_of, public_key_of
from swarm_node.recent import Recent

MAX_MEMBERS = 4096
#: Oldest accepted heartbeat. One is issued at least every five minutes. After two of these
#: intervals and the tolerated clock error its peer has stopped.
MAX_HEAD_SECONDS: Final = 900
#: Milliseconds for which a claim of a limited issuer is told after its subject was first met. By
#: then it has reached every node that was online.
_TOLD_MS = 86_400_000
#: Limit of verified issuer certificates in memory. A ticket has one, and all of its members present
#: it.
_MAX_ISSUERS = 1024
#: Former members that are kept for the node's owner to see.
_MAX_FORMER = 256
_ADMITTED = "admitted"
_StoredClaims = tuple[
    wire.Digest,
    Annotated[int, msgspec.Meta(ge=1, le=MAX_USES)],
    list[tuple[wire.Digest, wire.Milliseconds]],
]


class Keeper(Protocol):
    """A store of small files: a home, or memory."""

    def load(self, name: str) -> bytes | None: ...
    def save(self, name: str, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Member:
    """A peer with the certificate that admits it and the certificate of its issuer."""

    peer_id: str
    issuer: IssuerBody
    body: MemberBody
    chain: tuple[bytes, ...]

    @property
    def name(self) -> str:
        """Name of the ticket or issuer that first admitted it."""
        return self.body.name

    @property
    def admitted_by(self) -> bytes:
        """The key (32 bytes) of the issuer that first admitted it, also after renewals."""
        return self.body.admitted_by

    @property
    def until(self) -> int:
        """Unix seconds when the membership ends."""
        return self.body.not_after


@dataclass(frozen=True, slots=True)
class Heard:
    """A verified presence: its member and its heartbeat."""

    member: Member
    head: wire.Heartbeat


@dataclass(slots=True)
class _Known:
    member: Member
    is_presented: bool = (
        False  # the peer itself showed its chain; otherwise another peer told of it
    )
    list_number: int = 0
    secret: int = 0
    delegate: bool = False
    relay: tuple[str, ...] = ()


def nobody() -> frozenset[str]:
    """The blocks of a node that blocks nobody."""
    return frozenset()


def nothing() -> Mapping[str, str]:
    """The names of a node whose owner gave none."""
    return {}


class Members:
    """The members that this node knows. Above MAX_MEMBERS it forgets the oldest member of the most
    common issuer, so no ticket crowds out the members of another."""

    def __init__(
        self,
        swarm: SwarmInfo,
        wall: Callable[[], float],
        keeper: Keeper | None = None,
        blocks: Callable[[], frozenset[str]] = nobody,
        names: Callable[[], Mapping[str, str]] = nothing,
    ) -> None:
        """`blocks` returns this node's own blocks: peer ids, and keys (hex) of issuers. A blocked
        issuer key applies to members that it first admitted. `names` returns the names that the
        owner of this node gave to issuers, by key (hex). They count before those in certificates.

        Raises:
            HomeError: what `keeper` holds is damaged.
        """
        self._swarm = swarm
        self._wall = wall
        self._keeper = keeper
        self._block_list = blocks
        self._names = names
        self._entries: OrderedDict[str, _Known] = OrderedDict()
        self._groups: Counter[bytes] = Counter()
        #: The keys on the list. For each, the time (Unix seconds) of the oldest list known here
        #: that names it.
        self._revoked_keys: frozenset[bytes] = frozenset()
        self._revocation_times: dict[bytes, int] = {}
        self._new_revocations: set[bytes] = set()
        self._former: Recent[str, Member] = Recent(_MAX_FORMER)
        #: The list and the blocks at the last walk of `dismiss`, its time, and the earliest end of
        #: the memberships known since then.
        self._walked_state: tuple[frozenset[bytes], frozenset[str], int] | None = None
        self._walked_at = self._ends = 0.0
        self._claims = load_claims(keeper)
        #: Chains of claims that stay, to be told to others.
        self._chains: Recent[tuple[bytes, bytes], tuple[bytes, ...]] = Recent(MAX_MEMBERS)
        self._issuer = functools.lru_cache(_MAX_ISSUERS)(verify_issuer)
        self._open = functools.lru_cache(2 * MAX_MEMBERS)(self._open_chain)
        self._read = functools.lru_cache(MAX_MEMBERS)(self._open_presence)

    def admit(self, chain: tuple[bytes, ...], peer_id: str) -> Member | Rejected:
        """Check the chain that `peer_id` presents, and remember it as a member. The reasons are
        those of `membership.open_chain` and `membership.check_times`, "revoked", and "used_up" for
        an issuer that has admitted as many as it may."""
        member = self._open(chain, peer_id)
        if isinstance(member, Rejected):
            return member
        return (
            self._check_member(member)
            or self._count(member)
            or self._remember(member, is_presented=True)
        )

    def check(self, peer_id: str) -> Member | Rejected:
        """Return the member with this id, if it is one now. Otherwise the reason is
        "unknown_member" or one of `admit`."""
        entry = self._entries.get(peer_id)
        if entry is None:
            return Rejected("unknown_member", "it has shown no certificate")
        return self._check_member(entry.member) or entry.member

    def is_member(self, peer_id: str) -> bool:
        """Check that this peer is a member now."""
        return isinstance(self.check(peer_id), Member)

    def presented_membership(self, peer_id: str) -> tuple[Member, str] | None:
        """The membership that a peer presented, with "member" or the reason why it is none. A
        former member has one too. None for any other peer."""
        entry = self._entries.get(peer_id)
        member = entry.member if entry else self._former.get(peer_id)
        if member is None:
            return None
        rejection = self._check_member(member)
        return member, rejection.reason if rejection else "member"

    def name(self, peer_id: str) -> str:
        """The name of a peer that presented its certificate. A former member has one too. "" for
        any other peer."""
        membership = self.presented_membership(peer_id)
        return self.names(membership[0])[0] if membership else ""

    def names(self, member: Member) -> tuple[str, str]:
        """Return the names of a member and of its issuer: those that the owner of this node gave,
        otherwise those in certificates."""
        owner_names = self._names()
        return (
            owner_names.get(member.admitted_by.hex(), member.name),
            owner_names.get(member.issuer.issuer_key.hex(), member.issuer.name),
        )

    def author(self, presence: bytes) -> str:
        """Return the peer id of a presence's signer, even of an outdated presence; "" if its chain
        or signature is invalid."""
        record = self._read(presence)
        return "" if isinstance(record, Rejected) else record.member.peer_id

    def expelled_at(self, peer_id: str) -> int:
        """Unix second of the oldest list known here that names this peer, 0 without one."""
        membership = self.presented_membership(peer_id)
        return (self._expelled_since(membership[0]) or 0) if membership is not None else 0

    def claimed_name(self, chain: tuple[bytes, ...], peer_id: str) -> str:
        """Return the name in a chain from the root to this peer, member or not, "" for any other
        chain."""
        member = self._open(chain, peer_id)
        return "" if isinstance(member, Rejected) else member.name

    def issuer(self, peer_id: str) -> str:
        """Key (hex) of the issuer that admitted a peer known to this node, "" for any other."""
        entry = self._entries.get(peer_id)
        return entry.member.admitted_by.hex() if entry else ""

    def read_presence(self, presence: bytes, author_id: str | None = None) -> Heard | Rejected:
        """Check a packed presence, of `author_id` or of any peer, and remember its member. Reasons
        besides those of `admit` and `open_sealed`: "author" for another peer's presence,
        "not_yet_valid" for a heartbeat more than CLOCK_SKEW_SECONDS ahead, "outdated" for one older
        than MAX_HEAD_SECONDS.

        Any holder of a ticket can sign a certificate for any key. So a teller can put another chain
        beside a member's heartbeat. It cannot change the issuer of a peer that presented its chain
        itself. Signatures of a presence that was read before are not checked again."""
        record = self._read(presence)
        if isinstance(record, Rejected):
            return record
        member, head = record.member, record.head
        if author_id not in (None, member.peer_id):
            return Rejected("author", "the peer record of another peer")
        age = self._wall() - head.issued_ms / 1000
        if age < -CLOCK_SKEW_SECONDS:
            return Rejected("not_yet_valid", f"issued {-age:.0f} s ahead", -age)
        if age > MAX_HEAD_SECONDS:
            return Rejected("outdated", f"issued {age:.0f} s ago", -age)
        entry = self._entries.get(member.peer_id)
        if entry is not None and entry.is_presented and not self._check_member(entry.member):
            is_same_issuer = entry.member.admitted_by == member.admitted_by
            member = member if is_same_issuer else entry.member
        rejection = self._check_member(member) or self._count(member)
        if rejection is not None:
            return rejection
        self._remember(member)
        self.note(member.peer_id, head.revoked, head.secret, delegate=head.delegate)
        self._entries[member.peer_id].relay = head.addresses if head.relays else ()
        return Heard(member, head)

    def proves_membership(self, presence: bytes, peer_id: str) -> bool:
        """Check that the chain of a presence leads from the root to `peer_id`, regardless of time.
        Otherwise the record of the DHT is refused. The result depends on no clock and no list,
        because a reader drops all records of a holder if it refuses one of them."""
        record = wire.unpack(wire.Presence, presence, max_bytes=wire.MAX_PRESENCE_BYTES)
        if isinstance(record, Rejected):
            return False
        chain = (record.issuer, record.member)
        if isinstance(self._open(chain, peer_id), Rejected):
            return False
        self.admit(chain, peer_id)
        return True

    def note(
        self, peer_id: str, list_number: int, secret: int, *, delegate: bool | None = None
    ) -> None:
        """Record the numbers of the list and the secret that a member claims to hold, and whether
        it renews."""
        entry = self._entries.get(peer_id)
        if entry is None:
            return
        entry.list_number, entry.secret = list_number, secret
        if delegate is not None:
            entry.delegate = delegate

    def holding(self, *, list_number: int | None = None, secret: int | None = None) -> list[str]:
        """Members that claim to hold a list or a secret with a greater number."""
        return [
            peer_id
            for peer_id, entry in self._entries.items()
            if (list_number is not None and entry.list_number > list_number)
            or (secret is not None and entry.secret > secret)
        ]

    def delegates(self) -> list[str]:
        """Members that claim to renew memberships."""
        return [peer_id for peer_id, entry in self._entries.items() if entry.delegate]

    def relays(self) -> dict[str, tuple[str, ...]]:
        """Addresses of members that claim to forward requests, by peer id."""
        pairs = ((peer, entry.relay) for peer, entry in self._entries.items() if entry.relay)
        return {peer: addresses for peer, addresses in pairs if self.is_member(peer)}

    def obey(self, body: Revocations) -> None:
        """Refuse exactly the keys that this list names from now on."""
        revoked_keys = frozenset(body.keys)
        self._revocation_times = {
            key: min(body.issued, self._revocation_times.get(key, body.issued)) for key in body.keys
        }
        self._new_revocations |= revoked_keys - self._revoked_keys
        self._revoked_keys = revoked_keys

    def dismiss(self) -> list[str]:
        """Forget former members. Return their peer ids, and those that the list named since the
        last call: this node may hold groups of a peer that it has not met since its start."""
        former_ids = self._find_former_members()
        for peer_id in former_ids:
            self._former[peer_id] = self._entries[peer_id].member
            self._forget(peer_id)
        revoked_ids = {peer_id_of(key) for key in self._new_revocations}
        self._new_revocations = set()
        return sorted(revoked_ids.union(former_ids))

    def _find_former_members(self) -> list[str]:
        """Find former members. All members are checked only if a list changed, if an earlier
        claim displaces one, if a membership has ended, or if the clock was set back."""
        state, now = (
            (self._revoked_keys, self._block_list(), self._claims.displaced_count),
            self._wall(),
        )
        walk = state != self._walked_state or not self._walked_at <= now <= self._ends
        self._walked_state, self._walked_at = state, now
        if not walk:
            return []
        members = [entry.member for entry in self._entries.values()]
        self._ends = min((m.until for m in members), default=math.inf) + CLOCK_SKEW_SECONDS
        return [member.peer_id for member in members if self._check_member(member)]

    def _check_member(self, member: Member) -> Rejected | None:
        revoked_at = self._expelled_since(member)
        if revoked_at is not None:
            return Rejected(
                "revoked", "the swarm's owner has revoked it", revoked_at - self._wall()
            )
        if not self._block_list().isdisjoint((member.peer_id, member.admitted_by.hex())):
            return Rejected("blocked", "the owner of this node blocked it")
        rejection = check_times(member.issuer, member.body, self._wall())
        if rejection is not None:
            return rejection
        issuer, subject = member.admitted_by, member.body.subject
        if self._claims.has_use(issuer, subject) and not self._claims.stays(issuer, subject):
            return Rejected("used_up", "its ticket was used for another key first")
        return None

    def _expelled_since(self, member: Member) -> int | None:
        """Unix seconds of the oldest list known here that names the member or an issuer of it, None
        without one."""
        keys = (member.body.subject, member.body.admitted_by, member.issuer.issuer_key)
        times = [self._revocation_times[key] for key in keys if key in self._revocation_times]
        return min(times, default=None)

    def _count(self, member: Member, met_ms: int | None = None) -> Rejected | None:
        """Count a subject of an issuer with limited uses, as met now or at `met_ms`."""
        uses, key, subject = member.issuer.uses, member.issuer.issuer_key, member.body.subject
        if not uses:
            return None
        now = int(self._wall() * 1000)
        if met_ms is None:
            has_changed = self._claims.arrive(key, uses, subject, now)
        else:
            has_changed = self._claims.meet(key, uses, subject, min(now, met_ms))
        if has_changed and self._keeper is not None:
            self._keeper.save(_ADMITTED, msgpack.packb(self._claims.rows()))
        if self._claims.has_use(key, subject):
            self._chains[key, subject] = member.chain
        if not self._claims.stays(key, subject):
            return Rejected("used_up", f"its issuer may admit {uses}")
        return None

    def claims(self) -> list[tuple[bytes, bytes, int]]:
        """(issuer key, subject, first met in ms) of those that lately showed a ticket of limited
        uses."""
        return self._claims.since(int(self._wall() * 1000) - _TOLD_MS)

    def told_claims(self, rng: random.Random) -> tuple[wire.Claim, ...]:
        """A sample of `claims`, with their chains, by issuer in turn."""
        claims = [claim for claim in self.claims() if claim[:2] in self._chains]
        sample = drawn_in_turn(rng, claims, lambda claim: claim[0].hex(), wire.MAX_CLAIMS)
        return tuple(wire.Claim(s, self._chains[i, s], met_ms) for i, s, met_ms in sample)

    def learn(self, claim: wire.Claim, teller: str) -> Rejected | None:
        """Take a claim that a member told. Members of the same ticket are no witnesses, so a claim
        that they tell counts as met now. Return a refusal that is the teller's fault."""
        member = self._open(claim.chain, peer_id_of(claim.subject))
        if isinstance(member, Rejected):
            return member
        rejection = self._check_member(member)
        if rejection is not None and rejection.reason != "used_up":
            return None  # lists and clocks differ, and are nobody's fault
        witness = self.issuer(teller) not in ("", member.admitted_by.hex())
        self._count(member, claim.met_ms if witness else None)
        return None

    def late_peer_ids(self, issuer_key: bytes) -> list[str]:
        """Peer ids of those that showed a ticket after it was used up."""
        return [peer_id_of(subject) for subject in self._claims.late_subjects(issuer_key)]

    def _remember(self, member: Member, *, is_presented: bool = False) -> Member:
        """Store the member. A certificate that the member presented itself wins over one that a
        peer passed on; otherwise the later expiry wins."""
        entry = self._entries.get(member.peer_id)
        self._ends = min(self._ends, member.until + CLOCK_SKEW_SECONDS)
        if entry is None:
            if len(self._entries) >= MAX_MEMBERS:
                ((largest_issuer, _),) = self._groups.most_common(1)
                peer_ids = (
                    p for p, k in self._entries.items() if k.member.admitted_by == largest_issuer
                )
                self._forget(next(peer_ids))
            self._entries[member.peer_id] = _Known(member, is_presented)
            self._groups[member.admitted_by] += 1
            return member
        another = (
            is_presented
            and not entry.is_presented
            and member.admitted_by != entry.member.admitted_by
        )
        entry.is_presented = entry.is_presented or is_presented
        if another or member.until > entry.member.until:
            self._groups[entry.member.admitted_by] -= 1
            self._groups[member.admitted_by] += 1
            entry.member = member
        return member

    def _forget(self, peer_id: str) -> None:
        group = self._entries.pop(peer_id).member.admitted_by
        self._groups[group] -= 1
        if not self._groups[group]:
            del self._groups[group]

    def _open_chain(self, chain: tuple[bytes, ...], peer_id: str) -> Member | Rejected:
        bodies = open_chain(chain, self._swarm, public_key_of(peer_id), self._issuer)
        return bodies if isinstance(bodies, Rejected) else Member(peer_id, *bodies, chain)

    def _open_presence(self, presence: bytes) -> Heard | Rejected:
        record = wire.unpack(wire.Presence, presence, max_bytes=wire.MAX_PRESENCE_BYTES)
        if isinstance(record, Rejected):
            return record
        envelope = open_sealed(
            record.head, self._swarm.swarm_id, Kind.HEAD, max_bytes=wire.MAX_HEAD_BYTES
        )
        if isinstance(envelope, Rejected):
            return envelope
        head = wire.unpack(wire.Heartbeat, envelope.body, max_bytes=wire.MAX_HEAD_BYTES)
        if isinstance(head, Rejected):
            return head
        member = self._open((record.issuer, record.member), peer_id_of(envelope.author_key))
        return member if isinstance(member, Rejected) else Heard(member, head)


def load_claims(keeper: Keeper | None) -> TicketUses:
    """Read the claims of tickets that admit a limited number of keys.

    Raises:
        HomeError: the file is damaged.
    """
    claims, raw = TicketUses(), None if keeper is None else keeper.load(_ADMITTED)
    if raw is None:
        return claims
    try:
        rows = msgspec.msgpack.decode(raw, type=list[_StoredClaims])
    except (msgspec.DecodeError, RecursionError) as error:
        raise HomeError(
            f"the file {_ADMITTED!r} of this data directory is damaged",
            "restore it from a backup, or remove "
            "it, and tickets that admit some members are counted anew",
        ) from error
    for issuer, uses, subjects in rows:
        for subject, met_ms in subjects:
            claims.meet(issuer, uses, subject, met_ms)
    return claims
