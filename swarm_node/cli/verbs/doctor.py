"""`swarm-node doctor`: check what a start of a node depends on.

Cheap to import, so that `--help` is quick.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from swarm_node.cli.options import (
    AcceptOption,
    AnswerFieldOption,
    AssignOption,
    ChoicesFieldOption,
    ConfigOption,
    DeviceOption,
    EnvironmentOption,
    FactsOption,
    HomeOption,
    JsonOption,
    LoraRankOption,
    ModelOption,
    QuestionFieldOption,
    TicketFileOption,
    task_flags,
)
from swarm_node.errors import ConfigError, ModelError, SwarmNodeError, TicketError

if TYPE_CHECKING:
    from rich.table import Table

    from swarm_node.config import Settings
    from swarm_node.environments.presets import Tried
    from swarm_node.node.preflight.doctor import Finding
    from swarm_node.node.preflight.facts import Facts
    from swarm_node.policy.models.config import ModelConfig

# As wide as the longest subject, so that rows printed one after another are aligned.
_SUBJECT_WIDTH = len("environment")
_OF_NETWORK = {"port", "clock", "ticket", "membership"}
_MARKS = {"ok": ("✓", "green"), "warning": ("▲", "yellow"), "error": ("✗", "red")}


class Choices(NamedTuple):
    """What settings name: a trial of the environment and the model's shape (None where it cannot
    be used), and what was found in both."""

    trial: Tried | None
    shape: ModelConfig | None
    findings: list[Finding]


def doctor(
    model: ModelOption = None,
    ticket_file: TicketFileOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
    environment: EnvironmentOption = None,
    question: QuestionFieldOption = None,
    answer: AnswerFieldOption = None,
    choices: ChoicesFieldOption = None,
    device: DeviceOption = None,
    lora_rank: LoraRankOption = None,
    assign: AssignOption = None,
    accept: AcceptOption = None,
    network: Annotated[
        bool, typer.Option("--network", help="Only the network; asks the running node, if any.")
    ] = False,
    facts: FactsOption = None,
    json: JsonOption = False,
) -> None:
    """Check this machine for `join` with the same options. Nothing is started.

    Driver, builds of torch and vLLM, compiler, memory, disk, clock, port, ticket
    and membership. Nothing is written or downloaded. The exit code is 1 if a start
    is impossible.

    With `--network`, a running node asks members how they reach it: directly, through
    a relay, or not at all, and why. If no node runs, the nodes that the
    ticket names or that it knew, and the coordinator, are tried.

    `--json` also describes the machine, so that `plan --facts FILE` and
    `doctor --facts FILE` check it elsewhere.
    """
    from swarm_node.config import load_settings, parse_assignments
    from swarm_node.node.start.resolve_names import with_ticket

    flags = {
        "home": home,
        "model": model,
        **task_flags(environment, None, None, question, answer, choices, accept),
        "ticket": None if ticket_file is None else f"@{ticket_file}",
        **{"run.device": device, "training.lora_rank": lora_rank},
        **parse_assignments(assign or []),
    }
    settings = with_ticket(load_settings(flags, config=config, with_home=True))
    if facts is not None and network:
        raise ConfigError("--facts is about another machine, and --network about this one")
    has_error = _report(settings, home, facts, network=network, json=json)
    raise typer.Exit(int(has_error))


def _report(
    settings: Settings, home: Path | None, path: Path | None, *, network: bool, json: bool
) -> bool:
    """Examine this machine, or another by its facts in `path`, and print what was found, first the
    errors in what was typed. True if a start is impossible."""
    from swarm_node.program.commands import with_home

    if path is not None:
        facts, findings = find_elsewhere(settings, path)
        _show(findings, facts if json else None)
        return _has_error(findings)

    def show(rows: Sequence[Finding], facts: Facts | None = None) -> None:
        _show([row._replace(remedy=with_home(row.remedy, home)) for row in rows], facts)

    checked = check_choices(settings)
    early: list[Finding] = []
    if not network and not json:
        early = [row for row in checked.findings if row.level == "error"]
        show(early)
    facts, findings = find(settings, checked)
    if network:
        network_findings = [finding for finding in findings if finding.subject in _OF_NETWORK]
        findings = [*find_network(settings), *network_findings]
    else:
        findings += find_reach(settings)
    show([row for row in findings if row not in early], facts if json else None)
    return _has_error(findings)


def _has_error(findings: Sequence[Finding]) -> bool:
    return any(finding.level == "error" for finding in findings)


def _show(findings: Sequence[Finding], facts: Facts | None) -> None:
    """Print findings, with the facts that they follow from as JSON."""
    if facts is not None:
        from swarm_node.cli.home import json_of
        from swarm_node.node.preflight.facts_file import SCHEMA, to_stored

        rows = [finding._asdict() for finding in findings]
        typer.echo(json_of({"schema": SCHEMA, "checks": rows, "facts": to_stored(facts)}))
    elif findings:
        from rich.console import Console

        Console(highlight=False).print(findings_view(findings))


def find_elsewhere(settings: Settings, path: Path) -> tuple[Facts, list[Finding]]:
    """Facts of another machine from a file, and the findings that follow from them.

    Raises:
        ConfigError: the file is unusable, or the environment.
        ModelError: the model's shape is not known.
    """
    from swarm_node.cli.verbs.plan import shape_of
    from swarm_node.environments.presets import prompt_bytes, try_environment
    from swarm_node.node.preflight.defaults import for_model
    from swarm_node.node.preflight.doctor import examine
    from swarm_node.node.preflight.facts_file import SUBJECTS, read_facts
    from swarm_node.policy.planning.demand import Lengths

    facts, shape = read_facts(path, settings.home), shape_of(settings.model)
    settings = for_model(settings, shape)
    name, options = settings.environment.name, settings.environment.options
    trial = try_environment(name, options, asks=True)
    lengths = Lengths(trial.turns, prompt_bytes(trial, options))
    findings = examine(facts, settings, shape, lengths)
    return facts, [finding for finding in findings if finding.subject in SUBJECTS]


def check_choices(settings: Settings) -> Choices:
    """What settings name, checked without torch, so that a mistyped name is answered at once.

    Raises:
        HomeError: the data directory cannot be used.
    """
    from swarm_node.cli.verbs.plan import shape_of
    from swarm_node.environments.presets import try_environment
    from swarm_node.node.home.home import Home
    from swarm_node.node.preflight.doctor import Finding
    from swarm_node.node.start.admission import of_choice, run_checks
    from swarm_node.policy.models.model import of_hub

    Home(settings.home).check()
    trial, shape = None, None
    findings: list[Finding] = []
    try:
        trial = try_environment(settings.environment.name, settings.environment.options)
        findings += run_checks(of_choice(settings))
    except ConfigError as error:
        findings.append(Finding("environment", "error", *error.split_remedies()))
    try:
        shape = shape_of(settings.model)
    except ModelError as error:
        if of_hub(settings.model) is None:
            findings.append(Finding("model", "error", *error.split_remedies()))
    return Choices(trial, shape, findings)


def find(settings: Settings, choices: Choices | None = None) -> tuple[Facts, list[Finding]]:
    """Everything about a start with these settings, on this machine.

    Raises:
        TicketError: the ticket's file cannot be read.
        HomeError: the data directory cannot be used.
    """
    from swarm_node.environments.presets import prompt_bytes
    from swarm_node.node.home.home import Home
    from swarm_node.node.preflight.defaults import for_model
    from swarm_node.node.preflight.doctor import examine, measure_product_times
    from swarm_node.node.preflight.facts import gather
    from swarm_node.node.start.resolve_names import ticket_text
    from swarm_node.policy.planning.demand import Lengths

    trial, shape, problems = choices or check_choices(settings)
    home = Home(settings.home)
    if home.checkpoints.exists():
        from swarm_node.node.start.derive import with_stored_rank  # imports torch

        settings = with_stored_rank(settings, home.checkpoints)
    trial, of_rows = _with_rows(settings, trial)
    problems = problems + of_rows
    if shape is not None:
        settings = for_model(settings, shape)
        problems += _of_gguf(settings.model)
    lengths = Lengths()
    if trial is not None:
        lengths = Lengths(trial.turns, prompt_bytes(trial, settings.environment.options))
    if shape is not None and trial is not None and not home.in_use():
        problems += _of_model(settings, trial, home.checkpoints)
    run, ticket = settings.run, ticket_text(settings)
    facts = gather(home, run.device, settings.network.listen, ticket, cards=run.trainer_processes)
    if shape is not None and not facts.is_running:
        facts = measure_product_times(facts, settings, shape)
    findings = examine(facts, settings, shape, lengths)
    if shape is None and any(finding.subject == "model" for finding in problems):
        # The finding says: after a download.
        findings = [finding for finding in findings if finding.subject != "model"]
    return facts, findings + [finding for finding in problems if finding not in findings]


def _with_rows(settings: Settings, trial: Tried | None) -> tuple[Tried | None, list[Finding]]:
    """Examine the rows of an environment that lists its tasks. Without a trial, or if the rows
    cannot be read, no trial."""
    from swarm_node.node.preflight.doctor import Finding
    from swarm_node.node.preflight.right_answers import examine_rows

    if trial is None or not trial.lists:
        return trial, []
    try:
        rows = asyncio.run(examine_rows(settings.environment))
    except ConfigError as error:
        return None, [Finding("environment", "error", *error.split_remedies())]
    return rows.completing(trial), rows.findings


def _of_gguf(name: str) -> Iterator[Finding]:
    """Report that a model's weights are quantised ones."""
    from swarm_node.node.preflight.doctor import Finding
    from swarm_node.policy.models.gguf.directory import gguf_model
    from swarm_node.policy.models.gguf.file import is_gguf

    if is_gguf(name):
        yield Finding("model", "ok", str(gguf_model(Path(name).expanduser())[1]))


