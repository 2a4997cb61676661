"""Shows the plan of a GPU in a terminal, 80 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from swarm_node.policy.memory.plan import SPARE, Job, Plan, least_plan, make_plan, remedies
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.sampling.vllm.engine import EngineChoice

_GIB = 1 << 30
_BAR = 24


class PlannedCard(NamedTuple):
    """A card with `vram` free bytes, the job planned for it, and the engine that samples."""

    vram: int
    job: Job
    engine: EngineChoice


def cards_view(name: str, shape: Qwen2Config, cards: Sequence[PlannedCard]) -> RenderableType:
    """One row per card; below it, advice for cards that nothing fits."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in ("card", "trains", "micro-\nbatch", "answers\nat once"):
        table.add_column(heading, justify="left" if heading == "trains" else "right")
    for heading in ("weights", "optim-\nizer", "KV\ncache", "activa-\ntions", "other", "peak"):
        table.add_column(heading, justify="right")
    advice = []
    for vram, job, engine in cards:
        made = make_plan(shape, job, vram)
        shown = made or least_plan(shape, job, vram)
        table.add_row(
            f"{vram / _GIB:.4g}",
            *(_choices(made, engine) if made else ("[red]too small[/]", "", "")),
            *map(_gib, shown.parts.summary().values()),
            _gib(shown.total),
            style=None if made else "dim",
        )
        if made is None:
            advice.append(f"{vram / _GIB:.4g} GiB: {_advice(shape, job, vram)}.")
    built_in = next((card.engine for card in cards if not card.engine.vllm), None)
    notes = [
        *([f"† sampled by the built-in sampler: {built_in.why}."] if built_in else []),
        "Sizes in GiB; for a card that is too small, the least needed. * recomputes activations.",
        f"{SPARE:.0%} of a card stay free. Look closer: `--vram 12GB`. Change the job:",
        "`--set sampling.max_new_tokens=512`, `--set training.lora_rank=8`.",
    ]
    lines = [""] * bool(advice) + advice
    return Group(_title(name, shape, cards[0].job), "", table, *lines, "", *map(_dim, notes))


def card_view(name: str, shape: Qwen2Config, card: PlannedCard) -> RenderableType:
    """One card: the memory of each part, and how `join` would use the card."""
    vram, job, engine = card
    made = make_plan(shape, job, vram)
    shown = made or least_plan(shape, job, vram)
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    scale = max(vram, shown.total)
    explained = _explained(shown, job)
    for part, bytes_of in shown.parts.summary().items():
        table.add_row(part, _gib(bytes_of), _bar(bytes_of, scale), _dim(explained[part]))
    if shown.sharing == "sleep":
        spared = shown.parts.total() - shown.total
        table.add_row("never at once", f"-{_gib(spared)}", "", _dim("the sampler sleeps"))
    table.add_row("[bold]peak[/]", f"[bold]{_gib(shown.total)}[/]", _bar(shown.total, scale))
    size = f"{vram / _GIB:.4g} GiB" + f" on each of {job.processes} cards" * (job.processes > 1)
    if made is None:
        answer = f"[red]Does not fit[/] into {size}: {_advice(shape, job, vram)}."
    else:
        left = _gib(vram - shown.total)
        answer = f"[green]Fits[/] into {size}, {left} stay free. `join` would train "
        answer += f"{made.described()}."
    sampler = "vLLM" if engine.vllm else "the built-in sampler"
    sampled = f"Sampled by {sampler}: {escape(engine.why)}."
    return Group(_title(name, shape, job), "", table, "", answer, sampled)


def _title(name: str, shape: Qwen2Config, job: Job) -> str:
    return (
        f"[bold]{escape(name)}[/]: {shape.weight_count / 1e6:,.1f} million weights, "
        f"{job.rows} {job.described()} wanted at once"
    )


def _choices(plan: Plan, engine: EngineChoice) -> tuple[str, str, str]:
    training = plan.training
    trains = f"LoRA {training.lora_rank}" if training.lora_rank else "all weights"
    trains += ", nf4" * training.nf4
    tokens = f"{training.micro_batch_tokens:,}{'*' if training.checkpointing else ' '}"
    trains += ", asleep" * (plan.sharing == "sleep")
    return trains, tokens, str(plan.rows) + "†" * (not engine.vllm)


def _explained(plan: Plan, job: Job) -> dict[str, str]:
    parts, training = plan.parts, plan.training
    recomputed = ", recomputed" if training.checkpointing else ""
    return {
        "weights": f"sampler {_gib(parts.sampler_weights)}, trainer {_gib(parts.trainer_weights)}",
        "optimizer": f"gradients, two moments{' of 8 bits' if training.eight_bit else ''}",
        "KV cache": f"{plan.rows} {job.described().replace('up to ', '')}",
        "activations": f"of {training.micro_batch_tokens:,} tokens{recomputed}",
        "other": f"sampling {_gib(parts.workspace)}, CUDA {_gib(parts.reserve)}",
    }


def _advice(shape: Qwen2Config, job: Job, vram: int) -> str:
    return f"take {', or '.join(remedies(shape, job, vram) or ['a smaller model'])}"


def _bar(size: int, scale: int) -> str:
    return "█" * max(1, round(_BAR * size / scale))


def _gib(size: int) -> str:
    return f"{size / _GIB:,.1f}"


def _dim(text: str) -> Text:
    return Text(text, style="dim")
