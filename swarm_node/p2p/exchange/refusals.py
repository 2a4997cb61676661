"""The cause of a refused greeting, at both of its ends. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from swarm_node.errors import Rejected
from swarm_node.p2p.membership.members import Member
from swarm_node.p2p.membership.membership import CLOCK_SKEW_SECONDS
from swarm_node.p2p.peers.causes import AT_LEAST, Cause, of_reason


def refused_by(
    peer_id: str, name: str, reason: str, offset: int | None, me: Member | None, wall: float
) -> Cause:
    """Return the cause for which a peer refuses this node, the member `me`, at the Unix second
    `wall` of its clock. `offset` are the seconds that the refusal names (p2p/wire/reasons.py)."""
    code, seconds, detail = of_reason(reason), 0.0, ""
    if code == "clock":
        # The chain begins too late by the peer's clock. Without `offset`, the rest is not known.
        seconds = CLOCK_SKEW_SECONDS if offset is None else offset
        seconds += max(0.0, wall - me.body.not_before) if me is not None else 0.0
        detail = AT_LEAST if offset is None or me is None else ""
    elif code == "revoked" and offset is not None:
        detail = _moment(wall - offset)
    elif code == "expired" and offset is not None:
        clock_lag = 0.0 if me is None else me.until + offset - wall
        if clock_lag > offset + CLOCK_SKEW_SECONDS:  # it ended by the peer's clock only
            code, seconds = "clock", -clock_lag
        else:
            detail = _moment(wall - offset)
    elif code == "used_up" and me is not None and me.issuer.uses:
        detail = str(me.issuer.uses)
    elif code == "refused":
        detail = reason
    return Cause(code, peer_id, name, "", detail, seconds)


def refused_caller(peer_id: str, name: str, rejection: Rejected, wall: float) -> Cause:
    """Return the cause for which this node refuses a caller at the Unix second `wall`. If the chain
    begins after `wall`, the caller's clock is ahead by at least the difference."""
    code, seconds, detail = of_reason(rejection.reason), 0.0, ""
    if code == "clock":
        seconds, detail = rejection.seconds, AT_LEAST
    elif code in ("revoked", "expired"):
        detail = _moment(wall + rejection.seconds)
    elif code == "refused":
        detail = rejection.reason
    return Cause(code, peer_id, name, "", detail, seconds)


def _moment(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")
