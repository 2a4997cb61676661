"""Steps of `swarm-node join` before the node runs: find or found its swarm, show the plan, log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from swarm_node.config import Settings, Sources, named_home
from swarm_node.config.reloading import Reloading
from swarm_node.config.remembered import FILE as SETTINGS_FILE
from swarm_node.durable import Journal
from swarm_node.environments.presets import Tried, try_environment
from swarm_node.errors import ConfigError, TicketExpiredError
from swarm_node.node.home.home import Home, Membership
from swarm_node.node.members.admitting import admissions, holders, out_of_date, present
from swarm_node.node.preflight.doctor import (
    examine_fit,
    examine_machine,
    machine_of,
    measure_product_times,
    refuse,
)
from swarm_node.node.preflight.facts import gather
from swarm_node.node.preflight.first_lines import (
    Line,
    finding_line,
    invite_line,
    remembered_lines,
    start_lines,
    tickets_line,
    told_line,
)
from swarm_node.node.start.admission import Check, of_choice, of_model
from swarm_node.node.start.progress import NodeProgress
from swarm_node.node.start.resolve_names import remembering, ticket_text
from swarm_node.node.start.system import notify, run_loop
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.hub import Download
from swarm_node.policy.models.model import SHIPPED, Model, Told, resolve
from swarm_node.policy.planning.disk_space import check_disk
from swarm_node.program.logs import MAX_LOG_BYTES, keep_log, set_up_logging

if TYPE_CHECKING:
    from swarm_node.node.loops.program_node import ProgramNode
    from swarm_node.node.start.derive import Resolved

_log = structlog.get_logger(__name__)


def join_swarm(
    settings: Settings,
    sources: Sources,
    code: str | None = None,
    screen: NodeProgress | None = None,
    *,
    alone: bool = False,
) -> None:
    """Run a node until it is stopped. A home without a swarm joins one by a ticket, or by a `code`
    that its coordinator redeems for one. `settings` came from `sources`, which are read again on
    request. `screen` shows the progress, by default in the log. A node that its swarm refuses ends,
    unless it may train `alone`.

    Raises:
        MembershipError: the swarm refuses it.
        SwarmNodeError: it cannot start; the message says what to do.
    """
    screen = screen or NodeProgress()
    screen.home = named_home(settings.home)
    set_up_logging(settings.verbose, settings.log_format, warnings_only=screen.draws)
    with screen, remembering(sources):
        _join(settings, sources, code, screen, alone)


def _join(
    user_settings: Settings, sources: Sources, code: str | None, screen: NodeProgress, alone: bool
) -> None:
    screen.step("home")
    home = Home(user_settings.home)
    home.check()
    home.refuse_in_use()
    environment = user_settings.environment
    trial = try_environment(environment.name, environment.options)
    _require(of_choice(user_settings))
    if trial.lists:
        from swarm_node.node.preflight.right_answers import check_rows

        screen.step("rows")
        rows = check_rows(environment)
        screen.tell([finding_line(finding) for finding in rows.findings])
        trial = rows.completing(trial)
    ticket = ticket_text_for_start(user_settings, home, code)
    # Before anything is founded or started: a download may take long and may be interrupted.
    start, model = _load_fitting_model(
        user_settings, sources.origins(), home, ticket, trial, screen
    )
    with home.lock(), home.using_database():
        membership, founded = belong(ticket, home)
        keep_log(Journal(home.log, MAX_LOG_BYTES))
        _log.debug("settings of this start", **start.origins)
        from swarm_node.node.start.build import run_node  # imports torch and the network stack

        def on_running(addresses: Sequence[str]) -> None:
            screen.show_complete()
            sources.remember()
            home.note(SETTINGS_FILE)
            home.keep_addresses(addresses)
            screen.tell([Line("listening", " ".join(addresses), {"addresses": list(addresses)})])
            screen.tell([*_stale_tickets(home, start.settings, addresses)])
            if founded:
                screen.tell([invite_line(membership.swarm.name, screen.home)])
            notify("READY=1")

        reloading = Reloading(sources, user_settings)
        run_loop(
            run_node(start, home, membership, model, screen, reloading, on_running, alone=alone)
        )


def _require(checks: Iterable[Check]) -> None:
    """Raise what the first check that refuses this start raises."""
    for check in checks:
        check.run()


def _load_fitting_model(
    user_settings: Settings,
    origins: Mapping[str, str],
    home: Home,
    ticket: str | None,
    trial: Tried,
    screen: NodeProgress,
) -> tuple[Resolved, Model]:
    """Check that the machine fits the settings and the model, and the model the environment, by its
    `trial`. Return the settings of this start and the model.

    Raises:
        MachineError, ModelError, ConfigError, HomeError: it does not; nothing large was downloaded.
    """
    from swarm_node.node.start.derive import resolve_start  # imports torch

    run = user_settings.run
    facts = gather(home, run.device, user_settings.network.listen, ticket, run.trainer_processes)
    examination = examine_machine(facts, user_settings)
    refuse(examination.findings)
    addresses = _ticket_addresses(home, ticket)
    screen.step("model")
    downloads: list[Download] = []
    starts: list[Resolved] = []

    def admit(shape: ModelConfig) -> None:
        timed_facts = measure_product_times(facts, user_settings, shape)
        machine = machine_of(timed_facts, user_settings)
        start = resolve_start(user_settings, origins, home, addresses, shape, machine, trial)
        check_disk(facts.home, shape, start.fit, facts.disk)
        findings = examine_fit(examination, facts, start.settings, shape, start.fit)
        refuse(findings)
        screen.tell([finding_line(finding) for finding in findings if finding.level == "warning"])
        screen.tell([*start_lines(start.settings, timed_facts, machine, start.fit, shape)])
        screen.tell([*remembered_lines(origins)])
        starts.append(start)

    def on_event(event: Told) -> None:
        home.create()  # it may have the cache of the download, and only its owner may read it
        if isinstance(event, Download):
            downloads.append(event)
        screen.tell([told_line(event)])

    directory = resolve(user_settings.model, admit, on_event)
    if not downloads and user_settings.model not in SHIPPED:
        screen.tell(
            [Line("download", f"nothing, the model is in {directory}", {"files": 0, "size": 0})]
        )
    (start,) = starts
    screen.step("tokenizer")
    model = Model.read(start.settings.model, directory)
    _require(of_model(start.settings, model, trial, home.checkpoints))
    return start, model


def join_as_member(
    user_settings: Settings,
    ticket: str | None,
    on_opened: Callable[[ProgramNode, asyncio.AbstractEventLoop], None],
    on_running: Callable[[], None],
) -> None:
    """Run a member for a program until it is stopped: a node without sampler and trainer.
    `on_opened` and `on_running` are those of `run_member`.

    Raises:
        TicketError, HomeError: no membership can be had.
        ConfigError, ModelError: a setting cannot be used, or there is no such model.
        SwarmNodeError: it cannot start, or go on.
    """
    home, environment = Home(user_settings.home), user_settings.environment
    home.check()
    home.refuse_in_use()
    if ticket is not None and not home.has_swarm:
        parse_ticket(ticket, time.time())  # before what takes longer
    trial = try_environment(environment.name, environment.options)
    _require(of_choice(user_settings))
    if trial.lists:
        from swarm_node.node.preflight.right_answers import check_rows

        problems = [
            finding for finding in check_rows(environment).findings if finding.level != "ok"
        ]
        NodeProgress().tell([finding_line(finding) for finding in problems])
    if trial.turns > 1:
        raise ConfigError(
            f"environment.name: {environment.name} is multi-turn, and a member publishes "
            "completions to one question",
            "run a node for it",
        )
    model = Model.read(user_settings.model, resolve(user_settings.model))
    from swarm_node.node.start.build_member import run_member  # imports torch and the network stack
    from swarm_node.node.start.derive import member_settings

    settings = member_settings(user_settings, model.config, _ticket_addresses(home, ticket))
    with home.lock(), home.using_database():
        membership, _ = belong(ticket, home)
        # Not `run_loop`: its watcher of children needs the main thread.
        asyncio.run(run_member(settings, home, membership, model, on_opened, on_running))


def _stale_tickets(home: Home, settings: Settings, addresses: Sequence[str]) -> Iterator[Line]:
    """Say which tickets made here lead nobody to this node at `addresses`."""
    node_endpoints = present(home, settings.network, addresses)
    stale_tickets = out_of_date(
        admissions(home).entries(), holders(home), node_endpoints, time.time()
    )
    if stale_tickets:
        endpoints = dict.fromkeys(place for ticket in stale_tickets for place in ticket.endpoints)
        names = dict.fromkeys(
            f"{ticket.name} (which have other addresses too)" if ticket.others else ticket.name
            for ticket in stale_tickets
        )
        yield tickets_line([*names], [*endpoints])


def belong(ticket: str | None, home: Home) -> tuple[Membership, bool]:
    """Return this node's membership, by a `ticket` or by an earlier one, and True if it just
    created the swarm.

    Raises:
        HomeError, TicketError: no membership can be had; the message says what to do.
    """
    now = time.time()
    if ticket is not None:
        try:
            return home.join_swarm(parse_ticket(ticket, now), now), False
        except TicketExpiredError as error:
            # A service starts with the same command every time; a member needs no ticket.
            if not home.has_swarm or home.swarm().swarm_id != error.swarm_id:
                raise
    if home.has_swarm:
        return home.membership(), False
    name = f"swarm of {home.begin().peer_id[-6:]}"
    return home.found_swarm(name, now), True


def _ticket_addresses(home: Home, ticket: str | None) -> Sequence[str]:
    """The addresses in the ticket by which this node is a member: this one, or an earlier one."""
    try:
        if ticket is not None:
            return parse_ticket(ticket, time.time()).addresses
    except TicketExpiredError:  # a member needs none; `belong` refuses a stranger's
        pass
    return [*home.bootstraps(), *filter(None, [home.coordinator()])]


def ticket_text_for_start(settings: Settings, home: Home, code: str | None) -> str | None:
    """Return the text of the ticket for this start: that of `settings`, or one that a coordinator
    gives for `code` if this home belongs to no swarm yet. A service starts with the same command
    every time, so later starts ignore the code.

    Raises:
        ConfigError, CoordinatorError, TicketError: none can be had; the message says why.
    """
    if code is None or home.has_swarm:
        return ticket_text(settings)
    url = settings.network.coordinator
    if not url:
        raise ConfigError("--code is redeemed by a coordinator", "name it with --coordinator URL")
    from swarm_node.node.loops.peers.coordinator_client import redeem

    return asyncio.run(redeem(url, code, home.begin(), time.time))
