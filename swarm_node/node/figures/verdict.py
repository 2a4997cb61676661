"""The verdict on a node's snapshot for its owner, with remedies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from swarm_node.environments.presets import has_preset
from swarm_node.environments.split import release_remedy
from swarm_node.node.figures.curve import NEWEST, rises
from swarm_node.node.figures.first_groups import COUNT
from swarm_node.node.figures.snapshot import EvalPoint, PeerRow, Said, Snapshot
from swarm_node.p2p.peers.causes import CAUSES, Cause, advice, advice_there, told_here, told_there
from swarm_node.p2p.peers.conduct import BLAMELESS
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
        self._asked = float("-inf")
        self._first: dict[str, float] = {}
        self._last: dict[str, tuple[float, Said]] = {}
        self._said: set[str] = set()
        self._newest: EvalPoint | None = None
        self._learns = False
        self._turned = self._against = float("-inf")
        self._company, self._shared = "", False
        self._looked = self._so_until = float("-inf")

    def learns(self, evals: Sequence[EvalPoint]) -> bool:
        """Check that reward rises. The answer changes once the points contradict it for
        HOLD_SECONDS, and at most once in TURN_SECONDS, because points are noisy. It depends on the
        points alone, not on who asks when."""
        new = len(evals)
        while new and evals[new - 1] is not self._newest:
            new -= 1
        for end in range(new, len(evals)):
            now, rising = evals[end].seconds, rises(evals[max(0, end - NEWEST) : end + 1])
            if now < self._against or rising == self._learns:  # a clock of another run, or no news
                self._against = now
            elif now - self._against >= HOLD_SECONDS and now - self._turned >= TURN_SECONDS:
                self._learns, self._turned, self._against = rising, now, now
        self._newest = evals[-1] if evals else None
        return self._learns

    def company(self, kind: str, now: float, at_once: bool) -> str:
        """Return the company to show, "alone" or "sharing", when it is `kind` now. A change is
        shown once it has held for COMPANY_SECONDS, because a sole peer may come and go. The first
        peer is shown at once. So is any change if `at_once` is true."""
        fresh = now - self._looked > HOLD_SECONDS
        self._looked = now
        first = kind == "sharing" and not self._shared
        if fresh or at_once or first or now - self._so_until >= COMPANY_SECONDS:
            self._company = kind
        if kind == self._company:
            self._so_until = now
        self._shared = self._shared or kind == "sharing"
        return self._company

    def settle(self, found: Iterable[Said], now: float) -> list[Said]:
        """Return the findings to show. `found` has at most one of a kind."""
        fresh = now - self._asked > HOLD_SECONDS
        if fresh:
            self._first, self._last, self._said = {}, {}, set()
        self._asked = now
        for said in found:
            self._first.setdefault(said.kind, now)
            self._last[said.kind] = now, said
            if fresh or now - self._first[said.kind] >= HOLD_SECONDS:
                self._said.add(said.kind)
        for kind, (last, _) in list(self._last.items()):
            if kind not in self._said and last < now:
                del self._first[kind], self._last[kind]  # it has to hold without a break
            elif now - last >= HOLD_SECONDS:
                del self._first[kind], self._last[kind]
                self._said.discard(kind)
        return [said for kind, (_, said) in self._last.items() if kind in self._said]


def findings(shot: Snapshot, steady: Steady | None = None, home: Path | None = None) -> list[Said]:
    """Return the verdict, then the other findings for the owner, the most serious first. Commands
    name the `home`, unless it is the usual one."""
    return [
        msgspec.structs.replace(
            said, text=with_home(said.text, home), remedy=with_home(said.remedy, home)
        )
        for said in _findings(shot, steady)
    ]


def _findings(shot: Snapshot, steady: Steady | None) -> list[Said]:
    if shot.state != "running":
        return [Said(shot.state, "warning", f"the node is {shot.state}")]
    rewards = _rewards(shot)
    serious = [
        *_refused_here(shot),
        *_membership(shot),
        *_too_long(shot),
        *_stalled(shot),
        *(rewards if steady is None else steady.settle(rewards, shot.seconds)),
        *_environments(shot),
        *_rejected(shot),
        *_alarms(shot),
    ]
    learns = rises(shot.evals) if steady is None else steady.learns(shot.evals)
    company = _company(shot, learns)
    unvisited = company.kind == "unvisited"
    if steady is not None and not unvisited:
        company = _held(shot, learns, company, steady)
    if not serious or company.kind == "alone":
        serious += [company, *_other_addresses(shot, company)]
    rank = {"bad": 0, "warning": 1, "good": 2}
    first = sorted(serious, key=lambda said: rank[said.level])
    return [*first, *([_NO_PEERS] * unvisited), *_models(shot), *_callers(shot)]


def _refused_here(shot: Snapshot) -> Iterator[Said]:
    """Find what shuts this node out at every address: its membership, its clock, its link. Peers
    report on membership and clock, and some may lie. So fewer reports than answering peers give
    only a warning."""
    own = shot.membership
    for subject in ("membership", "clock", "link"):
        found = [cause for cause in shot.causes if CAUSES[cause.code].subject == subject]
        known = subject == "membership" and own is not None and own.standing != "member"
        if not found or known:
            continue
        worst, telling = found[0], {cause.peer for cause in found}
        answering = [p for p in _present(shot) if p.peer_id not in telling]
        text = told_here(worst)
        if len(telling) > 1 or answering:
            text += f" ({len(telling)} of {len(telling) + len(answering)} peers)"
        level = CAUSES[worst.code].level if len(telling) >= len(answering) else "warning"
        yield Said(worst.code, level, text, advice(worst))


def _callers(shot: Snapshot) -> Iterator[Said]:
    """Tell whom this node refused. Anybody can ask, so it never changes the verdict."""
    for cause in shot.refused_callers[:_SHOWN]:
        if text := told_there(cause):
            often = f", {cause.tries} times" if cause.tries > 1 else ""
            ago = f"{_span(cause.seconds_since)} ago{often}"
            yield Said("caller", "good", f"{text} ({ago})", advice_there(cause))


def _alarms(shot: Snapshot) -> Iterator[Said]:
    own = shot.membership.alarms(shot.time) if shot.membership else []
    for alarm in shot.alarms:
        if alarm not in own:
            text, _, remedy = alarm.partition(": ")
            yield Said("alarm", "warning", text, remedy)


def _membership(shot: Snapshot) -> Iterator[Said]:
    row = shot.membership
    if row is None:
        return
    for text in row.alarms(shot.time):
        ended = row.standing != "member"
        what, _, remedy = text.partition(": ")
        yield Said("membership", "bad" if ended else "warning", what, remedy)


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


def _stalled(shot: Snapshot) -> Iterator[Said]:
    silent, usual = shot.seconds_since_step, shot.seconds_between_steps
    if silent is None:
        return
    if silent < (max(_STALLED_SECONDS, _STALLED_INTERVALS * usual) if usual else _FIRST_SECONDS):
        return
    known = ", ".join(f"{n} {part}" for part, n in sorted(shot.faults.items()))
    yield Said(
        "stalled",
        "bad",
        f"no step for {silent / 60:.0f} min (faults: {known or 'none'})",
        "look at the log (`swarm-node logs`); if the faults grow, start the node again",
    )


def _rewards(shot: Snapshot) -> Iterator[Said]:
    recent = shot.recent
    if recent is None or recent.groups < (COUNT if shot.advice else ENOUGH_GROUPS):
        return
    few = recent.mixed <= _FEW_MIXED * recent.groups
    share = f"{recent.mixed} of the last {recent.groups} local groups have mixed rewards"
    cut = f"{recent.truncated:,} of the last {recent.completions:,}"
    if recent.truncated > _MANY_CUT * recent.completions:
        # Before all else: a scorer reads no answer whose end is missing, so the tasks, the model
        # and the scorer may be fine.
        level = "bad" if few and recent.reward < _SATURATED else "warning"
        many = "nearly all" if recent.truncated > _NEARLY_ALL * recent.completions else "most"
        remedy = "raise sampling.max_new_tokens, or have the prompt ask for shorter completions"
        text = f"{many} completions are truncated at sampling.max_new_tokens: {cut}; {share}"
        yield Said("truncated", level, text, remedy)
    elif few and recent.reward >= _SATURATED:
        yield Said(
            "saturated",
            "warning",
            f"these tasks have hardly anything left to learn: {share}",
            "take harder tasks (environment.options), or stop: `swarm-node export DIR` takes the "
            "model",
        )
    elif few:
        some = recent.truncated > _SOME_CUT * recent.completions
        yield Said(
            "nothing_to_learn",
            "bad",
            f"nothing to learn: {share}, mean reward {recent.reward:.2f}"
            + f"; {cut} completions were truncated" * some,
            shot.advice
            or "raise sampling.max_new_tokens, " * some
            + "take easier tasks (of drills `--preset short`), a larger model, or check the "
            "scorer: `swarm-node env check NAME`",
        )


def _environments(shot: Snapshot) -> Iterator[Said]:
    for theirs, names in _unlike(shot, lambda peer: peer.environment):
        cause = Cause("environment", name=names, detail=f"{theirs}, this node {shot.environment}")
        yield Said(cause.code, "warning", told_here(cause), _same_as(theirs) or advice(cause))


def _models(shot: Snapshot) -> Iterator[Said]:
    for theirs, names in _unlike(shot, lambda peer: peer.model):
        cause = Cause("model", name=names, detail=f"{theirs}, this node {shot.model}")
        yield Said(cause.code, "good", told_here(cause), advice(cause))


def _unlike(shot: Snapshot, what: Callable[[PeerRow], str]) -> list[tuple[str, str]]:
    """Return the values of `what` among the peers, each with the names of its peers. `what` is ""
    for a peer that has the same as this node."""
    told: dict[str, list[str]] = {}
    for peer in _present(shot):
        if what(peer):
            told.setdefault(what(peer), []).append(who(peer))
    more = {theirs: f", and {len(names) - 3} more" for theirs, names in told.items() if names[3:]}
    return [(t, ", ".join(names[:3]) + more.get(t, "")) for t, names in sorted(told.items())]


def _same_as(theirs: str) -> str:
    """Return the flag that gives this node its peers' environment, or the release that it lacks; ""
    for an environment without a name."""
    if older := release_remedy(theirs):
        return older
    name, _, kind = theirs.partition(" ")
    if has_preset(name, kind):
        return (
            f"start this node with --set environment.name={name} --preset {kind}, or the other one "
            "with this node's"
        )
    return ""


def _rejected(shot: Snapshot) -> Iterator[Said]:
    """Find a peer whose groups are all rejected for another reason than its environment."""
    for peer in shot.peers:
        blamed = {why: n for why, n in peer.rejected_by_reason.items() if why not in BLAMELESS}
        if peer.environment or sum(blamed.values()) < _MANY_REJECTED * (peer.accepted + 1):
            continue
        why = ", ".join(f"{n} {reason}" for reason, n in sorted(blamed.items()))
        yield Said(
            "rejected",
            "warning",
            f"what {who(peer)} sends is rejected ({why})",
            "nothing is lost here, and it is asked for less; tell its owner",
        )


def _present(shot: Snapshot) -> list[PeerRow]:
    return [peer for peer in shot.peers if peer.present]


def _course(shot: Snapshot, rising: bool) -> str:
    if not shot.steps:
        return "sampling"
    return "learning" if rising else "training"


def _held(shot: Snapshot, rising: bool, company: Said, steady: Steady) -> Said:
    """Return `company`, or the earlier one while a change has not held for long enough."""
    bad = any(CAUSES[cause.code].level == "bad" for cause in shot.causes)
    held = steady.company(company.kind, shot.seconds, bad or company.level == "bad")
    if held == company.kind:
        return company
    learns = _course(shot, rising)
    if held == "sharing":
        return Said("sharing", "good", f"{learns} and sharing")
    back = min(_present(shot), key=lambda peer: peer.seconds_since_seen)
    return Said("alone", "warning", f"{learns} alone until now: {who(back)} answers again")


def _company(shot: Snapshot, rising: bool) -> Said:
    learns = _course(shot, rising)
    refusing = {cause.peer for cause in shot.causes if cause.peer}
    if any(peer.peer_id not in refusing for peer in _present(shot)):
        return Said("sharing", "good", f"{learns} and sharing")
    if _unvisited(shot):
        return Said("unvisited", "good", learns)
    why, remedy = _loneliness(shot)
    # A node that met somebody is alone for a while. One that nobody ever answered has wrong
    # addresses.
    level = "warning" if shot.peers or shot.former or not _of_addresses(shot) else "bad"
    return Said("alone", level, f"{learns} alone: {why}", remedy)


def _loneliness(shot: Snapshot) -> tuple[str, str]:
    """Return why this node is alone, and the remedy."""
    if found := _of_addresses(shot):
        return told_here(found[0]), advice(found[0])
    if any(CAUSES[cause.code].subject in ("membership", "clock") for cause in shot.causes):
        return "peers reject this node as a non-member", ""
    doctor = "`swarm-node doctor --network`"
    if shot.peers or shot.former:
        lost = sorted(shot.peers or shot.former, key=lambda peer: peer.seconds_since_seen)
        since = _span(lost[0].seconds_since_seen)
        if len(lost) == 1:
            return f"no peer answers now, {who(lost[0])} left {since} ago", doctor
        return f"no peer answers now, nobody since {since}", doctor
    return "no peer has answered yet", doctor


def _unvisited(shot: Snapshot) -> bool:
    """Check that nobody has met this node, and that it looks for nobody: it created its swarm."""
    met = shot.peers or shot.former or shot.causes
    return not met and not shot.configured and shot.coordinator is None


def _of_addresses(shot: Snapshot) -> list[Cause]:
    return [c for c in shot.causes if CAUSES[c.code].subject in ("other", "address")]


def _other_addresses(shot: Snapshot, company: Said) -> Iterator[Said]:
    """Tell of the other addresses while this node is alone."""
    if company.kind == "alone":
        for cause in _of_addresses(shot)[1:_SHOWN]:
            yield Said(cause.code, "warning", told_here(cause), advice(cause))


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def who(peer: PeerRow) -> str:
    """Return a peer's name for people."""
    return peer.name or short_id(peer.peer_id)
