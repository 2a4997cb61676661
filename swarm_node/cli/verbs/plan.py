"""`swarm-node plan`: check that a model fits on a GPU, and show how `join` would use the GPU.

Cheap to import, so that `--help` is quick.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm_node.cli.options import AssignOption, ConfigOption, FactsOption, JsonOption
from swarm_node.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from swarm_node.cli.views.plan_view import PlannedCard
    from swarm_node.config import Settings
    from swarm_node.policy.models.config import ModelConfig
    from swarm_node.policy.planning.fit import Machine

CARDS = (8, 12, 16, 24, 80)
_SCHEMA = 1
_GIB = 1 << 30
_MOST_GIB = 4096
_VRAM = re.compile(
    r"(?P<number>\d{1,9}(\.\d{1,6})?)\s*(?P<unit>gb|gib|g|mb|mib|m)?", re.ASCII | re.IGNORECASE
)


def plan(
    model: Annotated[
        str | None,
        typer.Option(help="tiny, qwen2.5-0.5b …, a directory or a GGUF file."),
    ] = None,
    vram: Annotated[
        str | None,
        typer.Option(help="Memory of one GPU, such as 12GB; default: what is free here."),
    ] = None,
    facts: FactsOption = None,
    assign: AssignOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Check whether a model fits on a GPU, and how `join` would use it.

    Sampler and trainer share the GPU. Their memory is estimated from the model's
    shape: weights of both, gradients and optimizer moments, the sampler's KV
    cache, and the activations of a micro-batch.

    `join` picks the first plan that fits: full fine-tuning before LoRA, a
    full-precision base before a 4-bit one, more concurrent sequences before
    fewer, stored activations before recomputed ones, large micro-batches before
    small ones. It never overrides your settings. The exit code is 1 if none fits.

    Without --vram, it plans for the machine in a file of `doctor --json`
    (--facts), for the free memory of this machine's GPU, or, without a GPU, for
    GPUs of 8, 12, 16, 24 and 80 GB. Nothing is downloaded.

    Short model names: tiny, tiny-talk, smollm2-135m, -360m, -1.7b,
    llama3.2-1b, -3b, qwen2.5-0.5b, -1.5b, -3b, -7b, qwen3-0.6b, -1.7b, -4b, -8b;
    with -base appended, the models without instruction tuning.

    Try: swarm-node plan --model qwen2.5-1.5b --vram 12GB
    """
    memory = None if vram is None else parse_vram(vram)
    settings = _load_settings(model, assign, config)
    from swarm_node.cli.views.plan_view import PlannedCard
    from swarm_node.environments.presets import prompt_bytes, try_environment
    from swarm_node.node.preflight.defaults import demand_of, for_model
    from swarm_node.policy.planning.demand import Lengths
    from swarm_node.policy.planning.fit import decide

    shape = shape_of(settings.model)
    settings = for_model(settings, shape)
    machines = _machines(settings, memory, facts)
    name, options = settings.environment.name, settings.environment.options
    trial = try_environment(name, options, asks=True)
    lengths = Lengths(trial.turns, prompt_bytes(trial, options))
    demand = demand_of(settings, shape, lengths)
    cards = [PlannedCard(machine, decide(demand, machine)) for machine in machines]
    if json:
        from swarm_node.cli.home import json_of

        typer.echo(json_of(_plain(settings.model, shape, cards)))
    else:
        _show(settings.model, shape, cards)
    if all(card.decision.fit is None for card in cards):
        raise typer.Exit(1)


def _load_settings(model: str | None, assign: list[str] | None, config: Path | None) -> Settings:
    """Load the settings, and check that their model and environment exist.

    Raises:
        ConfigError, ModelError: one does not.
    """
    from swarm_node.config import load_settings, parse_assignments
    from swarm_node.environments.registry import require_environment
    from swarm_node.policy.models.model import require_model

    settings = load_settings({"model": model, **parse_assignments(assign or [])}, config=config)
    require_model(settings.model)
    require_environment(settings.environment.name, settings.environment.options)
    return settings


