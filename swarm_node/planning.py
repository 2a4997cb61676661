"""`swarm-node plan`, and the same plan for a node that joins: what fits on this machine's GPU.

Cheap to import, as a command line must be.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm_node.errors import ConfigError, ModelError
from swarm_node.refusals import refusals

if TYPE_CHECKING:
    from rich.table import Table

    from swarm_node.config import Settings
    from swarm_node.policy.model_files import Qwen2Config
    from swarm_node.policy.plan import Job, Plan

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
        typer.Option(help="tiny, qwen2.5-0.5b …, or a directory with a config.json."),
    ] = None,
    vram: Annotated[
        str | None,
        typer.Option(help="Memory of the card, such as 12GB; default: this machine's, or a row."),
    ] = None,
    sleep: Annotated[
        bool,
        typer.Option(help="As if the sampler slept while the trainer works (join does not yet)."),
    ] = False,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting: KEY=VALUE (see `swarm-node config`)."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", envvar="SWARM_NODE_CONFIG", help="TOML file with settings."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help='Machine-readable, with "schema": 1.')] = (
        False
    ),
) -> None:
    """Say what of a model fits on a GPU, and how `join` would use it.

    Nothing is downloaded or loaded.
    """
    with refusals():
        from swarm_node.config import load_settings, parse_assignments

        flags = {"model": model, **parse_assignments(assign or [])}
        settings = load_settings(flags, config=config)
        shape = shape_of(settings.model)
        cards = _cards(vram)
        job = node_job(settings, can_sleep=sleep)
        if json:
            import msgspec

            found = _plain(settings.model, shape, job, cards)
            typer.echo(msgspec.json.encode(found).decode())
            return
        from rich.console import Console

        # Wide enough to be read by programs as well, where it is no terminal.
        terminal = Console()
        Console(width=None if terminal.is_terminal else 150).print(
            plan_view(settings.model, shape, job, cards)
        )


def shape_of(name: str) -> Qwen2Config:
    """The shape of a model by name, without network.

    Raises:
        ModelError: it is neither known nor here, or its config.json cannot be used.
    """
    from swarm_node.policy.hub import hub_model
    from swarm_node.policy.model_files import Qwen2Config
    from swarm_node.policy.models import TINY, resolve
    from swarm_node.policy.shapes import known_shape

    path = Path(name).expanduser()
    known = None if path.is_dir() else known_shape(name)
    if known is not None:
        return known
    if name != TINY and not path.is_dir() and hub_model(name) is not None:
        raise ModelError(
            f"the shape of {name} is not known offline: download its config.json and give the "
            "directory (`--model DIRECTORY`)"
        )
    return Qwen2Config.from_directory(resolve(name) if name == TINY else path)


def node_job(settings: Settings, *, can_sleep: bool = False) -> Job:
    """What a node with these settings asks of a GPU; what the user did not set is left open."""
    from swarm_node.policy.plan import Job

    policy, sampling = settings.policy, settings.sampling
    chosen = policy.model_fields_set
    return Job(
        rows=min(256, sampling.group_size * sampling.tasks_per_call),
        max_new_tokens=sampling.max_new_tokens,
        lora_rank=policy.lora_rank if "lora_rank" in chosen else None,
        checkpointing=(
            policy.activation_checkpointing if "activation_checkpointing" in chosen else None
        ),
        can_sleep=can_sleep,
    )


def plan_node(settings: Settings, shape: Qwen2Config) -> Plan | None:
    """How this machine's GPU will be used; None where torch has none.

    Raises:
        ModelError: the model does not fit on it; the message says what would.
    """
    import torch

    from swarm_node.policy.plan import least_plan, make_plan, remedies

    if not torch.cuda.is_available():
        return None
    vram = free_vram() or torch.cuda.mem_get_info()[0]
    job = node_job(settings)
    made = make_plan(shape, job, vram)
    if made is None:
        ways = remedies(shape, job, vram) or ["a machine with more memory"]
        needed = least_plan(shape, job, vram).total
        raise ModelError(
            f"a model of {shape.weight_count / 1e6:,.0f} million weights needs at least "
            f"{needed / _GIB:.1f} GiB of GPU memory with these settings and {vram / _GIB:.1f} are "
            f"free: take {', or '.join(ways)}, or hide the GPU (CUDA_VISIBLE_DEVICES=) to train on "
            "the CPU"
        )
    return made


def check_fits(settings: Settings, shape: Qwen2Config) -> None:
    """Refuse a model that this machine cannot train, before it is downloaded.

    Raises:
        ModelError: it does not fit; the message says what to do.
    """
    if plan_node(settings, shape) is None:
        from swarm_node.policy.model_memory import check_memory

        check_memory(shape, settings.policy.lora_rank)


def free_vram() -> int | None:
    """Free bytes of the first GPU that this process may use, as nvidia-smi says; None where there
    is none, or no nvidia-smi. Nothing is put on the GPU for that."""
    command = shutil.which("nvidia-smi")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if command is None or not re.fullmatch(r"[0-9]{1,3}|(GPU|MIG)-[A-Za-z0-9/-]{1,80}", visible):
        return None
    query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", visible]
    try:
        done = subprocess.run([command, *query], capture_output=True, timeout=20, check=True)  # noqa: S603 - no shell
        mebibytes = int(done.stdout.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return mebibytes << 20 if 0 < mebibytes <= _MOST_GIB << 10 else None


def parse_vram(text: str) -> int:
    """ "12GB", "12" or "12288MiB" in bytes. Cards are sold by the GiB, called GB.

    Raises:
        ConfigError: it is no such amount, or none that a card has.
    """
    match = _VRAM.fullmatch(text.strip())
    if match is not None:
        megabytes = (match["unit"] or "g").lower().startswith("m")
        amount = int(float(match["number"]) * (1 << 20 if megabytes else _GIB))
        if _GIB // 4 <= amount <= _MOST_GIB * _GIB:
            return amount
    raise ConfigError(f"--vram takes an amount such as 12GB or 8192MiB, not {text[:40]!r}")


def plan_view(name: str, shape: Qwen2Config, job: Job, cards: Sequence[int]) -> Table:
    """One row per card, GiB."""
    from rich.table import Table

    from swarm_node.policy.plan import least_plan, make_plan, remedies

    table = Table(title=f"{name}: {shape.weight_count / 1e6:,.1f} million weights, GiB")
    for heading in ("card", "weights", "optimizer", "KV", "activations", "other", "total"):
        table.add_column(heading, justify="right")
    table.add_column("fits")
    table.add_column("how `join` uses it, or what would fit", overflow="fold")
    for vram in cards:
        made = make_plan(shape, job, vram)
        shown = made or least_plan(shape, job, vram)
        parts = shown.parts
        other = parts.workspace + parts.reserve
        sizes = (parts.weights, parts.optimizer, parts.kv, parts.activations, other, shown.total)
        ways = remedies(shape, job, vram) if made is None else []
        table.add_row(
            f"{vram / _GIB:.4g}",
            *(f"{size / _GIB:.1f}" for size in sizes),
            "yes" if made else "no",
            made.described() if made else f"take {', or '.join(ways) or 'a smaller model'}",
        )
    return table


def _plain(name: str, shape: Qwen2Config, job: Job, cards: Sequence[int]) -> dict[str, Any]:
    from swarm_node.policy.plan import least_plan, make_plan, remedies

    rows = []
    for vram in cards:
        made = make_plan(shape, job, vram)
        shown = made or least_plan(shape, job, vram)
        rows.append(
            {
                "vram_bytes": vram,
                "fits": made is not None,
                "total_bytes": shown.total,
                "parts_bytes": asdict(shown.parts),
                "training": asdict(shown.training),
                "sharing": shown.sharing,
                "sleep_level": shown.sleep_level,
                "rows": shown.rows,
                "engine_share": shown.engine_share,
                "instead": [] if made else remedies(shape, job, vram),
            }
        )
    return {"schema": _SCHEMA, "model": name, "weights": shape.weight_count, "cards": rows}


def _cards(vram: str | None) -> list[int]:
    if vram is not None:
        return [parse_vram(vram)]
    here = free_vram()
    return [size * _GIB for size in CARDS] if here is None else [here]
