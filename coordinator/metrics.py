"""The coordinator's counters in Prometheus' text format. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

_HELP = {
    "members": "Members that were here.",
    "introductions": "Presences that are given to others.",
    "reports": "Members with a report.",
    "batch_number": "Number of the newest signed batch.",
    "revocation_list_number": "Number of the revocation list held.",
}


class Served(Protocol):
    """What an application counts."""

    @property
    def served(self) -> Mapping[tuple[str, int], int]: ...
    @property
    def seconds(self) -> Mapping[str, float]: ...
    @property
    def refused(self) -> Mapping[str, int]: ...


def metrics(counts: Mapping[str, float], tickets: int, *served: Served) -> str:
    """`counts` are gauges, `tickets` those that are left."""
    return "\n".join(_lines(counts, tickets, *served)) + "\n"


def _lines(counts: Mapping[str, float], tickets: int, *served: Served) -> Iterator[str]:
    for name, value in {**counts, "tickets_left": tickets}.items():
        full = f"swarm_coordinator_{name}"
        yield f"# HELP {full} {_HELP.get(name, 'Tickets that no code was redeemed for.')}"
        yield f"# TYPE {full} gauge"
        yield f"{full} {value:g}"
    full = "swarm_coordinator_refused_total"
    yield f"# HELP {full} Requests that were refused, by reason."
    yield f"# TYPE {full} counter"
    for reason, number in sorted(sum((Counter(api.refused) for api in served), Counter()).items()):
        yield f'{full}{{reason="{reason}"}} {number}'
    full = "swarm_coordinator_requests_total"
    yield f"# HELP {full} Requests by operation and status."
    yield f"# TYPE {full} counter"
    for api in served:
        for (operation, status), number in sorted(api.served.items()):
            yield f'{full}{{operation="{operation}",status="{status}"}} {number}'
    full = "swarm_coordinator_request_seconds_total"
    yield f"# HELP {full} Seconds from a request's head to its answer."
    yield f"# TYPE {full} counter"
    for api in served:
        for operation, seconds in sorted(api.seconds.items()):
            yield f'{full}{{operation="{operation}"}} {seconds:.6f}'
