"""What a terminal shows of a snapshot."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from swarm_node.cli.views import status_view
from swarm_node.node.snapshot import SCHEMA, GroupCounts, Snapshot

QUIET = Snapshot(
    schema=SCHEMA,
    peer_id="12D3KooW",
    swarm="team",
    swarm_id="00",
    model="tiny",
    state="running",
    seconds=1.0,
    version=3,
    updates=3,
    skipped_updates=0,
    trainer_restarts=0,
    groups=GroupCounts(),
    rejected={},
    faults={},
    evals=[],
    families=[],
    own_families=[],
    peers=[],
    buffer={},
    update=None,
    addresses=[],
    processes={},
)


def shown(snapshot: Snapshot) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(status_view(snapshot))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_status_shows_every_alarm_as_plain_text() -> None:
    alarms = ["one peer costs much", "style: [bold]zq zq[/bold]"]
    text = shown(msgspec.structs.replace(QUIET, alarms=alarms))
    assert all(alarm in text for alarm in alarms)
    assert "alarm" not in shown(QUIET)
