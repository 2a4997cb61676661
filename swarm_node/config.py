"""Every setting, in one model: flag > environment variable > TOML file > default.

A key is written `policy.learning_rate` in messages, `[policy] learning_rate` in TOML,
`SWARM_NODE_POLICY__LEARNING_RATE` as a variable and `--set policy.learning_rate=…` on the command
line (the common ones have a flag of their own). Unknown keys and impossible values are refused with
the key's name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_data_path
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from swarm_node.errors import ConfigError
from swarm_node.policy.choices import AdvantageName, LossName
from swarm_node.policy.placement import DEVICE, DtypeName, OptimizerName

ENV_PREFIX = "SWARM_NODE_"
#: Not settings: where the settings file is.
_ENV_OTHER = {"SWARM_NODE_CONFIG"}
#: Tables with keys of the user's own: the stronger source replaces them whole.
_FREE_TABLES = {"datasets", "options"}

Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Text = Annotated[str, Field(min_length=1, max_length=256)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Network(_Table):
    """How the node meets its peers."""

    listen: list[Text] = Field(
        ["/ip4/0.0.0.0/tcp/0"],
        min_length=1,
        max_length=4,
        description="Addresses to listen on; port 0 picks one and keeps it.",
    )
    announce: list[Text] = Field(
        [], max_length=4, description="Addresses to tell peers instead of the ones listened on."
    )
    bootstrap: list[Text] = Field(
        [], max_length=64, description="Peers to dial besides those of the ticket."
    )
    poll_seconds: Seconds = Field(2.0, description="How often a few random peers are listed.")
    heartbeat_seconds: Seconds = Field(20.0, description="How often this node shows itself.")


class EnvironmentTable(_Table):
    """What is trained on."""

    name: Text = Field("reasoning_gym", description="Environment, or module:factory of your own.")
    preset: Text = Field("short", description="Task families by preset: short or sapo.")
    datasets: dict[str, dict[str, Any]] = Field(
        {}, description="Own families: reasoning-gym data set name to its settings."
    )
    families: list[Text] = Field(
        [], max_length=256, description="Families this node samples; empty means all of them."
    )
    scoring: Literal["binary", "native"] = Field("binary", description="Reward scale.")
    options: dict[str, Any] = Field({}, description="What else the environment takes.")


class Sampling(_Table):
    """How completions are drawn."""

    group_size: int = Field(8, ge=2, le=64, description="Completions per task (G).")
    tasks_per_call: int = Field(8, ge=1, le=1024, description="Most tasks sampled in one batch.")
    max_new_tokens: int = Field(24, ge=1, le=32_768, description="Longest completion.")
    temperature: float = Field(1.0, gt=0, le=10, description="Softmax temperature.")
    engine: Literal["torch", "vllm", "auto"] = Field(
        "auto", description="What samples; auto: vLLM where it and CUDA are there, else torch."
    )
    over_provision: float = Field(
        1.0, ge=1, le=4, description="Groups begun for each one awaited; the rest goes on later."
    )
    kv_gib: float = Field(
        0.0, ge=0, le=1024, description="GiB of vLLM's key/value cache; 0: chosen from the model."
    )
    sync: Literal["file", "ipc"] = Field(
        "file", description="How vLLM gets weights: through shared memory, or the GPU's (CUDA IPC)."
    )
    common_share: float = Field(
        0.0, ge=0, le=1, description="Share of tasks that the whole swarm samples and compares."
    )


class Policy(_Table):
    """How the policy is updated."""

    own: int = Field(4, ge=1, le=1024, description="Own groups per update (I).")
    external: Annotated[int, Field(ge=0, le=1024)] | Literal["auto"] = Field(
        4, description='Peers\' groups per update (J); "auto": as many as pay, of 2 * own in all.'
    )
    draw: Literal["uniform", "weighted"] = Field(
        "uniform", description="Which of peers' groups: all alike, or those with more to teach."
    )
    half_life: float = Field(
        0.0, ge=0, le=65_536, description="Updates after which the weighted draw halves; 0: never."
    )
    loss: LossName = Field("decoupled", description="Loss; `swarm-node losses` lists them.")
    advantage: AdvantageName = Field("grpo", description="How rewards become advantages.")
    off_policy_mask: float | None = Field(
        None, gt=0, le=100, description="Leave out bad answers so many nats a token off-policy."
    )
    learning_rate: float = Field(3e-4, gt=0, le=1, description="AdamW learning rate.")
    optimizer: OptimizerName = Field("adamw", description="adamw8bit: its moments in eight bits.")
    dtype: DtypeName = Field(
        "auto", description="Numbers of matrix products; auto: bfloat16 on a GPU, else float32."
    )
    lora_rank: int = Field(0, ge=0, le=1024, description="Rank of LoRA adapters; 0 trains all.")
    activation_checkpointing: bool = Field(
        False, description="Keep fewer activations: less memory, more time, the same gradient."
    )
    max_lag: int = Field(8, ge=0, le=1024, description="Oldest own group, in updates.")
    max_age: int = Field(32, ge=0, le=65_536, description="Oldest peers' group, in updates held.")
    reuse: int = Field(1, ge=1, le=64, description="How often one group may be trained on.")
    filter_own: bool = Field(
        False, description="Drop own groups of equal reward: fuller batches for more sampling."
    )
    correction: Literal["positive", "own", "sampler"] = Field(
        "positive", description="How peers' groups are taken: good ones, all (SAPO), or weighed."
    )


class Run(_Table):
    """How long and how carefully."""

    seed: int = Field(0, ge=0, lt=2**32, description="Seed of this node's choices.")
    updates: int = Field(0, ge=0, description="Stop after this many updates; 0 means never.")
    eval_seconds: Seconds = Field(20.0, description="How often held-out reward is measured.")
    eval_tasks: int = Field(16, ge=1, le=4096, description="Held-out tasks per family.")
    checkpoint_updates: int = Field(50, ge=1, description="Updates between checkpoints.")
    threads: int = Field(1, ge=1, le=256, description="Torch threads of sampler and trainer.")
    device: str = Field(
        "auto",
        pattern=f"^({DEVICE})$",
        description="auto, cpu, cuda or cuda:N; auto: CUDA where torch sees it.",
    )
    trainer_processes: int = Field(
        1, ge=1, le=64, description="Processes that train together, a GPU each."
    )


def default_home() -> Path:
    """Where a node lives unless told otherwise."""
    return user_data_path("swarm-node", appauthor=False)


class Settings(_Table):
    """All settings of one node."""

    home: Path = Field(default_factory=default_home, description="The node's directory.")
    model: Text = Field("tiny", description="tiny, qwen2.5-0.5b, …, a hub id, or a directory.")
    ticket: SecretStr | None = Field(None, description="What `swarm-node invite` printed.")
    ticket_file: Path | None = Field(None, description="File with the ticket; - reads stdin.")
    verbose: bool = Field(False, description="Log every rejection and failed request.")
    network: Network = Network()  # type: ignore[call-arg]
    environment: EnvironmentTable = EnvironmentTable()  # type: ignore[call-arg]
    sampling: Sampling = Sampling()  # type: ignore[call-arg]
    policy: Policy = Policy()  # type: ignore[call-arg]
    run: Run = Run()  # type: ignore[call-arg]


def load_settings(
    flags: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Settings:
    """Merge the sources. `flags` maps dotted keys to values, None meaning "not given".

    Raises:
        ConfigError: an unknown key, an impossible value or an unreadable file, by name.
    """
    environ = os.environ if environ is None else environ
    merged = _read_toml(config or _config_from(environ))
    _merge(merged, _from_environ(environ))
    _merge(merged, _nest({key: value for key, value in flags.items() if value is not None}))
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(error))) from None


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """`["policy.own=6"]` as dotted keys; a value that reads as TOML is TOML, else plain text.

    Raises:
        ConfigError: an item without `=`.
    """
    parsed: dict[str, Any] = {}
    for item in assignments:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set takes KEY=VALUE, such as policy.own=6, not {item!r}")
        parsed[key.strip()] = _parse_value(text)
    return parsed


def settings_keys() -> Iterator[tuple[str, str]]:
    """Every dotted key with its one-line description."""
    for name, field in Settings.model_fields.items():
        table = field.annotation
        if isinstance(table, type) and issubclass(table, _Table):
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


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {key: f"{ENV_PREFIX}{key.upper().replace('.', '__')}" for key, _ in settings_keys()}
    by_variable = {variable: key for key, variable in known.items()}
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in _ENV_OTHER:
            continue
        if variable not in by_variable:
            raise ConfigError(f"unknown setting {variable}; `swarm-node config` lists them all")
        values[by_variable[variable]] = _parse_value(text)
    return _nest(values)


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
    """`policy.own` in two parts, `environment.options.path` in three: below a table of the user's
    own keys, what follows is one of them."""
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
    for item in error.errors(include_url=False, include_input=False):
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            yield f"unknown setting {key}; `swarm-node config` lists them all"
        else:
            yield f"{key}: {item['msg']}"
