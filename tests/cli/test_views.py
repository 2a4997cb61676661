"""What a terminal shows of a snapshot."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from swarm_node.cli.views import peers_view, status_view
from swarm_node.node.snapshot import SCHEMA, GroupCounts, PeerRow, Snapshot

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


def test_peers_are_shown_with_score_reasons_share_and_pause() -> None:
    row = PeerRow(
        peer_id="12D3KooWpeer",
        version=3,
        seconds_since_seen=1.0,
        published=9,
        received=4,
        rejected=3,
        addresses=[],
        score=0.34,
        refused={"hash": 1, "too_long": 2},
        share=0.12,
        left_seconds=55.0,
    )
    console = Console(file=io.StringIO(), width=200)
    console.print(peers_view(msgspec.structs.replace(QUIET, peers=[row])))
    assert isinstance(console.file, io.StringIO)
    line = next(text for text in console.file.getvalue().splitlines() if "12D3KooWpeer" in text)
    for part in ("0.34", "1 hash, 2 too_long", "12%", "55 s"):
        assert part in line
