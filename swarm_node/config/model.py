"""Every setting in one model: its type, its limits, its default and its line of help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from platformdirs import user_data_path
from pydantic import BaseModel, ConfigDict, Field, JsonValue, SecretStr, field_validator
from pydantic.fields import FieldInfo

from swarm_node.errors import ConfigError
from swarm_node.p2p.addresses.addresses import COORDINATOR_URL
from swarm_node.policy.choices import AdvantageName, LossName
from swarm_node.policy.placement import DEVICE, HOSTS, DtypeName, OptimizerName

_KINDS = {
    **{"int": "a whole number", "float": "a number", "bool": "true or false"},
    **{"list": "a list of texts", "Path": "a path"},
}
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Text = Annotated[str, Field(min_length=1, max_length=256)]
#: Marks a field that a running node takes over. `Node.adopt` applies it.
_AT_ONCE: dict[str, JsonValue] = {"at_once": True}


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Network(Table):
    """Transport, addresses and limits of the exchange with peers."""

    backend: Literal["hivemind", "libp2p"] = Field(
        "hivemind", description="Network backend (docs/networking.md); a swarm can mix both."
    )
    listen: list[Text] = Field(
        ["/ip4/0.0.0.0/tcp/0"],
        min_length=1,
        max_length=4,
        description="Addresses to listen on; port 0 picks one and keeps it.",
    )
    advertise: list[Text] = Field(
        [], max_length=4, description="Addresses to advertise to peers instead of `listen`."
    )
    bootstrap: list[Text] = Field(
        [], max_length=64, description="Peers to connect to besides those of the ticket."
    )
    poll_seconds: Seconds = Field(
        2.0,
        le=30,  # peers refuse a heartbeat after fifteen minutes: members.MAX_HEAD_SECONDS
        description="Seconds between polls for new groups; ten times as long between heartbeats.",
    )
    coordinator: str = Field(
        "", pattern=rf"^({COORDINATOR_URL})?$", description="URL of a coordinator to ask for peers."
    )
    relay: Literal["auto", "off", "serve"] = Field(
        "auto",
        description="Relay for members behind NAT; auto: if peers can connect to this node.",
        json_schema_extra=_AT_ONCE,
    )


class EnvironmentTable(Table):
    """Source of the tasks to train on."""

    name: Text = Field("drills", description="Environment, or module:factory of your own.")
    families: list[Text] = Field(
        [], max_length=256, description="Families this node samples; empty means all of them."
    )
    options: dict[str, Any] = Field(
        {},
        description="Its options: preset, families, datasets, path, … (docs/environments.md)",
    )
    allow_invalid: bool = Field(
        False, description="Accept tasks although over 1% of reference answers do not score 1."
    )

    @field_validator("options")
    @classmethod
    def _is_text(cls, options: dict[str, Any]) -> dict[str, Any]:
        for text in _texts_in(options):
            # The name of a file that is no UTF-8, which no environment can be sent.
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError(f"{text!a} is no UTF-8: rename the file, or say it otherwise")
        return options


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _texts_in(item)


class Sampling(Table):
    """Sampling of completions."""

    group_size: int = Field(4, ge=2, le=64, description="Completions per task (G); pretrained: 8.")
    max_concurrent_groups: int = Field(
        16,
        ge=1,
        le=1024,
        description="Most groups sampled at once; pretrained: 4, on a GPU 8 to 16.",
    )
    max_new_tokens: int = Field(
        24,
        ge=1,
        le=32_768,
        description="Longest completion, in tokens; pretrained: 512, with preset graded 24.",
    )
    temperature: float = Field(
        1.0, gt=0, le=10, description="Softmax temperature; a pretrained model: 0.7."
    )
    engine: Literal["torch", "vllm", "auto"] = Field(
        "auto", description="The engine; auto: vLLM if it and CUDA are available, else torch."
    )


class Experience(Table):
    """Choice of the groups in a batch."""

    local: int = Field(
        4, ge=1, le=1024, description="Local groups per step (I); pretrained, on a CPU: 2."
    )
    external: Annotated[int, Field(ge=0, le=1024)] | Literal["auto"] = Field(
        "auto",
        description="External groups per step (J); auto: by peers' offers, 2 * local in all.",
    )
    replay: int = Field(
        0,
        ge=0,
        le=1024,
        description="Local groups of the last 32 steps to train on again per step.",
    )
    max_staleness: int = Field(
        8, ge=0, le=1024, description="Largest staleness of a local group, in versions."
    )
    external_correction: Literal["positive_only", "none", "importance_sampling"] = Field(
        "positive_only",
        description="External rollouts to train on: positive advantage; all (SAPO); all, weighted.",
    )


class Training(Table):
    """Loss, optimizer and resources of the policy's updates."""

    loss: LossName = Field("decoupled", description="Loss; `swarm-node losses` lists them.")
    advantage: AdvantageName = Field("grpo", description="How rewards become advantages.")
    learning_rate: float = Field(
        3e-4,
        gt=0,
        le=1,
        description="AdamW rate; pretrained: LoRA 1e-5, full 1e-6; ten times that under 300M.",
    )
    lr_decay_steps: int = Field(
        0,
        ge=0,
        description="Steps of a cosine decay to a tenth of the learning rate; 0: constant.",
    )
    optimizer: OptimizerName = Field("adamw", description="adamw8bit: moments in eight bits.")
    dtype: DtypeName = Field(
        "auto",
        description="dtype of matrix products; auto: the fastest here (on a CPU, as measured).",
    )
    lora_rank: int = Field(
        0,
        ge=0,
        le=1024,
        description="LoRA rank; 0: full. Unset, pretrained: 0 if it fits, else 32; on a CPU 16.",
    )
    base: Literal["auto", "whole", "nf4", "own"] = Field(
        "auto",
        description="LoRA's base: whole, nf4 (4-bit), auto (nf4 if needed), own (auto, unshared).",
    )


