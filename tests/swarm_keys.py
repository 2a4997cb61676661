"""A small private swarm: its root, its delegate, and members that came by tickets."""

from __future__ import annotations

from swarm_node.errors import Rejected
from swarm_node.node.home.home import Membership
from swarm_node.p2p.membership.delegates import Signer
from swarm_node.p2p.membership.membership import (
    Chain,
    MemberBody,
    SwarmInfo,
    check_times,
    create_swarm,
    issue_issuer,
    issue_member,
    open_chain,
)
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.simulation.seeded import EPOCH

DAY = 86_400


class Swarm:
    """Keys from seeds. Times are relative to `begin`, in Unix seconds."""

    def __init__(self, begin: int = EPOCH, member_seconds: int = 30 * DAY) -> None:
        self.begin = begin
        self.member_seconds = member_seconds
        key = Identity.from_seed(b"r" * 32)
        self.root = Signer(key, b"")
        self.info: SwarmInfo = create_swarm("night shift", key, b"s" * 32)
        self.delegate = self.issuer("owner", delegate=True)

    def issuer(self, name: str, *, delegate: bool = False, uses: int = 0) -> Signer:
        """An issuer whose key follows from its name, for ten years."""
        key = Identity.from_seed(name.encode().ljust(32, b"."))
        certificate = issue_issuer(
            self.root.key,
            self.info,
            key.public_key,
            name=name,
            not_before=self.begin,
            not_after=self.begin + 3650 * DAY,
            member_seconds=self.member_seconds,
            delegate=delegate,
            uses=uses,
        )
        return Signer(key, certificate)

    def chain(self, identity: Identity, issuer: Signer, name: str, begin: float = 0.0) -> Chain:
        """The membership of `identity` from `begin` on."""
        start = self.begin + begin
        certificate = issue_member(
            issuer.key,
            self.info,
            identity.public_key,
            name=name,
            not_before=start,
            not_after=start + self.member_seconds,
        )
        return issuer.certificate, certificate

    def member(self, index: int, issuer: Signer | None = None, name: str = "owner") -> Membership:
        """Member number `index`, by the delegate or another issuer."""
        identity = Identity.from_seed(index.to_bytes(32, "big"))
        return Membership(identity, self.info, self.chain(identity, issuer or self.delegate, name))

    def presence(self, of: Membership, issued: float = 0.0, **head: object) -> bytes:
        """What the DHT carries of a member, issued at `begin + issued`."""
        fields = {
            "v": 1,
            "addresses": ("/memory/p2p/" + of.identity.peer_id,),
            "policy_version": 0,
            "epoch": 1,
            "head": 0,
            "issued_ms": int((self.begin + issued) * 1000),
            "agent": "test",
            "revoked": 0,
            "secret": 0,
            "delegate": False,
            "relays": False,
        }
        body = wire.pack(wire.Heartbeat(**{**fields, **head}))  # type: ignore[arg-type]
        sealed = seal(of.identity, self.info.swarm_id, Kind.HEAD, body)
        return wire.pack(wire.Presence(sealed, *of.chain))


def verify_chain(
    chain: tuple[bytes, ...], info: SwarmInfo, subject_key: bytes, now: float
) -> MemberBody | Rejected:
    """The body of the member certificate if the owner of `subject_key` is a member at `now`."""
    opened = open_chain(chain, info, subject_key)
    if isinstance(opened, Rejected):
        return opened
    return check_times(*opened, now) or opened[1]
