"""Every setting with its value, default, choices, and the value's source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated as _Annotated
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.console import Group, RenderableType
from rich.markup import escape

from swarm_node.config import Sources, load_settings, settings_keys
from swarm_node.config.model import at_once, field_of, value_of
from swarm_node.config.sources import HOME_SOURCE
from swarm_node.node.home.home import Home, listen_addresses

#: Beside settings that a running node takes over.
AT_ONCE = "No restart."
#: What `config_toml` leaves out.
_NOT_IN_FILES = ("home", "ticket")


class SettingRow(NamedTuple):
    """One setting, as `config` shows it. `source` names the origin of its value. `at_once` says
    that a running node takes over another value. `in_force` is what the node uses in its place, as
    the port that the home keeps for port 0; None without such."""

    name: str
    value: Any
    default: Any
    choices: str
    source: str
    description: str
    at_once: bool
    in_force: Any = None


def explain_settings(
    flags: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
    with_home: bool = False,
) -> list[SettingRow]:
    """Every setting with its value, default, choices and the source of the value.

    Raises:
        ConfigError: as from `load_settings`.
    """
    sources = Sources(flags, os.environ if environ is None else environ, config, with_home)
    settings, origins = sources.load(), sources.origins()
    defaults = load_settings({}, environ={})
    in_force = {}
    if with_home:
        listen = listen_addresses(settings.network.listen, Home(settings.home).kept_port)
        if listen != settings.network.listen:
            in_force["network.listen"] = listen
    return [
        SettingRow(
            name,
            value_of(settings, name),
            value_of(defaults, name),
            _choices(field_of(name)),
            origins.get(name, "default"),
            description,
            at_once(name),
            in_force.get(name),
        )
        for name, description in settings_keys()
    ]


def _choices(field: FieldInfo) -> str:
    """The values a field accepts: "int 1..1024", "float >0..1", "torch | vllm | auto"."""
    return _kind(field.annotation) + _range(field.metadata)


def _range(limits: Sequence[Any]) -> str:
    """Limits as " 1..1024"; "" without limits. If one side has two limits, the narrower counts."""
    lows = [(item.ge, "") for item in limits if hasattr(item, "ge")]
    lows += [(item.gt, ">") for item in limits if hasattr(item, "gt")]
    highs = [(item.le, "") for item in limits if hasattr(item, "le")]
    highs += [(item.lt, "<") for item in limits if hasattr(item, "lt")]
    if not lows and not highs:
        return ""
    low, low_sign = max(lows, default=("", ""))
    high, high_sign = min(highs, key=lambda limit: (limit[0], not limit[1]), default=("", ""))
    return f" {low_sign}{low}..{high_sign}{high}"


def _kind(annotation: Any) -> str:
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, parts))
    if get_origin(annotation) in (list, dict):
        return {list: "list", dict: "table"}[get_origin(annotation)]
    if get_origin(annotation) is _Annotated:
        limits = [limit for info in parts[1:] for limit in getattr(info, "metadata", ())]
        return _kind(parts[0]) + _range(limits)
    if parts:
        return " | ".join(_kind(part) for part in parts if part is not type(None))
    name = str(annotation.__name__)
    return {"SecretStr": "text", "str": "text", "Path": "path"}.get(name, name)


def config_view(keys: Sequence[SettingRow]) -> RenderableType:
    """Two lines per setting, a blank line between tables. Values other than the default are
    bold."""
    lines: list[RenderableType] = []
    table = ""
    for key in keys:
        if key.name.partition(".")[0] != table and "." in key.name:
            lines.append("")
        table = key.name.partition(".")[0]
        parts = [f"{key.name:31}", escape(_format_value(key.value))]
        if key.value != key.default:
            parts[1] = f"[bold]{parts[1]}[/]"
            parts.append(f"(default {escape(_format_value(key.default))}; {escape(key.source)})")
        if key.in_force is not None:
            parts.append(f"(in force {escape(_format_value(key.in_force))}; {HOME_SOURCE})")
        parts.append(f"  [cyan]{escape(key.choices)}[/]")
        sentence = f"{key.description} {AT_ONCE}" if key.at_once else key.description
        lines += [" ".join(parts), f"    [dim]{escape(sentence)}[/]"]
    return Group(*lines)


def config_rows(keys: Sequence[SettingRow]) -> list[dict[str, Any]]:
    """The rows of `config_view`, for programs."""
    return [
        {**key._asdict(), "value": _plain(key.value), "default": _plain(key.default)}
        for key in keys
    ]


def config_toml(keys: Sequence[SettingRow]) -> str:
    """A settings file to start from: every setting with its meaning, and those that nothing sets as
    comments. `home` and the ticket, which is a secret, are left out."""
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment("Settings of swarm-node: swarm-node join --config FILE"))
    place: Any = document
    for key in keys:
        table, _, name = key.name.rpartition(".")
        if table and table not in document:
            place = document[table] = tomlkit.table()
        if key.name in _NOT_IN_FILES:
            continue
        place.add(tomlkit.nl())
        place.add(tomlkit.comment(f"{key.description} [{key.choices}]"))
        value = _toml(key.value)
        if key.source == "default":
            text = "" if key.value is None else f" {value.as_string()}"
            place.add(tomlkit.comment(f"{name} ={text}"))
        else:
            place.add(name, value)
    return tomlkit.dumps(document)


def _toml(value: Any) -> Any:
    """A value as TOML has it in one line."""
    import tomlkit

    if not isinstance(value, dict):
        return tomlkit.item("" if value is None else _plain(value))
    inline = tomlkit.inline_table()
    for name, inner in value.items():
        inline.append(name, _toml(inner))
    return inline


def _format_value(value: Any) -> str:
    data = _plain(value)
    return "-" if data is None or data in ("", [], {}) else str(data)


def _plain(value: Any) -> Any:
    """A value that JSON can hold; a secret stays masked."""
    if value is None or isinstance(value, bool | int | float | str | list | dict):
        return value
    return str(value)
