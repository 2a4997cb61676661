"""Sources of settings: flag > environment variable > TOML file > home > default.

A key is written `training.learning_rate` in messages, `[training] learning_rate` in TOML,
`SWARM_NODE_TRAINING__LEARNING_RATE` as a variable and `--set training.learning_rate=…` on the
command line (common settings have their own flag). Unknown keys and impossible values are refused
with the key's name.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from swarm_node.config.model import Settings, default_home, describe_accepted_values, settings_keys
from swarm_node.config.remembered import (
    ONE_START,
    UNWRITABLE,
    Origin,
    Remembered,
    change_remembered,
    portable,
    recall,
)
from swarm_node.errors import ConfigError, meant, reason_of

ENV_PREFIX = "SWARM_NODE_"
#: Of a value in a message.
_SHOWN_CHARS: Final = 80
MAX_FILE_BYTES = 64 * 1024
#: Variables that are no settings: the path of the settings file, and the key of `serve`.
_ENV_OTHER = {"SWARM_NODE_CONFIG", "SWARM_NODE_API_KEY"}
#: Source of the values that the home remembers.
HOME_SOURCE = "the data directory"
#: What other programs have beside a temperature.
_TRUNCATIONS: Final = ("sampling.top_p", "sampling.top_k", "sampling.min_p")
_TRUNCATED: Final = (
    "there is no {}: tokens that it leaves out have probability 0, so ratios to later policies are "
    "undefined"
)
#: Tables with keys of the user's own. The stronger source replaces the whole table.
_FREE_TABLES = {"options"}
#: What a home remembers of this key was said of these tasks alone, and goes with them.
_ACCEPTED: Final = "environment.allow_invalid"
_TASKS: Final = ("environment.name", "environment.options")


@dataclass(frozen=True)
class Sources:
    """Sources of settings: `flags` by dotted key (None means "not given"), variables, the file
    `config`, or else the one in SWARM_NODE_CONFIG, and, `with_home`, what the home remembers, but
    for the `forgotten` keys."""

    flags: Mapping[str, Any]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    config: Path | None = None
    with_home: bool = False
    forgotten: set[str] = field(default_factory=set)

    @property
    def file(self) -> Path | None:
        """The settings file; None without one."""
        path = self.config or self.environ.get("SWARM_NODE_CONFIG")
        return Path(path) if path else None

    @property
    def home(self) -> Path:
        """The home that flags, variables or the file name, or the default one.

        Raises:
            ConfigError: see `load`.
        """
        return self._home(self._given_sources(text_of(self.file)))

    def load(self) -> Settings:
        """Read and merge them now.

        Raises:
            ConfigError: an unknown key, an impossible value or an unreadable file; the message
                names it.
        """
        merged_values: dict[str, Any] = {}
        layers = self._named_sources(text_of(self.file))
        for _, values in layers:
            _merge(merged_values, values)
        if self.with_home:
            self._check_remembered(layers)
        return validate(merged_values)

    def origins(self) -> dict[str, str]:
        """The source that decides each key, for keys other than the default: the home, the file,
        the variable, or "command line".

        Raises:
            ConfigError: see `load`.
        """
        layers = self._named_sources(text_of(self.file))
        return {key: source for source, values in layers for key in dotted_keys(values)}

    def overridden(self) -> dict[str, str]:
        """Keys that the file or the home names and a stronger source overrides, with that source:
        the whole name of the file, the variable, or "command line".

        Raises:
            ConfigError: see `load`.
        """
        files, overrides = {HOME_SOURCE, str(self.file)}, dict[str, str]()
        weaker_keys: set[str] = set()
        for source, values in self._named_sources(text_of(self.file)):
            keys = set(dotted_keys(values))
            name = str(self.file.resolve()) if self.file and source == str(self.file) else source
            overrides |= dict.fromkeys(keys & weaker_keys, name)
            weaker_keys |= keys if source in files else set()
        return overrides

    def remembered_values(self) -> dict[str, Remembered]:
        """Return what the home has remembered so far and is in force beside the other sources: a
        settings file that is given now stands for all that came from one before.

        Raises:
            ConfigError: see `recall`.
        """
        return self._read_remembered(self.home)

    def forget(self, keys: Sequence[str]) -> None:
        """Leave out what the home remembers of `keys`; `remember` lets it forget them.

        Raises:
            ConfigError: a key is neither a setting nor remembered; the message names it.
        """
        entries = recall(self.home) if keys else {}
        known_keys = sorted({*(key for key, _ in settings_keys()), *entries})
        for key in keys:
            if key not in known_keys:
                raise ConfigError(
                    f"--forget: unknown setting {key}", *_unknown_setting_remedies(key, known_keys)
                )
        removed_keys = entries.keys() & set(keys)
        self.forgotten.update(removed_keys, _accepted_with(removed_keys))

    def remember(self) -> None:
        """Let the home remember what this start was given by flags and by the file, besides what it
        remembered before.

        Raises:
            ConfigError, HomeError: it cannot be written.
        """
        home = self.home
        removed_keys = recall(home).keys() - self._read_remembered(home).keys()
        entries: dict[str, Remembered | None] = dict.fromkeys(removed_keys)
        (_, in_file), *_, (_, flags) = self._given_sources(text_of(self.file))
        known_keys = {key for key, _ in settings_keys()} - ONE_START
        origins: tuple[tuple[Origin, Mapping[str, Any]], ...]
        origins = (("file", in_file), ("command line", flags))
        for origin, values in origins:
            settings = validate({"home": home, **values})
            keys = known_keys.intersection(dotted_keys(values))  # an empty table is none of them
            entries |= {key: Remembered(portable(settings, key), origin) for key in sorted(keys)}
        change_remembered(home, entries)
        self.forgotten.clear()  # what is set from now on is in force

    def _read_remembered(self, home: Path) -> dict[str, Remembered]:
        old_entries = recall(home)
        entries = {
            key: entry
            for key, entry in old_entries.items()
            if key not in self.forgotten and not (self.file and entry.origin == "file")
        }
        if _ACCEPTED in entries and self._tasks(old_entries, with_overrides=False) != self._tasks(
            entries
        ):
            del entries[_ACCEPTED]
        return entries

    def _tasks(
        self, entries: Mapping[str, Remembered], *, with_overrides: bool = True
    ) -> list[Any]:
        """The environment and its options by what the home remembers and, if `with_overrides`, by
        all that is stronger."""
        merged_values = _nest({key: entries[key].value for key in _TASKS if key in entries})
        for _, values in self._given_sources(text_of(self.file)) if with_overrides else ():
            _merge(merged_values, {"environment": values.get("environment", {})})
        settings = validate(merged_values)
        return [portable(settings, key) for key in _TASKS]

    def _check_remembered(self, layers: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Refuse what the home remembers and this release does not take, unless a stronger source
        decides the key."""
        stronger_keys = {key for _, values in layers[1:] for key in dotted_keys(values)}
        for key, entry in self.remembered_values().items():
            if key not in stronger_keys:
                try:
                    validate({"home": self.home, **_nest({key: entry.value})})
                except ConfigError as error:
                    helps = (*error.remedies, forgetting(self.home, [key]))
                    raise ConfigError(error.cause, *helps) from None

    def _named_sources(self, text: str) -> list[tuple[str, Mapping[str, Any]]]:
        """(name of the source, nested values), the weakest source first."""
        layers = self._given_sources(text)
        if not self.with_home:
            return layers
        entries = self._read_remembered(self._home(layers))
        return [(HOME_SOURCE, _nest({key: entry.value for key, entry in entries.items()})), *layers]

    def _given_sources(self, text: str) -> list[tuple[str, Mapping[str, Any]]]:
        """As `_named_sources`, without the home."""
        layers: list[tuple[str, Mapping[str, Any]]] = [(str(self.file), read_toml(text, self.file))]
        for key, value in _from_environ(self.environ).items():
            layers.append((variable_of(key), _nest({key: _parse_value(value)})))
        flags = {key: value for key, value in self.flags.items() if value is not None}
        return [*layers, ("command line", _nest(flags))]

    def _home(self, layers: Sequence[tuple[str, Mapping[str, Any]]]) -> Path:
        homes = [values["home"] for _, values in layers if "home" in values]
        return validate({"home": homes[-1]}).home if homes else default_home()


