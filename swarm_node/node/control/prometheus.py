"""A snapshot in the text format of Prometheus. No name or id of a peer is a label: peers come and
go, and each value of a label is a time series that Prometheus keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from swarm_node.node.metrics.history import figures
from swarm_node.node.metrics.snapshot import SEEN_SECONDS, PeerRow, Snapshot
from swarm_node.version import __version__

__all__ = ["CONTENT_TYPE", "exposition"]


def exposition(snapshot: Snapshot) -> bytes:
    """Return the text of `GET /metrics`, in the format that `CONTENT_TYPE` names."""
    registry = CollectorRegistry()
    registry.register(_Collector(snapshot))
    return generate_latest(registry)


class _Collector:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        shot = self._snapshot
        yield from _about(shot)
        yield from _groups(shot)
        yield from _learning(shot)
        yield from _machine(shot)


def _about(shot: Snapshot) -> Iterator[Metric]:
    labels = {"version": __version__, "model": shot.model, "engine": shot.engine.split(":")[0]}
    yield _gauge("info", "What runs; always 1.", [(labels, 1)])
    yield _gauge("up_seconds", "Time since the start.", shot.seconds)
    yield _gauge("running", "1 while the node samples and trains.", shot.state == "running")
    yield _gauge("alarms", "What the owner should look at: `swarm-node status`.", len(shot.alarms))
    for finding in shot.findings[:1]:
        labels = {"kind": finding.kind, "level": finding.level}
        yield _gauge("health", "The first line of `swarm-node status`; always 1.", [(labels, 1)])
    if shot.refused_callers:
        codes = Counter(cause.code for cause in shot.refused_callers)
        description = "Keys that this node refused lately, by cause."
        yield _gauge("refused_callers", description, _by("cause", codes))
    if shot.membership is not None:
        description = "When the membership ends, in Unix seconds."
        yield _gauge("membership_end_timestamp_seconds", description, shot.membership.until)
    links = [
        (link, _count_peers_by_link(shot.peers, link)) for link in ("direct", "relayed", "none")
    ]
    description = f"Peers heard in the last {SEEN_SECONDS:g} seconds, by how they are reached."
    yield _gauge("peers", description, [({"link": link}, count) for link, count in links])
    yield _counter("faults", "Faults of the node's own parts.", _by("part", shot.faults))
    yield _counter("trainer_restarts", "Restarts of the trainer.", shot.trainer_restarts)


def _groups(shot: Snapshot) -> Iterator[Metric]:
    for name, family in groupby(figures(shot.groups), lambda entry: entry[1].metric):
        rows = list(family)
        labels = [({"origin": entry.origin} if entry.origin else {}, n) for _, entry, n in rows]
        yield _counter(name, rows[0][1].description, labels)
    yield _counter(
        "rejections", "Rejected messages of peers, and failed pulls.", _by("reason", shot.rejected)
    )


def _learning(shot: Snapshot) -> Iterator[Metric]:
    yield _gauge("policy_version", "Version of the policy.", shot.version)
    yield _counter("steps", "Optimizer steps since the data directory was created.", shot.steps)
    yield _counter("skipped_batches", "Batches without a gradient.", shot.skipped_batches)
    if shot.evals:
        point = shot.evals[-1]
        description = "Reward on held-out prompts, one completion each."
        yield _gauge("eval_reward", description, _by("family", point.families))
        description = f"Reward on held-out prompts, the best of {point.k} completions."
        yield _gauge("eval_best_of_k_reward", description, _by("family", point.best_of_k))
        if point.train is not None:
            description = "Reward on training prompts, over all families."
            yield _gauge("eval_reward_train", description, point.train)
    for row in (shot.last_step, shot.latest):
        for _, figure, value in figures(row):
            if figure.metric:
                yield _gauge(figure.metric, figure.description, value)


def _machine(shot: Snapshot) -> Iterator[Metric]:
    if shot.tokens is not None:
        yield _counter("sampled_tokens", "Tokens sampled for local groups.", shot.tokens.sampled)
        yield _counter("trained_tokens", "Tokens trained on.", shot.tokens.trained)
    if shot.busy is not None:
        busy_seconds = {"sampler": shot.busy.sampler, "trainer": shot.busy.trainer}
        yield _counter("busy_seconds", "Time that a part worked.", _by("part", busy_seconds))


_Samples = float | Iterable[tuple[Mapping[str, str], float]]


def _gauge(name: str, description: str, samples: _Samples) -> Metric:
    return _fill_metric(GaugeMetricFamily(f"swarm_node_{name}", description), samples)


def _counter(name: str, description: str, samples: _Samples) -> Metric:
    """A counter; `_total` is added to its name."""
    return _fill_metric(CounterMetricFamily(f"swarm_node_{name}", description), samples, "_total")


def _fill_metric(family: Metric, samples: _Samples, suffix: str = "") -> Metric:
    pairs = [({}, samples)] if isinstance(samples, int | float) else samples
    for labels, value in pairs:
        family.add_sample(family.name + suffix, dict(labels), value)
    return family


def _by(label: str, counts: Mapping[str, float]) -> list[tuple[Mapping[str, str], float]]:
    return [({label: key}, value) for key, value in sorted(counts.items())]


def _count_peers_by_link(peers: Iterable[PeerRow], link: str) -> int:
    return sum(
        peer.seconds_since_seen <= SEEN_SECONDS
        and link == ("none" if peer.via is None else "relayed" if peer.via else "direct")
        for peer in peers
    )
