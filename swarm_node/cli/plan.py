"""`swarm-node plan`, and the same plan for a node that joins: what fits on this machine's GPU.

Cheap to import, as a command line must be.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from swarm_node.cli.refusals import refusals
from swarm_node.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from swarm_node.config import Settings
    from swarm_node.policy.memory.plan import Job, Plan
    from swarm_node.policy.models.config import Qwen2Config
    from swarm_node.policy.placement import Placement

CARDS = (8, 12, 16, 24, 80)
_SCHEMA = 1
_GIB = 1 << 30
_MOST_GIB = 4096
_VRAM = re.compile(
    r"(?P<number>\d{1,9}(\.\d{1,6})?)\s*(?P<unit>gb|gib|g|mb|mib|m)?", re.ASCII | re.IGNORECASE
)


class GpuMemory(NamedTuple):
    """Bytes of a card."""

    free: int
    total: int


def plan(
    model: Annotated[
        str | None,
        typer.Option(help="tiny, qwen2.5-0.5b …, or a directory with a config.json."),
    ] = None,
    vram: Annotated[
        str | None,
        typer.Option(help="Memory of one card, such as 12GB; default: what is free here."),
    ] = None,
    sleep: Annotated[
        bool,
        typer.Option(help="As if the sampler slept while the trainer works; `join` cannot yet."),
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

    A sampler and a trainer share the GPU. Their memory is counted from the
    model's shape: weights of both, gradients and moments of the optimizer, the
    sampler's cache of keys and values (KV), activations of a micro-batch.

    `join` works in the first way that fits: all weights before LoRA, all
    answers at once before fewer, activations kept before recomputed, large
    micro-batches before small ones. What you set is kept to.

    Without --vram, what is free on this machine's GPU is planned for; without
    a GPU, cards of 8, 12, 16, 24 and 80 GB. Nothing is downloaded or loaded.

    Try: swarm-node plan --model qwen2.5-1.5b --vram 12GB
    """
    with refusals():
        from swarm_node.config import load_settings, parse_assignments

        flags = {"model": model, **parse_assignments(assign or [])}
        settings = load_settings(flags, config=config)
        shape = shape_of(settings.model)
        cards = _cards(vram, settings.run.device)
        job = node_job(settings, can_sleep=sleep)
        if json:
            import msgspec

            found = _plain(settings.model, shape, job, cards)
            typer.echo(msgspec.json.encode(found).decode())
            return
        _show(settings.model, shape, job, cards)


def _show(name: str, shape: Qwen2Config, job: Job, cards: Sequence[int]) -> None:
    from rich.console import Console

    from swarm_node.cli.plan_view import card_view, cards_view

    one = len(cards) == 1
    view = card_view(name, shape, job, *cards) if one else cards_view(name, shape, job, cards)
    # Wide enough to be read by programs as well, where it is no terminal.
    Console(width=None if Console().is_terminal else 150, highlight=False).print(view)


def shape_of(name: str) -> Qwen2Config:
    """The shape of a model by name, without network.

    Raises:
        ModelError: it is neither known nor here, or its config.json cannot be used.
    """
    from swarm_node.policy.models.config import Qwen2Config
    from swarm_node.policy.models.hub import hub_model
    from swarm_node.policy.models.model import TINY, resolve
    from swarm_node.policy.models.shapes import known_shape

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


def node_job(settings: Settings, *, half: bool = True, can_sleep: bool = False) -> Job:
    """What a node with these settings asks of a GPU; what the user did not set is left open.
    `half`: whether the GPU computes in bfloat16 where nobody says otherwise."""
    from swarm_node.policy.memory.plan import Job

    policy, sampling = settings.policy, settings.sampling
    chosen = policy.model_fields_set
    return Job(
        rows=min(256, sampling.group_size * sampling.tasks_per_call),
        max_new_tokens=sampling.max_new_tokens,
        lora_rank=policy.lora_rank if "lora_rank" in chosen else None,
        checkpointing=(
            policy.activation_checkpointing if "activation_checkpointing" in chosen else None
        ),
        dtype=("bfloat16" if half else "float32") if policy.dtype == "auto" else policy.dtype,
        eight_bit=policy.optimizer == "adamw8bit",
        can_sleep=can_sleep,
    )