def forgetting(home: Path, keys: Sequence[str]) -> str:
    """Say that `home` remembers values of `keys`, and how it forgets them."""
    flags = " ".join(f"--forget {key}" for key in keys)
    return f"remembered in {home}; `swarm-node join {flags}` returns to the default"


def _accepted_with(keys: Iterable[str]) -> set[str]:
    """What a home forgets when these keys change: that the list before was accepted."""
    return {_ACCEPTED} if set(_TASKS).intersection(keys) else set()


def keys_of(changes: Mapping[str, Any]) -> list[str]:
    """The settings' keys of values by dotted key, of which some name one of `options` only."""
    return [*dotted_keys(_nest(changes))]


def set_remembered(home: Path, changes: Mapping[str, Any]) -> None:
    """Let `home` remember `changes`, values by dotted key.

    Raises:
        ConfigError: a key or a value is refused as a start would refuse it, or is for one start.
        HomeError: the home cannot be written.
    """
    values, options_entry = _nest(changes), recall(home).get("environment.options")
    if options_entry is not None and "environment.options" not in changes:
        table = values.get("environment", {})
        if "options" in table:  # one of them is changed
            table["options"] = {**options_entry.value, **table["options"]}
    settings = validate({"home": home, **values})
    keys = keys_of(changes)
    for key in keys:
        if key in UNWRITABLE:
            raise ConfigError(
                f"{key} is not remembered in a data directory", "give it to `swarm-node join`"
            )
    entries: dict[str, Remembered | None] = dict.fromkeys(_accepted_with(keys))
    entries |= {key: Remembered(portable(settings, key), "config set") for key in keys}
    change_remembered(home, entries)


