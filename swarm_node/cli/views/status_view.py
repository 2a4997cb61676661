"""Shows a snapshot in a terminal: the node's health, its metrics, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.table import Table

from swarm_node.cli.views.views import counts, day_of, number_of, plain, relay_name, span
from swarm_node.node.metrics.curve import partition_by_split
from swarm_node.node.metrics.progress import describe_work
from swarm_node.node.metrics.samples import RecentRow
from swarm_node.node.metrics.snapshot import (
    SEEN_SECONDS,
    CoordinatorRow,
    EvalPoint,
    LevelRow,
    MembershipRow,
    Said,
    Snapshot,
)
from swarm_node.p2p.wire.identity import short_id

#: The sign and the colour of a finding, by its level.
SIGNS = {"good": ("●", "green"), "warning": ("▲", "yellow"), "bad": ("✗", "red")}
#: Reasons that reject nothing: the peer was offline, or its group had expired.
_FAILED_PULLS = ("unreachable", "not_here")
#: Kinds of findings that some completions explain.
_OF_COMPLETIONS = ("nothing_to_learn", "truncated")
_BARS = "▁▂▃▄▅▆▇█"


def status_view(snapshot: Snapshot) -> RenderableType:
    """The verdict, the figures, and everything that the owner should look at."""
    first, *rest = snapshot.findings or [Said("", "good", snapshot.state)]
    examples = examples_view(snapshot) if first.kind in _OF_COMPLETIONS else ()
    told = {f"{finding.text}: {finding.remedy}" for finding in snapshot.findings}
    alarms = [Said("alarm", "bad", alarm) for alarm in snapshot.alarms if alarm not in told]
    return Group(
        findings_view([first]),
        *examples,
        figures_view(figures(snapshot)),
        findings_view([*rest, *alarms]),
    )


def findings_view(findings: Sequence[Said]) -> RenderableType:
    """Findings with their signs, each with its remedy below."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    for finding in findings:
        sign, colour = SIGNS[finding.level]
        table.add_row(f"[{colour}]{sign}[/]", f"[{colour}]{plain(finding.text)}[/]")
        if finding.remedy:
            table.add_row("→", plain(finding.remedy))
    return table


