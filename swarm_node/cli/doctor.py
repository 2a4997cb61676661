"""`swarm-node doctor`: what a start of a node depends on, and what is wrong with it.

Cheap to import, so that `--help` is quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from swarm_node.cli.options import (
    AssignOption,
    ConfigOption,
    HomeOption,
    JsonOption,
    ModelOption,
    TicketFileOption,
)
from swarm_node.errors import ModelError

if TYPE_CHECKING:
    from rich.table import Table

    from swarm_node.config import Settings
    from swarm_node.node.doctor import Finding

_SCHEMA = 1
_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


def doctor(
    model: ModelOption = None,
    ticket_file: TicketFileOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
    assign: AssignOption = None,
    json: JsonOption = False,
) -> None:
    """Check what `join` with the same options would need here, before anything is started.

    Driver, builds of torch and vLLM, compiler, memory, disk, clock, port, ticket
    and membership. Nothing is written or downloaded. The exit code is 1 if a start
    is impossible.
    """
    from swarm_node.config import load_settings, parse_assignments

    flags = {
        "home": home,
        "model": model,
        "ticket": None if ticket_file is None else f"@{ticket_file}",
        **parse_assignments(assign or []),
    }
    findings = find(load_settings(flags, config=config))
    if json:
        import msgspec

        rows = [finding._asdict() for finding in findings]
        typer.echo(msgspec.json.encode({"schema": _SCHEMA, "checks": rows}).decode())
    else:
        from rich.console import Console

        Console(highlight=False).print(findings_view(findings))
    raise typer.Exit(int(any(finding.level == "error" for finding in findings)))


def find(settings: Settings) -> list[Finding]:
    """Everything about a start with these settings, on this machine.

    Raises:
        TicketError: the ticket's file cannot be read.
        HomeError: the home cannot be used.
    """
    from swarm_node.cli.plan import shape_of
    from swarm_node.node.defaults import for_model
    from swarm_node.node.doctor import Finding, examine
    from swarm_node.node.facts import gather
    from swarm_node.node.home import Home
    from swarm_node.node.join import ticket_text
    from swarm_node.policy.models.hub import hub_model

    home = Home(settings.home)
    home.check()
    if home.checkpoints.exists():
        from swarm_node.node.derive import resumed  # imports torch

        settings = resumed(settings, home.checkpoints)
    shape, wrong = None, []
    try:
        shape = shape_of(settings.model)
    except ModelError as error:
        if hub_model(settings.model) is None:
            wrong.append(Finding("model", "error", str(error)))
    if shape is not None:
        settings = for_model(settings, shape)
    ticket = ticket_text(settings)
    run = settings.run
    listen = settings.network.listen
    facts = gather(home, run.device, listen, ticket, cards=run.trainer_processes)
    return examine(facts, settings, shape) + wrong


def findings_view(findings: Sequence[Finding]) -> Table:
    """One row per finding, its remedy below what was found."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, colour = _MARKS[finding.level]
        told = Text(finding.found, style="" if finding.level == "ok" else "bold")
        if finding.remedy:
            told.append(f"\n→ {finding.remedy}", style=colour)
        table.add_row(Text(mark, style=colour), finding.subject, told)
    return table