def load_settings(
    flags: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
    with_home: bool = False,
) -> Settings:
    """See `Sources.load`."""
    return Sources(flags, os.environ if environ is None else environ, config, with_home).load()


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """`["experience.local=6"]` as dotted keys. A value that is valid TOML is TOML, else plain text.

    Raises:
        ConfigError: an item without `=`.
    """
    values: dict[str, Any] = {}
    for item in assignments:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise ConfigError(
                f"{item} is no assignment", "write KEY=VALUE, such as experience.local=6"
            )
        values[key.strip()] = _parse_value(text)
    return values


def validate(values: Mapping[str, Any]) -> Settings:
    """Nested values as settings.

    Raises:
        ConfigError: a key is unknown or a value impossible; the message names it.
    """
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise _refusal(error) from None


def text_of(path: Path | None) -> str:
    """Text of a settings file; "" without one.

    Raises:
        ConfigError: it cannot be read, or is too long.
    """
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is longer than {MAX_FILE_BYTES} bytes", "shorten it")
        return raw.decode()
    except OSError as error:
        raise ConfigError(
            f"cannot read the settings file {path}: {reason_of(error)}", "name another --config"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def read_toml(text: str, path: Path | None) -> dict[str, Any]:
    """The values in the text of the file `path`.

    Raises:
        ConfigError: it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def dotted_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """The dotted keys of nested values."""
    for name, value in values.items():
        inner = value if isinstance(value, Mapping) and name != "options" else {}
        yield from (f"{name}.{key}" for key in inner)
        if not inner:
            yield name


def _from_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings among the variables, as text by dotted key."""
    known_keys = [key for key, _ in settings_keys()]
    by_variable = {variable_of(key): key for key in known_keys}
    texts: dict[str, str] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in _ENV_OTHER:
            continue
        if variable not in by_variable:
            raise ConfigError(
                f"unknown setting {variable}",
                *_unknown_setting_remedies(variable, map(variable_of, known_keys)),
            )
        texts[by_variable[variable]] = text
    return texts


def variable_of(key: str) -> str:
    return f"{ENV_PREFIX}{key.upper().replace('.', '__')}"


def _unknown_setting_remedies(name: str, candidates: Iterable[str]) -> list[str]:
    """The remedies for an unknown setting."""
    return meant(name, candidates) or ["`swarm-node config` lists them all"]


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *tables, last = key_parts(key)
        place = tree
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = value
    return tree


def key_parts(key: str) -> list[str]:
    """Split `experience.local` in two parts, `environment.options.path` in three: after a table of
    the user's own keys the rest is one key."""
    table, dot, inner = key.partition(".")
    inner, inner_dot, user_key = inner.partition(".")
    if inner_dot and inner in _FREE_TABLES:
        return [table, inner, user_key]
    return [table, inner + inner_dot + user_key] if dot else [table]


def _merge(base: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    for key, value in overrides.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict) and key not in _FREE_TABLES:
            _merge(base[key], value)
        else:
            base[key] = value


def _refusal(error: ValidationError) -> ConfigError:
    """Say which settings have which values, and what each takes."""
    known_keys = [key for key, _ in settings_keys()]
    causes, remedies = dict[str, str](), dict[str, None]()
    for item in error.errors(include_url=False):
        parts = [str(part) for part in item["loc"]]
        # A setting of several types has their names behind it, and a reason of each.
        prefixes = (".".join(parts[:count]) for count in range(1, len(parts)))
        key = next((prefix for prefix in prefixes if prefix in known_keys), ".".join(parts))
        if item["type"] == "extra_forbidden":
            causes[key] = (
                _TRUNCATED.format(key) if key in _TRUNCATIONS else f"unknown setting {key}"
            )
            helps = (
                ["set sampling.temperature"]
                if key in _TRUNCATIONS
                else _unknown_setting_remedies(key, known_keys)
            )
        elif item["type"] == "value_error":  # which is a sentence of `model`
            causes[key], helps = f"{key}: {item['ctx']['error']}", []
        else:
            value = "this" if key == "ticket" else _format_value(item["input"])  # which is a secret
            causes[key] = f"{key}: {value} is not accepted"
            helps = [f"{key} takes {describe_accepted_values(key)}"]
        remedies |= dict.fromkeys(helps)
    return ConfigError("; ".join(causes.values()), *remedies)


def _format_value(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value, default=str)
    return f"{text[:_SHOWN_CHARS]}…" if len(text) > _SHOWN_CHARS else text
