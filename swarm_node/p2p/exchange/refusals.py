"""The cause of a refused greeting, at both of its ends. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from swarm_node.errors import Rejected
from swarm_node.p2p.membership.members import Member
from swarm_node.p2p.membership.membership import CLOCK_SKEW_SECONDS
from swarm_node.p2p.peers.causes import AT_LEAST, Cause, of_reason


def refused_by(
    peer_id: str, name: str, reason: str, apart: int | None, own: Member | None, wall: float
) -> Cause:
    """Return the cause for which a peer refuses this node, the member `own`, at the Unix second
    `wall` of its clock. `apart` are the seconds that the refusal names (p2p/wire/reasons.py)."""
    code, seconds, detail = of_reason(reason), 0.0, ""
    if code == "clock":
        # The chain begins too late by the peer's clock. Without `apart`, the rest is not known.
        seconds = CLOCK_SKEW_SECONDS if apart is None else apart
        seconds += max(0.0, wall - own.body.not_before) if own is not None else 0.0
        detail = AT_LEAST if apart is None or own is None else ""
    elif code == "revoked" and apart is not None:
        detail = _moment(wall - apart)
    elif code == "expired" and apart is not None:
        behind = 0.0 if own is None else own.until + apart - wall
        if behind > apart + CLOCK_SKEW_SECONDS:  # it ended by the peer's clock only
            code, seconds = "clock", -behind
        else:
            detail = _moment(wall - apart)
    elif code == "used_up" and own is not None and own.issuer.uses:
        detail = str(own.issuer.uses)
    elif code == "refused":
        detail = reason
    return Cause(code, peer_id, name, "", detail, seconds)


def refused_caller(peer_id: str, name: str, rejected: Rejected, wall: float) -> Cause:
    """Return the cause for which this node refuses a caller at the Unix second `wall`. If the chain
    begins after `wall`, the caller's clock is ahead by at least the difference."""
    code, seconds, detail = of_reason(rejected.reason), 0.0, ""
    if code == "clock":
        seconds, detail = rejected.seconds, AT_LEAST
    elif code in ("revoked", "expired"):
        detail = _moment(wall + rejected.seconds)
    elif code == "refused":
        detail = rejected.reason
    return Cause(code, peer_id, name, "", detail, seconds)


def _moment(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")
