"""Every setting, in one model: flag > environment variable > TOML file > default.

A key is written `training.learning_rate` in messages, `[training] learning_rate` in TOML,
`SWARM_NODE_TRAINING__LEARNING_RATE` as a variable and `--set training.learning_rate=…` on the
command line (common settings have their own flag). Unknown keys and impossible values are refused
with the key's name, retired keys with their replacement.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_data_path
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from swarm_node.errors import ConfigError
from swarm_node.p2p.addresses import COORDINATOR_URL
from swarm_node.policy.choices import AdvantageName, LossName
from swarm_node.policy.placement import DEVICE, HOSTS, DtypeName, OptimizerName

ENV_PREFIX = "SWARM_NODE_"
#: Variables that are no settings: the path of the settings file.
_ENV_OTHER = {"SWARM_NODE_CONFIG"}
#: Tables with keys of the user's own. The stronger source replaces the whole table.
_FREE_TABLES = {"options"}
#: Keys of earlier versions, and what replaces each.
RETIRED: Mapping[str, str] = {
    **{
        f"policy.{key}": f"use {table}.{key}"
        for table, keys in (
            ("experience", "own external max_lag max_age filter_own correction"),
            ("training", "loss advantage learning_rate optimizer dtype lora_rank"),
        )
        for key in keys.split()
    },
    **dict.fromkeys(
        ("policy.activation_checkpointing", "training.activation_checkpointing"),
        "activations are recomputed where the memory is too small to keep them (docs/models.md)",
    ),
    **dict.fromkeys(("policy.reuse", "experience.reuse"), "every group is trained on once"),
    "policy.draw": "peers' groups are drawn uniformly: weights gained nothing (docs/mixture.md)",
    "policy.half_life": "peers' groups are drawn uniformly: weights gained nothing",
    "policy.off_policy_mask": "no experiment gained by it (docs/experiments.md)",
    "environment.preset": "use environment.options.preset",
    "environment.datasets": "use environment.options.datasets",
    "environment.scoring": "use environment.options.scoring",
    "network.heartbeat_seconds": "a node publishes a heartbeat every ten network.poll_seconds",
    "sampling.over_provision": "vLLM begins 1.5 groups per group awaited (docs/engines.md)",
    "sampling.sync": "vLLM reads weights in the GPU's memory if two copies fit, else files",
    "sampling.kv_gib": "it follows from the model and the number of answers at once",
    "ticket_file": 'use ticket = "@FILE", or --ticket-file',
}

Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Text = Annotated[str, Field(min_length=1, max_length=256)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Network(Table):
    """How the node meets its peers."""

    stack: Literal["hivemind", "libp2p"] = Field(
        "hivemind", description="What carries the streams (docs/networking.md); one swarm has both."
    )
    listen: list[Text] = Field(
        ["/ip4/0.0.0.0/tcp/0"],
        min_length=1,
        max_length=4,
        description="Addresses to listen on; port 0 picks one and keeps it.",
    )
    announce: list[Text] = Field(
        [], max_length=4, description="Addresses to tell peers instead of `listen`."
    )
    bootstrap: list[Text] = Field(
        [], max_length=64, description="Peers to dial besides those of the ticket."
    )
    poll_seconds: Seconds = Field(
        2.0,
        le=30,  # peers refuse a heartbeat after fifteen minutes: members.MAX_HEAD_SECONDS
        description="Seconds between lists of random peers; a heartbeat every tenth time.",
    )
    coordinator: str = Field(
        "", pattern=rf"^({COORDINATOR_URL})?$", description="URL of a coordinator to ask for peers."
    )
    relay: Literal["auto", "off", "serve"] = Field(
        "auto", description="Forward requests for members behind NAT; auto: if peers can dial us."
    )


class EnvironmentTable(Table):
    """Which tasks are trained on."""

    name: Text = Field("reasoning_gym", description="Environment, or module:factory of your own.")
    families: list[Text] = Field(
        [], max_length=256, description="Families this node samples; empty means all of them."
    )
    options: dict[str, Any] = Field(
        {},
        description="Options of the environment: preset (short, chat, sapo), datasets, path, …",
    )


class Sampling(Table):
    """How completions are drawn."""

    group_size: int = Field(4, ge=2, le=64, description="Completions per task (G); pretrained: 8.")
    tasks_per_call: int = Field(16, ge=1, le=1024, description="Most tasks a batch; pretrained: 8.")
    max_new_tokens: int = Field(
        24, ge=1, le=32_768, description="Longest completion; a pretrained model: 512."
    )
    temperature: float = Field(1.0, gt=0, le=10, description="Softmax temperature.")
    engine: Literal["torch", "vllm", "auto"] = Field(
        "auto", description="The engine; auto: vLLM if it and CUDA are available, else torch."
    )
    common_share: float = Field(
        0.0, ge=0, le=1, description="Share of tasks that all nodes of the swarm sample in common."
    )


class Experience(Table):
    """Which groups are trained on."""

    own: int = Field(8, ge=1, le=1024, description="Own groups per update (I); pretrained: 4.")
    external: Annotated[int, Field(ge=0, le=1024)] | Literal["auto"] = Field(
        "auto", description="Peers' groups per update (J); auto: by offers, I + J = 2 * own."
    )
    max_lag: int = Field(8, ge=0, le=1024, description="Largest lag of an own group, in versions.")
    max_age: int = Field(
        32,
        ge=0,
        le=65_536,
        description="Largest age of a peer's group, in updates since it arrived.",
    )
    filter_own: bool = Field(False, description="Drop own groups of equal rewards: more sampling.")
    correction: Literal["positive", "own", "sampler"] = Field(
        "positive", description="Peers' answers: good ones, all (SAPO), or weighted."
    )


class Training(Table):
    """How the policy is updated."""

    loss: LossName = Field("decoupled", description="Loss; `swarm-node losses` lists them.")
    advantage: AdvantageName = Field("grpo", description="How rewards become advantages.")
    learning_rate: float = Field(
        3e-4,
        gt=0,
        le=1,
        description="AdamW learning rate; a pretrained model: 1e-5 for adapters, 1e-6 for all.",
    )
    optimizer: OptimizerName = Field("adamw", description="adamw8bit: moments in eight bits.")
    dtype: DtypeName = Field(
        "auto", description="Type in matrix products; auto: bfloat16 on a GPU, else float32."
    )
    lora_rank: int = Field(
        0, ge=0, le=1024, description="LoRA rank; 0 trains all; unset: all if they fit, else 32."
    )
    base: Literal["auto", "whole", "nf4"] = Field(
        "auto",
        description="Frozen base of adapters; nf4: 4 bits a weight; auto: if nothing else fits.",
    )


class Run(Table):
    """How long a node runs, where, and how often it measures and saves."""

    seed: int = Field(0, ge=0, lt=2**32, description="Seed of this node's choices.")
    updates: int = Field(0, ge=0, description="Stop after this many updates; 0 means never.")
    eval_seconds: Seconds = Field(
        20.0, description="Seconds between measurements of held-out reward."
    )
    eval_tasks: int = Field(16, ge=1, le=4096, description="Held-out tasks per family.")
    checkpoint_updates: int = Field(50, ge=1, description="Updates between checkpoints.")
    threads: int = Field(1, ge=1, le=256, description="Torch threads of sampler and trainer.")
    device: str = Field(
        "auto",
        pattern=f"^({DEVICE})$",
        description="auto, cpu, cuda or cuda:N; auto: CUDA where torch sees it.",
    )
    trainer_processes: int = Field(
        1, ge=1, le=64, description="Processes that train together, each with a GPU."
    )
    trainer_hosts: str = Field(
        "",
        pattern=f"^({HOSTS})$",
        description="HOST:PORT*K: K hosts train together and meet here; none: this one alone.",
    )

    @property
    def hosts(self) -> int:
        """How many train together."""
        return int(self.trainer_hosts.partition("*")[2] or 1)

    @property
    def ranks(self) -> int:
        """Processes that train together, on all hosts."""
        return self.trainer_processes * self.hosts


def default_home() -> Path:
    """The default directory of a node."""
    return user_data_path("swarm-node", appauthor=False)


class Settings(Table):
    """All settings of one node."""

    home: Path = Field(default_factory=default_home, description="The node's directory.")
    model: Text = Field("tiny", description="tiny, qwen2.5-0.5b, …, a hub id, or a directory.")
    ticket: SecretStr | None = Field(
        None, description="A ticket; better @FILE, which reads it from a file (@-: the input)."
    )
    verbose: bool = Field(False, description="Log every rejection and failed request.")
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="What join writes; auto: a live view on a terminal, text elsewhere."
    )
    network: Network = Network()  # type: ignore[call-arg]
    environment: EnvironmentTable = EnvironmentTable()  # type: ignore[call-arg]
    sampling: Sampling = Sampling()  # type: ignore[call-arg]
    experience: Experience = Experience()  # type: ignore[call-arg]
    training: Training = Training()  # type: ignore[call-arg]
    run: Run = Run()  # type: ignore[call-arg]


def load_settings(
    flags: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Settings:
    """Merge the sources. `flags` maps dotted keys to values; None means "not given".

    Raises:
        ConfigError: an unknown or retired key, an impossible value or an unreadable file; the
            message names it.
    """
    environ = os.environ if environ is None else environ
    merged: dict[str, Any] = {}
    for _, values in sources(flags, environ, config):
        _merge(merged, values)
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(error))) from None


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """`["experience.own=6"]` as dotted keys. A value that is valid TOML is TOML, else plain text.

    Raises:
        ConfigError: an item without `=`.
    """
    parsed: dict[str, Any] = {}
    for item in assignments:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set takes KEY=VALUE, such as experience.own=6, not {item!r}")
        parsed[key.strip()] = _parse_value(text)
    return parsed


def settings_keys() -> Iterator[tuple[str, str]]:
    """Every dotted key with its one-line description."""
    for name, field in Settings.model_fields.items():
        table = field.annotation
        if isinstance(table, type) and issubclass(table, Table):
            for inner, inner_field in table.model_fields.items():
                yield f"{name}.{inner}", inner_field.description or ""
        else:
            yield name, field.description or ""


def _config_from(environ: Mapping[str, str]) -> Path | None:
    named = environ.get("SWARM_NODE_CONFIG")
    return Path(named) if named else None


def _read_toml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def sources(
    flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name of the source, nested values), the weakest source first."""
    file = config or _config_from(environ)
    yield str(file), _checked(_read_toml(file))
    variables = _from_environ(environ)
    for key, text in variables.items():
        yield variable_of(key), _checked(_nest({key: _parse_value(text)}))
    given = {key: value for key, value in flags.items() if value is not None}
    yield "command line", _checked(_nest(given))


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """`values`, if none of its keys is retired.

    Raises:
        ConfigError: one is retired.
    """
    for key in dotted_keys(values):
        if key in RETIRED:
            raise ConfigError(f"{key} is gone: {RETIRED[key]}")
    return values