def _of_model(settings: Settings, trial: Tried, checkpoints: Path) -> Iterator[Finding]:
    """Report what a model that is here, and the newest checkpoint, are refused for."""
    from swarm_node.node.preflight.doctor import Finding
    from swarm_node.node.start.admission import of_model, run_checks
    from swarm_node.policy.models.model import Model, local, resolve

    if not local(settings.model):
        return
    try:
        model = Model.read(settings.model, resolve(settings.model, notify=lambda _: None))
    except ModelError as error:
        yield Finding("model", "error", *error.split_remedies())
    else:
        yield from run_checks(of_model(settings, model, trial, checkpoints))


def find_reach(settings: Settings) -> list[Finding]:
    """Report the running node's reachability from what it knows. Empty if no running node says
    so."""
    from swarm_node.node.control.control import ControlClient
    from swarm_node.node.home.home import Home
    from swarm_node.node.preflight.network import check_reach

    home = Home(settings.home)
    if not home.in_use():
        return []
    try:
        reach = asyncio.run(ControlClient(home.control_file).status()).reach
    except SwarmNodeError:  # it starts, or ends: the finding of the home says that it is there
        return []
    return [] if reach is None else [check_reach(reach)]


def find_network(settings: Settings) -> list[Finding]:
    """Report the running node's reachability. Without a running node, connect to the nodes
    that it would connect to: those of settings and ticket, those it knew, and its coordinator.

    Raises:
        SwarmNodeError: the running node cannot say; the ticket or node.db cannot be read.
    """
    from swarm_node.node.control.control import ControlClient
    from swarm_node.node.home.home import Home
    from swarm_node.node.loops.peers.coordinator_client import try_coordinator
    from swarm_node.node.preflight.network import (
        check_addresses,
        check_network,
        try_addresses,
        try_stored,
    )
    from swarm_node.node.start.resolve_names import ticket_text
    from swarm_node.p2p.addresses.addresses import coordinator_url
    from swarm_node.p2p.membership.ticket import parse_ticket
    from swarm_node.storage import MAX_PEERS, stored_peers

    home = Home(settings.home)
    if home.in_use():
        return [*check_network(asyncio.run(ControlClient(home.control_file).network()))]
    addresses = [*settings.network.bootstrap, *home.bootstraps()]
    url = settings.network.coordinator or home.coordinator()
    text = ticket_text(settings)
    if text is not None:
        with contextlib.suppress(TicketError):  # `find` says what is wrong with it
            ticket = parse_ticket(text, time.time())
            addresses += ticket.peers
            url = url or next(filter(None, map(coordinator_url, ticket.addresses)), "")
    peers = stored_peers(home.database, MAX_PEERS)

    async def tries() -> list[Finding]:
        attempts, stored_attempts = await asyncio.gather(
            try_addresses(addresses), try_stored(peers)
        )
        return [
            *check_addresses(
                attempts, [*stored_attempts, *([await try_coordinator(url)] if url else ())]
            )
        ]

    return asyncio.run(tries())


def findings_view(findings: Sequence[Finding]) -> Table:
    """One row per finding, its remedy below what was found."""
    from rich.table import Table
    from rich.text import Text

    from swarm_node.program.commands import printable

    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(min_width=_SUBJECT_WIDTH)
    table.add_column()
    for finding in findings:
        mark, colour = _MARKS[finding.level]
        # Drivers and files of other machines wrote some of it.
        text = Text(printable(finding.found), style="" if finding.level == "ok" else "bold")
        if finding.remedy:
            text.append(f"\n→ {printable(finding.remedy)}", style=colour)
        table.add_row(Text(mark, style=colour), finding.subject, text)
    return table
