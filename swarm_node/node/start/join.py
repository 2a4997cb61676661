"""Steps of `swarm-node join` before the node runs: find or found its swarm, show the plan, log."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import SecretStr

from swarm_node.config import Settings, Sources, default_home
from swarm_node.config.reloading import Reloading
from swarm_node.durable import Journal
from swarm_node.errors import ConfigError, TicketError, TicketExpiredError
from swarm_node.node.home.home import Home, Membership
from swarm_node.node.home.logs import MAX_LOG_BYTES, keep_log, set_up_logging
from swarm_node.node.preflight.defaults import for_model, for_training
from swarm_node.node.preflight.doctor import examine, machine_of, refuse
from swarm_node.node.preflight.facts import Seen, gather
from swarm_node.node.preflight.first_lines import (
    Line,
    download_line,
    finding_line,
    invite_line,
    start_lines,
)
from swarm_node.node.preflight.fit import check_disk, fit
from swarm_node.node.start.screen import Screen
from swarm_node.node.start.service import notify
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.models.hub import Download
from swarm_node.policy.models.model import TINY, Model, resolve
from swarm_node.policy.placement import hardware

_MAX_TICKET_FILE = 16 * 1024


def join_swarm(
    settings: Settings, sources: Sources, code: str | None = None, screen: Screen | None = None
) -> None:
    """Run a node until it is stopped. A home without a swarm joins one by a ticket, or by a `code`
    that its coordinator redeems for one. `settings` came from `sources`, which are read again on
    request. `screen` shows the progress, by default in the log.

    Raises:
        SwarmNodeError: it cannot start; the message says what to do.
    """
    screen = screen or Screen()
    set_up_logging(settings.verbose, settings.log_format, warnings_only=screen.draws)
    with screen:
        _join(settings, Reloading(sources, settings), code, screen)


def _join(settings: Settings, reloading: Reloading, code: str | None, screen: Screen) -> None:
    screen.step("home")
    # Before anything is founded or started: a download may take long and may be interrupted.
    from swarm_node.node.start.derive import resumed  # imports torch

    home = Home(settings.home)
    home.check()
    settings = with_ticket(redeemed(settings, home, code))
    settings = resumed(settings, home.checkpoints)
    wanted, seen = settings.network.listen, Seen(hardware(settings.run.device))
    run = settings.run
    facts = gather(home, run.device, wanted, ticket_text(settings), seen, run.trainer_processes)
    refuse(examine(facts, settings, None))
    machine = machine_of(facts, settings)
    screen.step("model")
    downloads: list[Download] = []

    def admit(shape: Qwen2Config) -> None:
        wanted = for_model(settings, shape)
        found = fit(wanted, shape, machine)
        check_disk(wanted, shape, found, facts.disk)
        findings = examine(facts, wanted, shape)
        refuse(findings)
        wanted = for_training(wanted, shape, found.training)
        screen.tell([finding_line(finding) for finding in findings if finding.level == "warning"])
        screen.tell([*start_lines(wanted, facts, machine, found, shape)])

    def download(wanted: Download) -> None:
        downloads.append(wanted)
        screen.tell([download_line(wanted)])

    directory = resolve(settings.model, admit, download)
    if not downloads and settings.model != TINY:
        screen.tell(
            [Line("download", f"nothing, the model is in {directory}", {"files": 0, "size": 0})]
        )
    model = Model.read(settings.model, directory)
    settings = for_model(settings, model.config)
    found = fit(settings, model.config, machine)
    settings = for_training(settings, model.config, found.training)
    with home.lock(), home.using_database():
        membership, founded = belong(settings, home)
        bootstrap = [*settings.network.bootstrap, *home.bootstraps()]
        coordinator = settings.network.coordinator or home.coordinator()
        network = settings.network.model_copy(
            update={"bootstrap": bootstrap, "coordinator": coordinator}
        )
        settings = settings.model_copy(update={"network": network})
        keep_log(Journal(home.log, MAX_LOG_BYTES))
        from swarm_node.node.start.build import run_node  # imports torch and the network stack

        def on_running(addresses: Sequence[str]) -> None:
            screen.done()
            screen.tell([Line("listening", " ".join(addresses), {"addresses": list(addresses)})])
            if founded:
                screen.tell([invite_line(membership.swarm.name, home.path, default_home())])
            notify("READY=1")

        node = run_node(settings, home, membership, model, found, screen, reloading, on_running)
        asyncio.run(node)


def belong(settings: Settings, home: Home) -> tuple[Membership, bool]:
    """Return this node's membership, and True if it just founded the swarm.

    Raises:
        HomeError, TicketError: no membership can be had; the message says what to do.
    """
    text = ticket_text(settings)
    now = time.time()
    if text is not None:
        try:
            return home.join_swarm(parse_ticket(text, now), now), False
        except TicketExpiredError as error:
            # A service starts with the same command every time; a member needs no ticket.
            if not home.has_swarm or home.swarm().swarm_id != error.swarm_id:
                raise
    if home.has_swarm:
        return home.membership(), False
    name = f"swarm of {home.begin().peer_id[-6:]}"
    return home.found_swarm(name, now), True


def redeemed(settings: Settings, home: Home, code: str | None) -> Settings:
    """Return `settings` with a ticket for `code`, if this home belongs to no swarm yet. A service
    starts with the same command every time, so later starts ignore the code.

    Raises:
        ConfigError, CoordinatorError, TicketError: none can be had; the message says why.
    """
    if code is None or home.has_swarm:
        return settings
    url = settings.network.coordinator
    if not url:
        raise ConfigError("--code is redeemed by a coordinator: name it with --coordinator URL")
    from swarm_node.node.loops.coordinator_client import redeem

    ticket = asyncio.run(redeem(url, code, home.begin(), time.time))
    return settings.model_copy(update={"ticket": SecretStr(ticket)})


def with_ticket(settings: Settings) -> Settings:
    """Return `settings` with the ticket's text in place of its file, because standard input can be
    read only once.

    Raises:
        TicketError: its file cannot be read.
    """
    text = ticket_text(settings)
    ticket = None if text is None else SecretStr(text)
    return settings.model_copy(update={"ticket": ticket})


def ticket_text(settings: Settings) -> str | None:
    """Return the text of the ticket that `settings` give or name, None without one.

    Raises:
        TicketError: its file cannot be read.
    """
    if settings.ticket is None:
        return None
    text = settings.ticket.get_secret_value().strip().strip("'\"")
    if not text.startswith("@"):
        return text
    path = Path(text[1:])
    try:
        if str(path) == "-":
            return sys.stdin.read(_MAX_TICKET_FILE)
        if path.exists() and not path.is_file():  # a pipe may never have an end
            raise TicketError(
                f"cannot read the ticket file {path}: it is no regular file. Name one, or give the "
                "ticket on standard input (--ticket-file -)"
            )
        with path.open(encoding="ascii") as file:
            return file.read(_MAX_TICKET_FILE)
    except (OSError, UnicodeDecodeError) as error:
        raise TicketError(f"cannot read the ticket file {path}: {error}") from error