def figures_view(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Names and values in two columns."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, plain(text))
    return table


def examples_view(shot: Snapshot) -> Iterator[str]:
    """Some local completions, a line each."""
    for row in shot.examples:
        mark = "✓" if row.reward > 0.5 else "✗"
        text = f'{row.family}: "{cut(row.prompt, 40)}" → "{cut(row.completion, 40)}" {mark}'
        yield f"  {plain(text)}"


def _state(shot: Snapshot) -> str:
    """The state. Only a running node has been in it since its start."""
    duration = f"for {span(shot.seconds)}" if shot.state == "running" else ""
    return f"{shot.state} {duration or f'(started {span(shot.seconds)} ago)'}"


def figures(shot: Snapshot) -> Iterator[tuple[str, str]]:
    """Names and values, for `figures_view`."""
    yield "node", f"{shot.model}, {short_id(shot.peer_id)}, {_state(shot)}"
    yield "swarm", f"{shot.swarm}, {number_of(len(shot.peers), 'peer')} known"
    yield "membership", _membership(shot.membership)
    yield "reachability", shot.reach.text if shot.reach else "not known yet"
    if shot.reach is not None and shot.reach.remedy:
        yield "", f"→ {shot.reach.remedy}"
    if shot.coordinator is not None:
        yield "coordinator", coordinator(shot.coordinator, shot.time)
    yield from course(shot)
    yield "sampler", shot.engine
    yield "sandbox", shot.sandbox or "not known yet"
    if relays := _relays(shot):
        yield "relays", relays
    if missed := sum(shot.rejected.get(reason, 0) for reason in _FAILED_PULLS):
        yield "failed pulls", f"{missed} (peer offline or group expired)"
    yield "faults", counts(shot.faults)
    if shot.trainer_restarts:
        yield "trainer", f"restarted {shot.trainer_restarts} times"


def coordinator(row: CoordinatorRow, now: float) -> str:
    """Exchange of a node with its coordinator, in words, at the Unix second `now`."""
    if row.answers is None:
        return f"{row.url}: not asked yet"
    text = f"{row.url}: {number_of(row.introduced, 'peer')}"
    text += f", last report {span(now - row.reported)} ago" if row.reported else ", no report yet"
    if not row.answers:
        return f"{text}; {row.fault}"
    return f"{text}; its reputation lowers {number_of(row.lowered, 'peer')}"


def course(shot: Snapshot) -> Iterator[tuple[str, str]]:
    """The figures that change while one watches."""
    if shot.work is not None and (now := ", ".join(describe_work(shot.work, shot.steps))):
        yield "now", now
    if shot.levels:
        yield "levels", levels(shot.levels)
    yield "eval reward", curve(shot.evals, 24)
    yield "steps", steps(shot)
    yield "local groups", local_groups(shot)
    if shot.recent is not None and shot.recent.truncated:
        yield "truncated", format_truncations(shot.recent)
    yield "external groups", external_groups(shot)
    yield "rejected", format_rejections(shot)
    yield "busy", busy(shot)


def levels(rows: Sequence[LevelRow]) -> str:
    """The level of each ladder that is sampled now; of one that is measured, all that is known."""
    told = []
    for row in rows:
        if row.placed or not row.measured:
            text = f"{row.ladder} {row.level} of {row.levels}"
            told.append(text if row.reward is None else f"{text} (reward {row.reward:.2f})")
        else:
            told.append(", ".join(f"{name} {share:.2f}" for name, share in row.measured.items()))
    return ", ".join(told)


def steps(shot: Snapshot) -> str:
    """Number and rate of steps, and the local and external groups in each."""
    text, row = f"{shot.steps:,} (version {shot.version:,})", shot.latest
    if shot.skipped_batches:
        text += f", {shot.skipped_batches:,} skipped"
    if row is not None and row.local_per_step is not None and row.external_per_step is not None:
        total = row.local_per_step + row.external_per_step
        text += f", {row.steps_per_second:.2g}/s; groups in each: {row.local_per_step:.1f} local"
        text += f", {row.external_per_step:.1f} external ({row.external_per_step / total:.0%})"
    return text


def local_groups(shot: Snapshot) -> str:
    """Groups sampled here, and how many of them were sent to peers."""
    text = f"{shot.groups.sampled:,} sampled, {shot.groups.announced:,} announced"
    text += f", {shot.groups.sent:,} sent to peers"
    if shot.recent is not None and shot.recent.groups:
        share = shot.recent.mixed / shot.recent.groups
        text += f"; {share:.0%} of the last {shot.recent.groups} have mixed rewards"
    if shot.latest is not None and (shot.latest.turns or 1.0) > 1.0:
        text += f"; {shot.latest.turns:.1f} turns per rollout"
    return text


def format_truncations(row: RecentRow) -> str:
    """Recent completions that ended for want of tokens."""
    share = row.truncated / row.completions
    text = f"{row.truncated:,} of the last {row.completions:,} completions ({share:.0%})"
    return f"{text}, at sampling.max_new_tokens"


def external_groups(shot: Snapshot) -> str:
    """External groups accepted, and how many were trained on."""
    recent_peers = [peer for peer in shot.peers if peer.seconds_since_seen <= SEEN_SECONDS]
    givers = sum(peer.accepted > 0 for peer in recent_peers)
    whom = number_of(givers, "peer") if givers or not shot.groups.accepted else "peers now gone"
    text = f"{shot.groups.accepted:,} accepted from {whom}"
    return f"{text}, {shot.groups.trained_external:,} trained on"


def format_rejections(shot: Snapshot) -> str:
    """Format the numbers of rejected messages, by reason."""
    return counts({reason: n for reason, n in shot.rejected.items() if reason not in _FAILED_PULLS})


def busy(shot: Snapshot) -> str:
    """Load of sampler and trainer, and memory."""
    row = shot.latest
    if row is None:
        return "not known yet"
    memory = f", memory {row.memory / 1e9:.1f} GB" if row.memory else ""
    return f"sampler {row.sampler_busy:.0%}, trainer {row.trainer_busy:.0%}{memory}"


def curve(evals: list[EvalPoint], width: int) -> str:
    """Eval reward first and now, with at most `width` bars between, and reward on training prompts.
    What was measured with another split stands apart."""
    if not evals:
        return "not measured yet"
    old_points, points = partition_by_split(evals)
    text, last = f"{points[-1].reward:.2f}", points[-1]
    if len(points) > 1:
        way = bars([point.reward for point in points], width)
        text = f"{points[0].reward:.2f} {way} {text}"
    if last.train is not None:
        text += f"; training prompts {last.train:.2f}"
    if old_points:
        text += f"; {old_points[-1].reward:.2f} before (another split)"
    return text


def bars(values: list[float], width: int) -> str:
    """Values in [0, 1] as at most `width` bars, each the mean of its part."""
    width = min(width, len(values))
    bounds = [len(values) * n // width for n in range(width + 1)]
    parts = [values[low:high] for low, high in pairwise(bounds)]
    means = [sum(part) / len(part) for part in parts]
    return "".join(_BARS[min(7, int(8 * max(0.0, mean)))] for mean in means)


def cut(text: str, width: int) -> str:
    """The beginning of a text in one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _membership(row: MembershipRow | None) -> str:
    if row is None:
        return "not known yet"
    status = f"until {day_of(row.until)}" if row.standing == "member" else row.standing
    return f"{row.name}, {status}"


def _relays(snapshot: Snapshot) -> str:
    row = snapshot.relaying
    if row is None:
        return ""
    parts = [f"{row.relayed} of {row.asked} requests relayed"] if row.relayed else []
    if row.kept:
        names = ", ".join(relay_name(relay, snapshot.peers) for relay in row.kept)
        parts.append(f"reached via {names}")
    if row.serves or row.requests:
        parts.append(f"forwarded {row.requests} for others, {row.bytes / 1e6:.1f} MB")
        parts.append(f"refused {counts(row.refused)}")
    return "; ".join(parts)
