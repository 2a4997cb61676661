"""Every setting of a node (`model`), and the sources that name one (`sources`)."""

from swarm_node.config.model import (
    Sampling,
    Settings,
    Table,
    default_home,
    named_home,
    settings_keys,
)
from swarm_node.config.sources import Sources, load_settings, parse_assignments

__all__ = [
    "Sampling",
    "Settings",
    "Sources",
    "Table",
    "default_home",
    "load_settings",
    "named_home",
    "parse_assignments",
    "settings_keys",
]
