"""The verdict on a node's snapshot for its owner, with remedies. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from swarm_node.environments.presets import has_preset
from swarm_node.environments.split import release_remedy
from swarm_node.node.figures.snapshot import SEEN_SECONDS, PeerRow, Said, Snapshot
from swarm_node.p2p.peers.conduct import BLAMELESS

#: Own groups before a verdict on their rewards.
ENOUGH_GROUPS = 64
#: With a smaller share of groups of unlike rewards hardly anything is learnt.
_FEW_MIXED = 0.05
_SATURATED = 0.8
#: A node without an update for so long has stalled: seconds, and so many usual intervals.
_STALLED_SECONDS, _STALLED_INTERVALS = 300.0, 10.0
#: Seconds that a node may sample before its first update.
_FIRST_SECONDS = 900.0
#: Refused groups of peers for each one taken, from which a warning is given.
_MANY_REFUSED = 10


def findings(shot: Snapshot) -> list[Said]:
    """Return the verdict, then the other findings for the owner, the most serious first."""
    if shot.state != "running":
        return [Said(shot.state, "warning", f"the node is {shot.state}")]
    serious = [
        *_membership(shot),
        *_stalled(shot),
        *_rewards(shot),
        *_environments(shot),
        *_refused(shot),
    ]
    company = _company(shot)
    if not serious or company.kind == "alone":
        serious.append(company)
    rank = {"bad": 0, "warning": 1, "good": 2}
    return sorted(serious, key=lambda said: rank[said.level])


def _membership(shot: Snapshot) -> Iterator[Said]:
    row = shot.membership
    if row is None:
        return
    for text in row.alarms(shot.time):
        ended = row.standing != "member"
        what, _, remedy = text.partition(": ")
        yield Said("membership", "bad" if ended else "warning", what, remedy)


def _stalled(shot: Snapshot) -> Iterator[Said]:
    silent, usual = shot.seconds_since_update, shot.seconds_between_updates
    if silent is None:
        return
    if silent < (max(_STALLED_SECONDS, _STALLED_INTERVALS * usual) if usual else _FIRST_SECONDS):
        return
    known = ", ".join(f"{n} {part}" for part, n in sorted(shot.faults.items()))
    yield Said(
        "stalled",
        "bad",
        f"no update for {silent / 60:.0f} min (faults: {known or 'none'})",
        "look at the log (`swarm-node logs`); if the faults grow, start the node again",
    )


def _rewards(shot: Snapshot) -> Iterator[Said]:
    recent = shot.recent
    if recent is None or recent.groups < ENOUGH_GROUPS:
        return
    if recent.mixed > _FEW_MIXED * recent.groups:
        return
    share = f"{recent.mixed} of the last {recent.groups} own groups have unlike rewards"
    if recent.reward >= _SATURATED:
        yield Said(
            "saturated",
            "warning",
            f"nearly all is learnt that these tasks can teach: {share}",
            "take harder tasks (environment.options), or stop: `swarm-node export DIR` takes the "
            "model",
        )
        return
    yield Said(
        "nothing_to_learn",
        "bad",
        f"nothing to learn: {share}, mean reward {recent.reward:.2f}",
        "take easier tasks (of drills `--preset short`), a larger model, or check the scorer: "
        "`swarm-node env check NAME`",
    )


def _environments(shot: Snapshot) -> Iterator[Said]:
    told: dict[str, list[str]] = {}
    for peer in shot.peers:
        if peer.environment and peer.seconds_since_seen <= SEEN_SECONDS:
            told.setdefault(peer.environment, []).append(who(peer))
    for theirs, names in sorted(told.items()):
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        verb = "uses" if len(names) == 1 else "use"
        yield Said(
            "environment",
            "warning",
            f"{listed} {verb} {theirs}, this node {shot.environment}: they exchange nothing",
            _same_as(theirs),
        )


def _same_as(theirs: str) -> str:
    """Return the flag that gives this node its peers' environment, or the release that one side
    lacks."""
    if older := release_remedy(theirs):
        return older
    name, _, kind = theirs.partition(" ")
    if has_preset(name, kind):
        return (
            f"start this node with --set environment.name={name} --preset {kind}, or the other one "
            "with this node's"
        )
    return "give all nodes the same environment.name, files, packages and options"


def _refused(shot: Snapshot) -> Iterator[Said]:
    """Find a peer whose groups are all refused for another reason than its environment."""
    for peer in shot.peers:
        blamed = {why: n for why, n in peer.refused.items() if why not in BLAMELESS}
        if peer.environment or sum(blamed.values()) < _MANY_REFUSED * (peer.received + 1):
            continue
        why = ", ".join(f"{n} {reason}" for reason, n in sorted(blamed.items()))
        yield Said(
            "refused",
            "warning",
            f"what {who(peer)} sends is refused ({why})",
            "nothing is lost here: it is asked for less; tell its owner",
        )


def _company(shot: Snapshot) -> Said:
    learns = "learning" if shot.updates else "sampling"
    if any(peer.seconds_since_seen <= SEEN_SECONDS for peer in shot.peers):
        return Said("sharing", "good", f"{learns} and sharing")
    if shot.peers or shot.former:
        text, remedy = f"{learns} alone: no peer answers now", "`swarm-node doctor --network`"
        return Said("alone", "warning", text, remedy)
    remedy = "give a ticket to another machine: swarm-node invite --name NAME --out NAME.ticket"
    return Said("alone", "warning", f"{learns} alone: no peers yet", remedy)


def who(peer: PeerRow) -> str:
    """Return a peer's name for people."""
    return peer.name or f"…{peer.peer_id[-8:]}"
