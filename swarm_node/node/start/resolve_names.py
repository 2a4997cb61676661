"""What the settings of a start name: a model, an environment, a ticket. A name that means nothing
is refused before anything heavy is imported and anything is written.

Cheap to import: `join` looks here first, so that a typo is told at once.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import SecretStr

from swarm_node.config import Settings, Sources
from swarm_node.config.sources import HOME_SOURCE, forgetting
from swarm_node.environments.registry import require_environment
from swarm_node.errors import ConfigError, MachineError, ModelError, TicketExpiredError
from swarm_node.node.home.home import Home
from swarm_node.node.start.tracking import require_tracker
from swarm_node.p2p.membership.ticket import parse_ticket, read_ticket
from swarm_node.policy.models.model import require_model
from swarm_node.policy.training.checkpoints.stored import checkpoints


def require_named(settings: Settings, sources: Sources) -> None:
    """Check what `settings`, which came from `sources`, name, and the home. Nothing is written,
    fetched or started. A ticket on standard input, which can be read only once, is left to the
    start.

    Raises:
        HomeError: the home cannot be used, or a node runs there.
        TicketError: the ticket cannot be read, or is none.
        ModelError, ConfigError: there is no such model, environment or file, or the tracker is not
            installed.
    """
    home = Home(settings.home)
    home.check()
    home.refuse_in_use()
    if settings.ticket is not None and _strip_quotes(settings.ticket) != "@-":
        try:
            parse_ticket(ticket_text(settings) or "", time.time())
        except TicketExpiredError:
            # A service starts with the same command every time; a member needs no ticket.
            if not home.has_swarm:
                raise
    with remembering(sources):
        require_model(settings.model)
        require_environment(settings.environment.name, settings.environment.options)
        require_tracker(settings.run.track, "run.track")


@contextmanager
def remembering(sources: Sources) -> Iterator[None]:
    """Add to an error that names what the home remembers how it forgets that."""
    stored_settings, origins = sources.remembered_values(), sources.origins()
    home_values = {
        key: entry.value for key, entry in stored_settings.items() if origins[key] == HOME_SOURCE
    }
    try:
        yield
    except (ConfigError, MachineError, ModelError) as error:
        message = str(error)
        keys = [
            key
            for key, value in home_values.items()
            # "model" and "home" are words of many an error.
            if ("." in key and key in message) or any(_are_quoted(message, value))
        ]
        if not keys:
            raise
        raise type(error)(error.cause, *error.remedies, _remedy(sources.home, keys)) from error


def _remedy(home: Path, keys: Sequence[str]) -> str:
    """What helps against remembered values of `keys`."""
    if [*keys] == ["model"] and checkpoints(Home(home).checkpoints):
        return (
            f"remembered in {home}, with what it was trained to; if it has moved, "
            "`swarm-node join --model PLACE` goes on with it"
        )
    return forgetting(home, keys)


def _are_quoted(message: str, value: object) -> Iterator[bool]:
    """Take each text in a setting's value. Yield True if the error `message` quotes it, else
    False."""
    inner = value.values() if isinstance(value, Mapping) else value
    for item in inner if isinstance(inner, Iterable) and not isinstance(inner, str) else [inner]:
        yield (
            isinstance(item, str)
            and re.search(rf"(?<!\w){re.escape(item)}(?!\w)", message) is not None
        )


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
    text = _strip_quotes(settings.ticket)
    if not text.startswith("@"):
        return text
    return read_ticket(text[1:], sys.stdin)


def _strip_quotes(ticket: SecretStr) -> str:
    """A ticket as somebody wrote it, without quotes around it."""
    return ticket.get_secret_value().strip().strip("'\"")
