"""Statements of a swarm's owner for the whole swarm: the revocation list, and its secret.

Each call writes a statement into the home. A node that runs there reads it at its next heartbeat
and hands it to its peers; one that starts later does the same.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from swarm_node.errors import HomeError, Rejected
from swarm_node.node.home.home import Home
from swarm_node.p2p.membership.delegates import Signer, next_list, next_secret
from swarm_node.p2p.membership.statements import (
    ROOT_ONLY,
    Revocations,
    Statement,
    verify_revocations,
)
from swarm_node.p2p.wire.identity import Identity


def read_revocations(home: Home) -> Statement[Revocations] | None:
    """Return the newest revocation list of this home, None without one.

    Raises:
        HomeError: the file is damaged.
    """
    raw = home.load("revoked")
    if raw is None:
        return None
    revocations = verify_revocations(raw, home.swarm())
    if isinstance(revocations, Rejected):
        raise HomeError(
            f"{home.path / 'revoked'} is damaged ({revocations.reason})", "restore a backup"
        )
    return revocations


def revoke(
    home: Home,
    keys: Collection[bytes],
    now: float,
    *,
    as_root: bool = False,
    from_scratch: bool = False,
) -> int:
    """Revoke the members with these public keys (32 bytes each), and all members of the issuers
    with them. Returns the number of the new list. `as_root` needs the root's key, and is for a
    stolen delegate's key: from then on no delegate can make a list. With `from_scratch` the list
    names nobody else, because the thief may have revoked any members, and filled the list.

    Raises:
        HomeError: no key that may sign lies here, or the list is full.
    """
    signer = _signer(home)
    if as_root and signer.certificate:
        raise HomeError("only root.key outranks a delegate", "run this where it lies")
    with home.editing():
        try:
            revocations, swarm = read_revocations(home), home.swarm()
            new_list = next_list(
                signer, swarm, revocations, keys, now, root_only=as_root, anew=from_scratch
            )
        except ValueError as error:
            raise HomeError(f"no revocation list can be made: {error}") from error
        home.save("revoked", new_list.raw)
    return new_list.body.number


def rotate_secret(home: Home, now: float) -> int:
    """Replace the secret that hides the swarm's records, after the expulsion of members who know
    it. Returns the number of the new secret. A ticket made before it admits only a newcomer that
    can reach a member directly. After a delegate's key was stolen, the root takes a number that no
    delegate can use.

    Raises:
        HomeError: no key that may sign lies here.
    """
    signer = _signer(home)
    with home.editing():
        revocations = read_revocations(home)
        as_root = (
            not signer.certificate
            and revocations is not None
            and revocations.body.number >= ROOT_ONLY
        )
        try:
            secret = next_secret(signer, home.swarm(), os.urandom(32), now, root_only=as_root)
        except ValueError as error:
            raise HomeError(f"no new secret can be stated: {error}") from error
        home.save("secret", secret.raw)
    return secret.body.number


def _signer(home: Home) -> Signer:
    """Return the root's key if it lies here, else the delegate's."""
    if home.is_owner:
        return Signer(Identity.load(home.path / "root.key"), b"")
    delegate = home.delegate()
    if delegate is None:
        raise HomeError(
            f"{home.path} holds neither root.key nor a delegate's key",
            "run this in the data directory of the swarm's owner",
        )
    return delegate