class Run(Table):
    """Length, evaluation and checkpoint intervals, device and processes."""

    seed: int = Field(0, ge=0, lt=2**32, description="Seed of this node's choices.")
    max_steps: int = Field(
        0,
        ge=0,
        description="Stop after this many steps; 0: never.",
        json_schema_extra=_AT_ONCE,
    )
    eval_seconds: Seconds = Field(
        20.0,
        description="Seconds between two measurements of the eval reward.",
        json_schema_extra=_AT_ONCE,
    )
    eval_tasks: int = Field(
        16,
        ge=1,
        le=4096,
        description="Held-out prompts per family that the eval reward is measured on.",
        json_schema_extra=_AT_ONCE,
    )
    save_steps: int = Field(
        50,
        ge=1,
        description="Steps between checkpoints; one is also due after two minutes.",
        json_schema_extra=_AT_ONCE,
    )
    threads: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        "auto",
        description="Torch threads of sampler and trainer each; auto: half the cores; tiny: 1.",
    )
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
        description="HOST:PORT*K: rendezvous of K hosts that train together; empty: this one only.",
    )

    track: Literal["", "tensorboard", "wandb", "trackio"] = Field(
        "", description="Also log metrics to tensorboard, wandb or trackio; empty: to no tracker."
    )

    @property
    def hosts(self) -> int:
        """Number of hosts that train together."""
        return int(self.trainer_hosts.partition("*")[2] or 1)

    @property
    def ranks(self) -> int:
        """Processes that train together, on all hosts."""
        return self.trainer_processes * self.hosts


def usual_home() -> Path | None:
    """The directory of a node that names no other. None if neither HOME nor passwd knows the user's
    own directory."""
    try:
        return user_data_path("swarm-node", appauthor=False)
    except RuntimeError:
        return None


def named_home(home: Path) -> Path | None:
    """`home` if commands have to name it, None for the usual one."""
    return None if home == usual_home() else home


def default_home() -> Path:
    """`usual_home`, for whoever needs one.

    Raises:
        ConfigError: there is none.
    """
    home = usual_home()
    if home is None:
        raise ConfigError(
            "home: this user has no home directory (HOME is not set)",
            "name the node's directory with --home or SWARM_NODE_HOME",
        )
    return home


class Settings(Table):
    """All settings of one node."""

    home: Path = Field(default_factory=default_home, description="The data directory.")
    model: Text = Field(
        "tiny",
        description="tiny, tiny-talk, qwen2.5-0.5b, …, a hub id, a directory or a GGUF file.",
    )
    ticket: SecretStr | None = Field(
        None, description="A ticket; better @FILE, which reads it from a file (@-: standard input)."
    )
    verbose: bool = Field(
        False,
        description="Log every rejection and failed request, and at most one step a second.",
        json_schema_extra=_AT_ONCE,
    )
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="Output of join; auto: a live view on a terminal, else text."
    )
    network: Network = Network()  # type: ignore[call-arg]
    environment: EnvironmentTable = EnvironmentTable()  # type: ignore[call-arg]
    sampling: Sampling = Sampling()  # type: ignore[call-arg]
    experience: Experience = Experience()  # type: ignore[call-arg]
    training: Training = Training()  # type: ignore[call-arg]
    run: Run = Run()  # type: ignore[call-arg]