def dotted_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """The dotted keys of nested values."""
    for name, value in values.items():
        inner = value if isinstance(value, Mapping) and name != "options" else {}
        yield from (f"{name}.{key}" for key in inner)
        if not inner:
            yield name


def _from_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings among the variables, as text by dotted key."""
    known = [key for key, _ in settings_keys()]
    by_variable = {variable_of(key): key for key in (*known, *RETIRED)}
    found: dict[str, str] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in _ENV_OTHER:
            continue
        if variable not in by_variable:
            raise ConfigError(_unknown(variable, map(variable_of, known)))
        found[by_variable[variable]] = text
    return found


def variable_of(key: str) -> str:
    return f"{ENV_PREFIX}{key.upper().replace('.', '__')}"


def _unknown(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f": did you mean {close[0]}?" if close else "; `swarm-node config` lists them all"
    return f"unknown setting {name}{hint}"


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *tables, last = _key_parts(key)
        place = nested
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = value
    return nested


def _key_parts(key: str) -> list[str]:
    """`experience.own` in two parts, `environment.options.path` in three: the rest after a table of
    the user's own keys is one key."""
    table, dot, inner = key.partition(".")
    inner, inner_dot, own = inner.partition(".")
    if inner_dot and inner in _FREE_TABLES:
        return [table, inner, own]
    return [table, inner + inner_dot + own] if dot else [table]


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict) and key not in _FREE_TABLES:
            _merge(base[key], value)
        else:
            base[key] = value


def _explain(error: ValidationError) -> Iterator[str]:
    known = [key for key, _ in settings_keys()]
    for item in error.errors(include_url=False, include_input=False):
        key = ".".join(str(part) for part in item["loc"] if "[" not in str(part))
        if item["type"] == "extra_forbidden":
            yield _unknown(key, known)
        else:
            yield f"{key}: {item['msg'][:1].lower()}{item['msg'][1:]}"