def fit_check(settings: Settings) -> Callable[[Qwen2Config], None]:
    """What refuses a model that this machine cannot train, before it is downloaded: with a
    `ModelError` that says what to do.

    Raises:
        ConfigError: there is no such device.
    """
    from swarm_node.policy.memory.free import check_memory
    from swarm_node.policy.placement import hardware, place

    processes = settings.run.trainer_processes
    where = place(settings.run.device, settings.policy.dtype, hardware(), ranks=processes)

    def check(shape: Qwen2Config) -> None:
        rank = settings.policy.lora_rank
        check_memory(shape, rank, placement=where, trainer_processes=processes)
        plan_node(settings, where, shape)

    return check


def plan_node(settings: Settings, where: Placement, shape: Qwen2Config) -> Plan | None:
    """How the GPU will be used on which a node computes; None on a CPU, and for several trainer
    processes, which are not planned for.

    Raises:
        ModelError: the model does not fit on it; the message says what would.
    """
    from swarm_node.policy.memory.plan import least_plan, make_plan, remedies
    from swarm_node.policy.sampling.vllm.engine import uses_vllm

    if where.device == "cpu" or settings.run.trainer_processes > 1:
        return None
    vram, card = gpu_memory(_index(where.device)) or _torch_memory(where.device)
    sleeps = uses_vllm(settings.sampling.engine, where.device)
    job = node_job(settings, half=where.half, can_sleep=sleeps)
    made = make_plan(shape, job, vram)
    if made is None:
        ways = remedies(shape, job, vram) or ["a machine with more memory"]
        needed = least_plan(shape, job, vram).total
        raise ModelError(
            f"a model of {shape.weight_count / 1e6:,.0f} million weights needs at least "
            f"{needed / _GIB:.1f} GiB of GPU memory with these settings and {vram / _GIB:.1f} are "
            f'free: take {", or ".join(ways)}, or train on the CPU (run.device = "cpu")'
        )
    return replace(made, card=card)


def _torch_memory(device: str) -> GpuMemory:
    import torch

    return GpuMemory(*torch.cuda.mem_get_info(device))


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def gpu_memory(index: int = 0) -> GpuMemory | None:
    """The memory of a GPU that this process may use, counted as torch does, as nvidia-smi says;
    None where there is none, or no nvidia-smi. Nothing is put on the GPU for that."""
    command = shutil.which("nvidia-smi")
    limited = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index)] if limited is None else limited.split(",")[index : index + 1]
    visible = "".join(names).strip()
    if command is None or not re.fullmatch(r"[0-9]{1,3}|(GPU|MIG)-[A-Za-z0-9/-]{1,80}", visible):
        return None
    query = ["--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits", "-i", visible]
    try:
        done = subprocess.run([command, *query], capture_output=True, timeout=20, check=True)  # noqa: S603 - no shell
        return parse_gpu_memory(done.stdout)
    except (OSError, subprocess.SubprocessError):
        return None


def parse_gpu_memory(answer: bytes) -> GpuMemory | None:
    """What nvidia-smi said of the first card, "free, total" in MiB; None where it is no sense."""
    match = re.match(rb"\s*(\d{1,9}), *(\d{1,9})\s*(\n|$)", answer)
    if match is None:
        return None
    free, total = int(match[1]) << 20, int(match[2]) << 20
    return GpuMemory(free, total) if 0 < free <= total <= _MOST_GIB * _GIB else None


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


def _plain(name: str, shape: Qwen2Config, job: Job, cards: Sequence[int]) -> dict[str, Any]:
    from swarm_node.policy.memory.plan import least_plan, make_plan, remedies

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
                "vllm": made.engine.vllm_arguments() if made else None,
                "instead": [] if made else remedies(shape, job, vram),
            }
        )
    return {"schema": _SCHEMA, "model": name, "weights": shape.weight_count, "cards": rows}


def _cards(vram: str | None, device: str) -> list[int]:
    if vram is not None:
        return [parse_vram(vram)]
    here = gpu_memory(_index(device))
    return [size * _GIB for size in CARDS] if here is None else [here.free]
