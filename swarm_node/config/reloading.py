"""Read a running node's settings again, and take over those that need no restart."""

from __future__ import annotations

import structlog
from msgspec import Struct

from swarm_node.config.model import Settings, at_once, differing, with_values
from swarm_node.config.sources import Sources
from swarm_node.errors import ConfigError

_log = structlog.get_logger(__name__)


class Reloaded(Struct, frozen=True):
    """Result of a reload: keys `applied`, and keys whose new values are `pending` a restart. `file`
    is the settings file ("" for none). Other sources override its keys in `overridden`."""

    file: str
    applied: list[str]
    pending: list[str]
    overridden: dict[str, str]


class Reloading:
    """`settings` are those with which the node began, as `sources` gave them."""

    def __init__(self, sources: Sources, settings: Settings) -> None:
        self._sources = sources
        self._settings = settings

    def reload(self, settings: Settings) -> tuple[Settings, Reloaded]:
        """Return `settings`, those in use, with the values that can be taken over; and the report.

        Raises:
            ConfigError: a start with what the sources say now would be refused. Nothing changes.
        """
        try:
            new_settings, overrides = self._sources.load(), self._sources.overridden()
        except ConfigError as error:
            _log.warning("the settings were not changed", error=str(error))
            raise
        changed_keys = differing(self._settings, new_settings)
        applied_keys = [key for key in changed_keys if at_once(key)]
        pending_keys = [key for key in changed_keys if key not in applied_keys]
        self._settings = with_values(self._settings, new_settings, applied_keys)
        _log.info(
            "settings read again", applied=",".join(applied_keys), pending=",".join(pending_keys)
        )
        file = str(self._sources.file.resolve()) if self._sources.file else ""
        return with_values(settings, new_settings, applied_keys), Reloaded(
            file, applied_keys, pending_keys, overrides
        )