def _show(name: str, shape: ModelConfig, cards: Sequence[PlannedCard]) -> None:
    from rich.console import Console

    from swarm_node.cli.views.plan_view import card_view, cards_view
    from swarm_node.policy.models.gguf.directory import gguf_model
    from swarm_node.policy.models.gguf.file import is_gguf

    is_single = len(cards) == 1
    view = card_view(name, shape, *cards) if is_single else cards_view(name, shape, cards)
    # Outside a terminal, lines are wide enough not to wrap.
    Console(width=None if Console().is_terminal else 150, highlight=False).print(view)
    if is_gguf(name):
        typer.echo(f"\n{gguf_model(Path(name).expanduser())[1]}.")


def shape_of(name: str) -> ModelConfig:
    """The shape of a model by name, without network.

    Raises:
        ModelError: the model is neither known nor on this machine, or its config.json is unusable.
    """
    from swarm_node.policy.models.by_transformers.config import read_config
    from swarm_node.policy.models.gguf.directory import gguf_model
    from swarm_node.policy.models.gguf.file import is_gguf
    from swarm_node.policy.models.model import SHIPPED, no_model, of_hub, resolve
    from swarm_node.policy.models.shapes import known_shape

    path = Path(name).expanduser()
    shape = None if path.is_dir() else known_shape(name)
    if shape is not None:
        return shape
    if is_gguf(name):
        return gguf_model(path)[0]
    if of_hub(name) is not None:
        raise ModelError(
            f"the shape of {name} is not known offline: download its config.json and give the "
            "directory (`--model DIRECTORY`)"
        )
    if name not in SHIPPED and not (path / "config.json").is_file():
        raise no_model(name, path)
    return read_config(resolve(name) if name in SHIPPED else path)


def parse_vram(text: str) -> int:
    """ "12GB", "12" or "12288MiB" in bytes. Cards are sold by the GiB, called GB.

    Raises:
        ConfigError: it is no amount of memory, or none that a card has.
    """
    match = _VRAM.fullmatch(text.strip())
    if match is not None:
        megabytes = (match["unit"] or "g").lower().startswith("m")
        amount = int(float(match["number"]) * (1 << 20 if megabytes else _GIB))
        if _GIB // 4 <= amount <= _MOST_GIB * _GIB:
            return amount
    raise ConfigError(f"--vram takes an amount such as 12GB or 8192MiB, not {text[:40]!r}")


def _plain(name: str, shape: ModelConfig, cards: Sequence[PlannedCard]) -> dict[str, Any]:
    rows = []
    for machine, decision in cards:
        fit, memory_plan = decision.fit, decision.plan
        row: dict[str, Any] = {
            "vram_bytes": machine.gpu.free if machine.gpu else 0,
            "fits": fit is not None,
            "reason": decision.reason,
            "engine": decision.engine._asdict(),
            "instead": [*map(str, decision.remedies)],
        }
        if fit is not None:
            row |= {"training": asdict(fit.training), "shares_base": fit.shares_base}
        if memory_plan is not None:
            row |= {
                "total_bytes": memory_plan.total,
                "parts_bytes": asdict(memory_plan.parts),
                "training": asdict(memory_plan.training),
                "sharing": memory_plan.sharing,
                "sleep_level": memory_plan.sleep_level,
                "rows": memory_plan.rows,
                "vllm": memory_plan.engine.vllm_arguments() if fit else None,
            }
        rows.append(row)
    return {"schema": _SCHEMA, "model": name, "weights": shape.weight_count, "cards": rows}


def _machines(settings: Settings, vram: int | None, facts: Path | None) -> list[Machine]:
    """The machine to plan for: a card of `vram`, the machine in a file of `facts`, this one, or,
    without a GPU, several cards.

    Raises:
        ConfigError: there is no such card, or the file is unusable.
    """
    from swarm_node.node.preflight.doctor import machine_of, this_machine
    from swarm_node.node.preflight.facts_file import read_facts
    from swarm_node.node.preflight.machine import card
    from swarm_node.node.preflight.probe import gpu_memory

    if vram is not None and facts is not None:
        raise ConfigError("--vram and --facts both name a machine", "take one of them")
    if vram is not None:
        return [card(settings, vram)]
    if facts is not None:
        return [machine_of(read_facts(facts, settings.home), settings)]
    if settings.run.device != "cpu" and gpu_memory() is not None:
        machine = this_machine(settings)
        if machine.gpu is not None:
            return [machine]
    return [card(settings, size * _GIB) for size in CARDS]
