"""Statements that a delegate signs: renewals, revocation lists and new secrets. The root signs the
latter two as well. Pure: callers pass the time in Unix seconds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from swarm_node.errors import Rejected
from swarm_node.p2p.membership.members import Member
from swarm_node.p2p.membership.membership import (
    Chain,
    SwarmInfo,
    check_times,
    issue_member,
    open_chain,
    verify_issuer,
)
from swarm_node.p2p.membership.statements import (
    ROOT_ONLY,
    NewSecret,
    Revocations,
    Statement,
    revocations,
    state,
    verify_revocations,
    verify_secret,
)
from swarm_node.p2p.wire.identity import Identity

#: Validity of a list. The running delegate issues it anew before this time is over.
LIST_SECONDS: Final = 366 * 24 * 3600
#: Validity of a root list that outranks delegates. No delegate issues it anew, and it is valid for
#: longer than a stolen delegate's key.
ROOT_LIST_SECONDS: Final = 10 * LIST_SECONDS


@dataclass(frozen=True, slots=True)
class Signer:
    """A delegate's key with its certificate, or the root's key with an empty one."""

    key: Identity
    certificate: bytes


def in_last_third(begin: float, end: float, now: float) -> bool:
    """Check that it is time to renew something valid from `begin` to `end`."""
    return now >= end - (end - begin) / 3


def issue_renewal(
    delegate: Signer, info: SwarmInfo, member: Member, now: float
) -> Chain | Rejected:
    """Renew the chain of a current member. The new period is as long as the last one, if the
    delegate may grant that. Name and first issuer stay the same."""
    issuer = verify_issuer(delegate.certificate, info)
    if isinstance(issuer, Rejected):
        return issuer
    old = member.body
    seconds = min(old.not_after - old.not_before, issuer.member_seconds)
    certificate = issue_member(
        delegate.key,
        info,
        old.subject,
        name=old.name,
        not_before=now,
        not_after=int(now) + seconds,
        admitted_by=old.admitted_by,
    )
    chain = (delegate.certificate, certificate)
    bodies = open_chain(chain, info, old.subject)
    if isinstance(bodies, Rejected):
        return bodies
    return check_times(*bodies, now) or chain


def next_list(
    signer: Signer,
    info: SwarmInfo,
    old_statement: Statement[Revocations] | None,
    keys: Collection[bytes],
    now: float,
    *,
    root_only: bool = False,
    anew: bool = False,
) -> Statement[Revocations]:
    """Make the list after `old_statement`: its keys and `keys`, or with `anew` only `keys`. With
    `root_only` the root takes a number that no delegate can use, because a delegate's key was
    stolen. From then on only the root makes lists.

    Raises:
        ValueError: the list is full, or peers would refuse the signer.
    """
    number = old_statement.body.number + 1 if old_statement else 1
    if root_only:
        number = max(number, ROOT_ONLY)
    old = old_statement.body.keys if old_statement and not anew else ()
    seconds = LIST_SECONDS if number < ROOT_ONLY else ROOT_LIST_SECONDS
    body = revocations(number, now, now + seconds, {*old, *keys})
    statement = verify_revocations(state(signer.key, signer.certificate, info, body), info)
    assert isinstance(statement, Statement)  # `state` has checked it
    return statement


def next_secret(
    signer: Signer, info: SwarmInfo, secret: bytes, now: float, *, root_only: bool = False
) -> Statement[NewSecret]:
    """Make the statement of the 32 bytes `secret`, numbered after the one that `info` holds.
    `root_only` is as in `next_list`.

    Raises:
        ValueError: peers would refuse the signer.
    """
    number = max(info.secret_number + 1, ROOT_ONLY if root_only else 1)
    body = NewSecret(1, number, int(now), secret)
    statement = verify_secret(state(signer.key, signer.certificate, info, body), info)
    assert isinstance(statement, Statement)  # `state` has checked it
    return statement
