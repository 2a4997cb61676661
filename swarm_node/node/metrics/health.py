"""The verdict on a node's snapshot for its owner, with remedies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from swarm_node.environments.presets import has_preset
from swarm_node.environments.splits.split import release_remedy
from swarm_node.node.metrics.curve import NEWEST, rises
from swarm_node.node.metrics.first_groups import COUNT
from swarm_node.node.metrics.snapshot import EvalPoint, PeerRow, Said, Snapshot
from swarm_node.p2p.peers.causes import CAUSES, Cause, advice, advice_there, text_here, text_there
from swarm_node.p2p.peers.standing import BLAMELESS
from swarm_node.p2p.wire.identity import short_id
from swarm_node.program.commands import with_home

#: Local groups before a verdict on their rewards.
ENOUGH_GROUPS = 64
#: With a smaller fraction of groups with mixed rewards there is no training signal.
_FEW_MIXED = 0.05
_SATURATED = 0.8
#: With more completions truncated, nothing else is said of rewards; with some, both are said.
_NEARLY_ALL, _MANY_CUT, _SOME_CUT = 0.8, 0.5, 0.1
#: Time without a step after which a node has stalled: seconds, and usual intervals.
_STALLED_SECONDS, _STALLED_INTERVALS = 300.0, 10.0
#: Seconds that a node may sample before its first step.
_FIRST_SECONDS = 900.0
#: Rejected groups of a peer for each accepted one, from which a warning is given.
_MANY_REJECTED = 10
#: Prompts left out before a node that sampled none says so.
_MANY_TOO_LONG = 8
#: Seconds for which a finding on rewards must hold, or not hold, before the verdict changes.
HOLD_SECONDS = 120.0
#: Seconds for which a node must be alone, or among peers again, before that is said.
COMPANY_SECONDS = 60.0
#: Seconds between two turns of "learning".
TURN_SECONDS = 600.0
#: Causes of one kind that are told.
_SHOWN = 4
#: A note on a node that created its swarm and has met nobody.
_NO_PEERS = Said(
    "no_peers",
    "good",
    "no peers yet",
    "give a ticket to another machine: swarm-node invite --name NAME --out NAME.ticket",
)


class Steady:
    """Hysteresis of findings, for figures at their limit. A finding is shown once it has held for
    HOLD_SECONDS. It is shown until it has not held for as long. In the first verdict, and after a
    longer pause, it is shown at once."""

    def __init__(self) -> None:
        self._settled_at = float("-inf")
        self._first: dict[str, float] = {}
        self._last: dict[str, tuple[float, Said]] = {}
        self._shown_kinds: set[str] = set()
        self._newest_eval: EvalPoint | None = None
        self._is_learning = False
        self._turned_at = self._contrary_since = float("-inf")
        self._connectivity, self._has_shared = "", False
        self._looked_at = self._so_until = float("-inf")

    def learns(self, evals: Sequence[EvalPoint]) -> bool:
        """Check that reward rises. The answer changes once the points contradict it for
        HOLD_SECONDS, and at most once in TURN_SECONDS, because points are noisy. It depends on the
        points alone, not on who asks when."""
        new = len(evals)
        while new and evals[new - 1] is not self._newest_eval:
            new -= 1
        for end in range(new, len(evals)):
            now, is_rising = evals[end].seconds, rises(evals[max(0, end - NEWEST) : end + 1])
            if (
                now < self._contrary_since or is_rising == self._is_learning
            ):  # a clock of another run, or no news
                self._contrary_since = now
            elif (
                now - self._contrary_since >= HOLD_SECONDS and now - self._turned_at >= TURN_SECONDS
            ):
                self._is_learning, self._turned_at, self._contrary_since = is_rising, now, now
        self._newest_eval = evals[-1] if evals else None
        return self._is_learning

    def connectivity(self, kind: str, now: float, at_once: bool) -> str:
        """Return the connectivity to show, "alone" or "sharing", when it is `kind` now. A change is
        shown once it has held for COMPANY_SECONDS, because a sole peer may come and go. The first
        peer is shown at once. So is any change if `at_once` is true."""
        is_stale = now - self._looked_at > HOLD_SECONDS
        self._looked_at = now
        first = kind == "sharing" and not self._has_shared
        if is_stale or at_once or first or now - self._so_until >= COMPANY_SECONDS:
            self._connectivity = kind
        if kind == self._connectivity:
            self._so_until = now
        self._has_shared = self._has_shared or kind == "sharing"
        return self._connectivity

    def settle(self, candidates: Iterable[Said], now: float) -> list[Said]:
        """Return the findings to show. `candidates` has at most one of a kind."""
        is_stale = now - self._settled_at > HOLD_SECONDS
        if is_stale:
            self._first, self._last, self._shown_kinds = {}, {}, set()
        self._settled_at = now
        for finding in candidates:
            self._first.setdefault(finding.kind, now)
            self._last[finding.kind] = now, finding
            if is_stale or now - self._first[finding.kind] >= HOLD_SECONDS:
                self._shown_kinds.add(finding.kind)
        for kind, (last, _) in list(self._last.items()):
            if kind not in self._shown_kinds and last < now:
                del self._first[kind], self._last[kind]  # it has to hold without a break
            elif now - last >= HOLD_SECONDS:
                del self._first[kind], self._last[kind]
                self._shown_kinds.discard(kind)
        return [finding for kind, (_, finding) in self._last.items() if kind in self._shown_kinds]


def findings(
    shot: Snapshot, hysteresis: Steady | None = None, home: Path | None = None
) -> list[Said]:
    """Return the verdict, then the other findings for the owner, the most serious first. Commands
    name the `home`, unless it is the usual one."""
    return [
        msgspec.structs.replace(
            finding, text=with_home(finding.text, home), remedy=with_home(finding.remedy, home)
        )
        for finding in _findings(shot, hysteresis)
    ]


def _findings(shot: Snapshot, hysteresis: Steady | None) -> list[Said]:
    if shot.state != "running":
        return [Said(shot.state, "warning", f"the node is {shot.state}")]
    rewards = _rewards(shot)
    problems = [
        *_refused_here(shot),
        *_membership(shot),
        *_too_long(shot),
        *_find_stall(shot),
        *(rewards if hysteresis is None else hysteresis.settle(rewards, shot.seconds)),
        *_environments(shot),
        *_find_rejections(shot),
        *_alarms(shot),
    ]
    is_learning = rises(shot.evals) if hysteresis is None else hysteresis.learns(shot.evals)
    connectivity = _connectivity(shot, is_learning)
    unvisited = connectivity.kind == "unvisited"
    if hysteresis is not None and not unvisited:
        connectivity = _hold_connectivity(shot, is_learning, connectivity, hysteresis)
    if not problems or connectivity.kind == "alone":
        problems += [connectivity, *_other_addresses(shot, connectivity)]
    rank = {"bad": 0, "warning": 1, "good": 2}
    first = sorted(problems, key=lambda finding: rank[finding.level])
    return [*first, *([_NO_PEERS] * unvisited), *_models(shot), *_callers(shot)]


def _refused_here(shot: Snapshot) -> Iterator[Said]:
    """Find what shuts this node out at every address: its membership, its clock, its link. Peers
    report on membership and clock, and some may lie. So fewer reports than answering peers give
    only a warning."""
    membership = shot.membership
    for subject in ("membership", "clock", "link"):
        causes = [cause for cause in shot.causes if CAUSES[cause.code].subject == subject]
        is_known = (
            subject == "membership" and membership is not None and membership.standing != "member"
        )
        if not causes or is_known:
            continue
        worst_cause, telling = causes[0], {cause.peer for cause in causes}
        answering = [p for p in _present(shot) if p.peer_id not in telling]
        text = text_here(worst_cause)
        if len(telling) > 1 or answering:
            text += f" ({len(telling)} of {len(telling) + len(answering)} peers)"
        level = CAUSES[worst_cause.code].level if len(telling) >= len(answering) else "warning"
        yield Said(worst_cause.code, level, text, advice(worst_cause))


def _callers(shot: Snapshot) -> Iterator[Said]:
    """Tell whom this node refused. Anybody can ask, so it never changes the verdict."""
    for cause in shot.refused_callers[:_SHOWN]:
        if text := text_there(cause):
            often = f", {cause.tries} times" if cause.tries > 1 else ""
            ago = f"{_span(cause.seconds_since)} ago{often}"
            yield Said("caller", "good", f"{text} ({ago})", advice_there(cause))


def _alarms(shot: Snapshot) -> Iterator[Said]:
    member_alarms = shot.membership.alarms(shot.time) if shot.membership else []
    for alarm in shot.alarms:
        if alarm not in member_alarms:
            text, _, remedy = alarm.partition(": ")
            yield Said("alarm", "warning", text, remedy)


def _membership(shot: Snapshot) -> Iterator[Said]:
    row = shot.membership
    if row is None:
        return
    for text in row.alarms(shot.time):
        has_ended = row.standing != "member"
        sentence, _, remedy = text.partition(": ")
        yield Said("membership", "bad" if has_ended else "warning", sentence, remedy)


def _too_long(shot: Snapshot) -> Iterator[Said]:
    """Find that no prompt has fitted the model yet, so that nothing is sampled."""
    left_out = shot.faults.get("prompt_too_long", 0)
    if left_out >= _MANY_TOO_LONG and shot.recent is not None and not shot.recent.groups:
        yield Said(
            "too_long",
            "bad",
            f"nothing is sampled: {left_out:,} prompts, all so far, exceed the model's "
            "context length",
            "take shorter questions or other families, lower sampling.max_new_tokens, or take a "
            "model with a longer context",
        )


def _find_stall(shot: Snapshot) -> Iterator[Said]:
    idle_seconds, step_seconds = shot.seconds_since_step, shot.seconds_between_steps
    if idle_seconds is None:
        return
    if idle_seconds < (
        max(_STALLED_SECONDS, _STALLED_INTERVALS * step_seconds) if step_seconds else _FIRST_SECONDS
    ):
        return
    faults = ", ".join(f"{n} {part}" for part, n in sorted(shot.faults.items()))
    yield Said(
        "stalled",
        "bad",
        f"no step for {idle_seconds / 60:.0f} min (faults: {faults or 'none'})",
        "look at the log (`swarm-node logs`); if the faults grow, start the node again",
    )


def _rewards(shot: Snapshot) -> Iterator[Said]:
    window = shot.recent
    if window is None or window.groups < (COUNT if shot.advice else ENOUGH_GROUPS):
        return
    has_few_mixed = window.mixed <= _FEW_MIXED * window.groups
    share = f"{window.mixed} of the last {window.groups} local groups have mixed rewards"
    truncation = f"{window.truncated:,} of the last {window.completions:,}"
    if window.truncated > _MANY_CUT * window.completions:
        # Before all else: a scorer reads no answer whose end is missing, so the tasks, the model
        # and the scorer may be fine.
        level = "bad" if has_few_mixed and window.reward < _SATURATED else "warning"
        many = "nearly all" if window.truncated > _NEARLY_ALL * window.completions else "most"
        remedy = "raise sampling.max_new_tokens, or have the prompt ask for shorter completions"
        text = f"{many} completions are truncated at sampling.max_new_tokens: {truncation}; {share}"
        yield Said("truncated", level, text, remedy)
    elif has_few_mixed and window.reward >= _SATURATED:
        yield Said(
            "saturated",
            "warning",
            f"these tasks have hardly anything left to learn: {share}",
            "take harder tasks (environment.options), or stop: `swarm-node export DIR` takes the "
            "model",
        )
    elif has_few_mixed:
        has_truncated = window.truncated > _SOME_CUT * window.completions
        yield Said(
            "nothing_to_learn",
            "bad",
            f"nothing to learn: {share}, mean reward {window.reward:.2f}"
            + f"; {truncation} completions were truncated" * has_truncated,
            shot.advice
            or "raise sampling.max_new_tokens, " * has_truncated
            + "take easier tasks (of drills `--preset short`), a larger model, or check the "
            "scorer: `swarm-node env check NAME`",
        )


def _environments(shot: Snapshot) -> Iterator[Said]:
    for environment, names in _unlike(shot, lambda peer: peer.environment):
        cause = Cause(
            "environment", name=names, detail=f"{environment}, this node {shot.environment}"
        )
        yield Said(cause.code, "warning", text_here(cause), _same_as(environment) or advice(cause))


def _models(shot: Snapshot) -> Iterator[Said]:
    for model, names in _unlike(shot, lambda peer: peer.model):
        cause = Cause("model", name=names, detail=f"{model}, this node {shot.model}")
        yield Said(cause.code, "good", text_here(cause), advice(cause))


def _unlike(shot: Snapshot, key: Callable[[PeerRow], str]) -> list[tuple[str, str]]:
    """Return the values of `key` among the peers, each with the names of its peers. `key` is ""
    for a peer that has the same as this node."""
    names_by_value: dict[str, list[str]] = {}
    for peer in _present(shot):
        if key(peer):
            names_by_value.setdefault(key(peer), []).append(who(peer))
    suffixes = {
        value: f", and {len(names) - 3} more"
        for value, names in names_by_value.items()
        if names[3:]
    }
    return [
        (t, ", ".join(names[:3]) + suffixes.get(t, ""))
        for t, names in sorted(names_by_value.items())
    ]


def _same_as(environment: str) -> str:
    """Return the flag that gives this node its peers' environment, or the release that it lacks; ""
    for an environment without a name."""
    if remedy := release_remedy(environment):
        return remedy
    name, _, kind = environment.partition(" ")
    if has_preset(name, kind):
        return (
            f"start this node with --set environment.name={name} --preset {kind}, or the other one "
            "with this node's"
        )
    return ""


def _find_rejections(shot: Snapshot) -> Iterator[Said]:
    """Find a peer whose groups are all rejected for another reason than its environment."""
    for peer in shot.peers:
        blamed = {
            rejection: n
            for rejection, n in peer.rejected_by_reason.items()
            if rejection not in BLAMELESS
        }
        if peer.environment or sum(blamed.values()) < _MANY_REJECTED * (peer.accepted + 1):
            continue
        rejection = ", ".join(f"{n} {reason}" for reason, n in sorted(blamed.items()))
        yield Said(
            "rejected",
            "warning",
            f"what {who(peer)} sends is rejected ({rejection})",
            "nothing is lost here, and it is asked for less; tell its owner",
        )


def _present(shot: Snapshot) -> list[PeerRow]:
    return [peer for peer in shot.peers if peer.present]


def _course(shot: Snapshot, is_rising: bool) -> str:
    if not shot.steps:
        return "sampling"
    return "learning" if is_rising else "training"


def _hold_connectivity(
    shot: Snapshot, is_rising: bool, connectivity: Said, hysteresis: Steady
) -> Said:
    """Return `connectivity`, or the earlier one while a change has not held for long enough."""
    is_urgent = any(CAUSES[cause.code].level == "bad" for cause in shot.causes)
    kind = hysteresis.connectivity(
        connectivity.kind, shot.seconds, is_urgent or connectivity.level == "bad"
    )
    if kind == connectivity.kind:
        return connectivity
    course = _course(shot, is_rising)
    if kind == "sharing":
        return Said("sharing", "good", f"{course} and sharing")
    back = min(_present(shot), key=lambda peer: peer.seconds_since_seen)
    return Said("alone", "warning", f"{course} alone until now: {who(back)} answers again")


def _connectivity(shot: Snapshot, is_rising: bool) -> Said:
    course = _course(shot, is_rising)
    refusing = {cause.peer for cause in shot.causes if cause.peer}
    if any(peer.peer_id not in refusing for peer in _present(shot)):
        return Said("sharing", "good", f"{course} and sharing")
    if _is_unvisited(shot):
        return Said("unvisited", "good", course)
    reason, remedy = _loneliness(shot)
    # A node that met somebody is alone for a while. One that nobody ever answered has wrong
    # addresses.
    level = "warning" if shot.peers or shot.former or not _of_addresses(shot) else "bad"
    return Said("alone", level, f"{course} alone: {reason}", remedy)


def _loneliness(shot: Snapshot) -> tuple[str, str]:
    """Return why this node is alone, and the remedy."""
    if causes := _of_addresses(shot):
        return text_here(causes[0]), advice(causes[0])
    if any(CAUSES[cause.code].subject in ("membership", "clock") for cause in shot.causes):
        return "peers reject this node as a non-member", ""
    doctor = "`swarm-node doctor --network`"
    if shot.peers or shot.former:
        lost_peers = sorted(shot.peers or shot.former, key=lambda peer: peer.seconds_since_seen)
        silence = _span(lost_peers[0].seconds_since_seen)
        if len(lost_peers) == 1:
            return f"no peer answers now, {who(lost_peers[0])} left {silence} ago", doctor
        return f"no peer answers now, nobody since {silence}", doctor
    return "no peer has answered yet", doctor


def _is_unvisited(shot: Snapshot) -> bool:
    """Check that nobody has met this node, and that it looks for nobody: it created its swarm."""
    contacts = shot.peers or shot.former or shot.causes
    return not contacts and not shot.configured and shot.coordinator is None


def _of_addresses(shot: Snapshot) -> list[Cause]:
    return [c for c in shot.causes if CAUSES[c.code].subject in ("other", "address")]


def _other_addresses(shot: Snapshot, connectivity: Said) -> Iterator[Said]:
    """Tell of the other addresses while this node is alone."""
    if connectivity.kind == "alone":
        for cause in _of_addresses(shot)[1:_SHOWN]:
            yield Said(cause.code, "warning", text_here(cause), advice(cause))


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def who(peer: PeerRow) -> str:
    """Return a peer's name for people."""
    return peer.name or short_id(peer.peer_id)