def settings_keys() -> Iterator[tuple[str, str]]:
    """Every dotted key with its one-line description."""
    for name, field in Settings.model_fields.items():
        table = field.annotation
        if isinstance(table, type) and issubclass(table, Table):
            for inner, inner_field in table.model_fields.items():
                yield f"{name}.{inner}", inner_field.description or ""
        else:
            yield name, field.description or ""


def public_values(settings: Settings) -> dict[str, Any]:
    """Every key with its value as JSON has it, without the ticket, which is a secret."""
    dumped = settings.model_dump(mode="json", exclude={"ticket"})
    values: dict[str, Any] = {}
    for key, _ in settings_keys():
        table, _, inner = key.partition(".")
        if table in dumped:
            values[key] = dumped[table][inner] if inner else dumped[table]
    return values


def field_of(key: str) -> FieldInfo:
    """The field of a dotted key."""
    table, _, inner = key.partition(".")
    field = Settings.model_fields[table]
    model = field.annotation
    if inner and isinstance(model, type) and issubclass(model, Table):
        return model.model_fields[inner]
    return field


def describe_accepted_values(key: str) -> str:
    """Say which values a dotted key takes: "a whole number from 1 to 1024, or auto"."""
    field = field_of(key)
    if any(getattr(item, "pattern", None) for item in field.metadata):
        return f"this: {(field.description or '').rstrip('.')}"
    return _values(field.annotation, field.metadata)


def _values(annotation: Any, limits: Sequence[Any]) -> str:
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        *literals, last = map(str, parts)
        return f"{', '.join(literals)} or {last}" if literals else last
    if get_origin(annotation) is Annotated:
        inner = [limit for info in parts[1:] for limit in getattr(info, "metadata", ())]
        return _values(parts[0], [*limits, *inner])
    if get_origin(annotation) in (list, dict) or not parts:
        name = getattr(get_origin(annotation) or annotation, "__name__", "")
        table = name == "dict" or (isinstance(annotation, type) and issubclass(annotation, Table))
        return ("a table" if table else _KINDS.get(name, "a text")) + _within(limits)
    return ", or ".join(_values(part, limits) for part in parts if part is not type(None))


def _within(limits: Sequence[Any]) -> str:
    """Limits in words; "" without limits. If one side has two, the narrower counts."""

    def those(name: str) -> list[Any]:
        return [getattr(item, name) for item in limits if getattr(item, name, None) is not None]

    low, high, lengths = those("ge"), those("le"), those("max_length")
    high += [end - 1 for end in those("lt")]
    if low and high:
        return f" from {max(low):,} to {min(high):,}"
    parts = [f"{max(low):,} or more"] if low else []
    parts += [f"above {bound:,}" for bound in those("gt")]
    parts += [f"at most {min(high):,}"] if high else []
    parts += [f"at most {min(lengths):,} long"] if lengths else []
    return f", {', '.join(parts)}" if parts else ""


def value_of(settings: Settings, key: str) -> Any:
    """The value of a dotted key."""
    table, _, inner = key.partition(".")
    value = getattr(settings, table)
    return getattr(value, inner) if inner else value


def at_once(key: str) -> bool:
    """Check that a running node can take over another value. Other keys need a restart."""
    return field_of(key).json_schema_extra is _AT_ONCE


def differing(old_settings: Settings, new_settings: Settings) -> list[str]:
    """The keys whose values differ."""
    return [
        key
        for key, _ in settings_keys()
        if value_of(old_settings, key) != value_of(new_settings, key)
    ]


def with_values(settings: Settings, source: Settings, keys: Iterable[str]) -> Settings:
    """`settings` with the values that `source` has for `keys`."""
    for key in keys:
        value, (table, _, inner) = value_of(source, key), key.partition(".")
        if inner:
            value = getattr(settings, table).model_copy(update={inner: value})
        settings = settings.model_copy(update={table: value})
    return settings
