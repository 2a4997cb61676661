"""The coordinator's figures as Prometheus reads them. No name or id of a member is a label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_PREFIX = "swarm_coordinator_"
_GAUGES = {
    "members": "Members that were here.",
    "introductions": "Presences that are given to others.",
    "reports": "Members with a report.",
    "batch_number": "Number of the newest signed batch.",
    "revocation_list_number": "Number of the revocation list held.",
    "tickets_left": "Tickets that no code was redeemed for.",
}


class Served(Protocol):
    """Counts of an application: requests by operation and status, seconds by operation, and
    refusals by reason."""

    @property
    def served(self) -> Mapping[tuple[str, int], int]: ...
    @property
    def seconds(self) -> Mapping[str, float]: ...
    @property
    def refused(self) -> Mapping[str, int]: ...


def exposition(gauges: Mapping[str, float], *served: Served) -> str:
    """The text of `GET /metrics`."""
    registry = CollectorRegistry()
    registry.register(_CoordinatorCollector(gauges, served))
    return generate_latest(registry).decode()


class _CoordinatorCollector:
    def __init__(self, gauges: Mapping[str, float], served: Iterable[Served]) -> None:
        self._gauges = gauges
        self._served = list(served)

    def collect(self) -> Iterator[Metric]:
        for name, said in _GAUGES.items():
            yield GaugeMetricFamily(_PREFIX + name, said, value=self._gauges[name])
        requests = _counter("requests", "Requests.", "operation", "status")
        seconds = _counter("request_seconds", "From a request's head to its answer.", "operation")
        refused = _counter("refused", "Requests that were refused.", "reason")
        reasons: Counter[str] = Counter()
        for api in self._served:
            for (operation, status), count in sorted(api.served.items()):
                requests.add_metric([operation, str(status)], count)
            for operation, taken in sorted(api.seconds.items()):
                seconds.add_metric([operation], taken)
            reasons.update(api.refused)
        for reason, count in sorted(reasons.items()):
            refused.add_metric([reason], count)
        yield from (requests, seconds, refused)


def _counter(name: str, said: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(_PREFIX + name, said, labels=labels)
