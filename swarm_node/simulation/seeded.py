"""Derives every key and every random number of a simulation from its seed."""

from __future__ import annotations

import hashlib
import random

from swarm_node.node.home.home import Membership
from swarm_node.p2p.membership.membership import create_swarm, issue_issuer, issue_member
from swarm_node.p2p.wire.identity import Identity

#: Unix seconds at which every simulation begins: 2023-11-14 22:13:20 UTC.
EPOCH = 1_700_000_000
_MEMBER_SECONDS = 366 * 86_400


class Seeded:
    """Independent secrets, keys and streams of random numbers by name."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def rng(self, name: str) -> random.Random:
        """The stream of random numbers with this name."""
        return random.Random(self._secret(name))  # noqa: S311 - reproducible, not secret

    def memberships(self, count: int) -> list[Membership]:
        """`count` members of one swarm, valid from EPOCH on."""
        root, issuer = self._identity("root"), self._identity("issuer")
        name = "simulation"
        swarm = create_swarm(name, root, self._secret("swarm"))
        begin, end = EPOCH, EPOCH + _MEMBER_SECONDS
        issuer_cert = issue_issuer(
            root,
            swarm,
            issuer.public_key,
            name=name,
            not_before=begin,
            not_after=end,
            member_seconds=_MEMBER_SECONDS,
        )
        identities = [self._identity(f"node {index}") for index in range(count)]
        member_certs = [
            issue_member(
                issuer, swarm, identity.public_key, name=name, not_before=begin, not_after=end
            )
            for identity in identities
        ]
        return [
            Membership(identity, swarm, (issuer_cert, certificate))
            for identity, certificate in zip(identities, member_certs, strict=True)
        ]

    def _identity(self, name: str) -> Identity:
        return Identity.from_seed(self._secret(name))

    def _secret(self, name: str) -> bytes:
        return hashlib.sha256(f"swarm-node/simulation/1/{self._seed}/{name}".encode()).digest()
