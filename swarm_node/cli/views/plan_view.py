"""Shows the plan of a GPU in a terminal: a table at 80 columns, and lines on a narrower one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from swarm_node.policy.memory.plan import SPARE, Job, Plan
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.planning.fit import Decision, Machine
from swarm_node.policy.sampling.vllm.engine import EngineChoice

_GIB = 1 << 30
_BAR = 24
#: Narrower terminals get lines for each card in the place of a table.
_TABLE_WIDTH = 80


class PlannedCard(NamedTuple):
    """A machine, and what a node decides on it."""

    machine: Machine
    decision: Decision


class _Cards:
    """One row per card, or some lines where the table has no room."""

    def __init__(self, cards: Sequence[PlannedCard]) -> None:
        self._cards = cards

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= _TABLE_WIDTH:
            yield self._table()
        else:
            yield from map(self._lines, self._cards)

    def _table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for heading in ("GPU", "training", "micro-\nbatch", "concur-\nrent"):
            table.add_column(heading, justify="left" if heading == "training" else "right")
        for heading in ("weights", "optim-\nizer", "KV\ncache", "activa-\ntions", "other", "peak"):
            table.add_column(heading, justify="right")
        for card in self._cards:
            size, plan, is_feasible = (
                _size(card),
                _plan_of_card(card),
                card.decision.fit is not None,
            )
            table.add_row(
                size,
                *(
                    _choices(plan, card.decision.engine)
                    if is_feasible
                    else ("[red]too small[/]", "", "")
                ),
                *map(_gib, plan.parts.summary().values()),
                _gib(plan.total),
                style=None if is_feasible else "dim",
            )
        return table

    def _lines(self, card: PlannedCard) -> str:
        plan, decision = _plan_of_card(card), card.decision
        parts = ", ".join(f"{part} {_gib(size)}" for part, size in plan.parts.summary().items())
        head = f"[bold]{_size(card)} GiB[/]: "
        if decision.fit is None:
            head += "[red]too small[/]"
        else:
            trains, micro_batch, answers = _choices(plan, decision.engine)
            head += f"{trains}, micro-batch {micro_batch.strip()}, {answers} concurrent sequences"
        return f"{head}\n  peak {_gib(plan.total)}: {parts}"


def _plan_of_card(card: PlannedCard) -> Plan:
    assert card.decision.plan is not None
    return card.decision.plan


def _size(card: PlannedCard) -> str:
    assert card.machine.gpu is not None
    return f"{card.machine.gpu.free / _GIB:.4g}"


def cards_view(name: str, shape: ModelConfig, cards: Sequence[PlannedCard]) -> RenderableType:
    """The cards; below them, advice for those that nothing fits."""
    advice = [
        f"{_size(card)} GiB: {escape(card.decision.advice)}."
        for card in cards
        if card.decision.fit is None
    ]
    engines = [card.decision.engine for card in cards]
    built_in = next((engine for engine in engines if not engine.vllm), None)
    notes = [
        *([f"† sampled by the built-in sampler: {built_in.reason}."] if built_in else []),
        "Sizes in GiB; for a GPU that is too small, the least needed. * recomputes activations.",
        f"{SPARE:.0%} of a GPU stay free. Look closer: `--vram 12GB`. Change the job:",
        "`--set sampling.max_new_tokens=512`, `--set training.lora_rank=8`.",
    ]
    lines = [""] * bool(advice) + advice
    return Group(
        _title(name, shape, cards[0].decision.job), "", _Cards(cards), *lines, "", *map(_dim, notes)
    )


def card_view(name: str, shape: ModelConfig, card: PlannedCard) -> RenderableType:
    """One machine: the memory of each part of its card, and how `join` would use it."""
    machine, decision = card
    sampler = "vLLM" if decision.engine.vllm else "the built-in sampler"
    sampler_note = f"Sampled by {sampler}: {escape(decision.engine.reason)}."
    title = _title(name, shape, decision.job)
    if machine.gpu is None or decision.plan is None:
        return Group(title, "", _on_cpu(machine, decision, shape), sampler_note)
    job, plan, vram = decision.job, decision.plan, machine.gpu.free
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="crop")
    scale = max(vram, plan.total)
    explained = _explain_plan(plan, job)
    for part, bytes_of in plan.parts.summary().items():
        table.add_row(part, _gib(bytes_of), _bar(bytes_of, scale), _dim(explained[part]))
    if plan.sharing == "sleep":
        spared = plan.parts.total() - plan.total
        table.add_row("never at once", f"-{_gib(spared)}", "", _dim("the sampler sleeps"))
    table.add_row("[bold]peak[/]", f"[bold]{_gib(plan.total)}[/]", _bar(plan.total, scale))
    size = f"{vram / _GIB:.4g} GiB" + f" on each of {job.processes} GPUs" * (job.processes > 1)
    if decision.fit is None:
        shortage = "" if not plan.fits() else f" {escape(decision.reason)}:"
        answer = f"[red]Does not fit[/] in {size}:{shortage} {escape(decision.advice)}."
    else:
        left = _gib(vram - plan.total)
        answer = f"[green]Fits[/] in {size}, {left} to spare. `join` would use "
        answer += f"{plan.describe()}."
    return Group(title, "", table, "", answer, sampler_note)


def _on_cpu(machine: Machine, decision: Decision, shape: ModelConfig) -> str:
    if decision.fit is None:
        return f"[red]Does not fit[/]: {escape(decision.reason)}: {escape(decision.advice)}."
    fit = decision.fit
    rank = fit.training.lora_rank
    method = f"LoRA of rank {rank}" if rank else "full fine-tuning"
    method += f" in {fit.placement.products}"
    free = f"{machine.free / 1e9:.1f} GB of RAM"
    parts = fit.parts(shape)
    breakdown = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in parts.summary().items())
    text = f"[green]Fits[/] in {free}, {parts.total() / 1e9:.1f} GB at the peak ({breakdown}). "
    text += f"`join` would use {method} on the CPU, in micro-batches of "
    text += f"{fit.training.micro_batch_tokens:,} tokens."
    return f"{text} {escape(fit.numbers)}." if fit.numbers else text


def _title(name: str, shape: ModelConfig, job: Job) -> str:
    return (
        f"[bold]{escape(name)}[/]: {shape.weight_count / 1e6:,.1f}M parameters, "
        f"up to {job.rows} concurrent {job.describe()}"
    )


def _choices(plan: Plan, engine: EngineChoice) -> tuple[str, str, str]:
    training = plan.training
    trains = f"LoRA {training.lora_rank}" if training.lora_rank else "full"
    trains += ", nf4" * training.nf4
    tokens = f"{training.micro_batch_tokens:,}{'*' if training.checkpointing else ' '}"
    trains += ", asleep" * (plan.sharing == "sleep")
    return trains, tokens, str(plan.rows) + "†" * (not engine.vllm)


def _explain_plan(plan: Plan, job: Job) -> dict[str, str]:
    parts, training = plan.parts, plan.training
    recomputed = ", recomputed" if training.checkpointing else ""
    return {
        "weights": f"sampler {_gib(parts.sampler_weights)}, trainer {_gib(parts.trainer_weights)}",
        "optimizer": f"gradients, two moments{' of 8 bits' if training.eight_bit else ''}",
        "KV cache": f"{plan.rows} {job.describe().replace('up to ', '')}",
        "activations": f"of {training.micro_batch_tokens:,} tokens{recomputed}",
        "other": f"sampling {_gib(parts.workspace)}, CUDA {_gib(parts.reserve)}",
    }


def _bar(size: int, scale: int) -> str:
    return "█" * max(1, round(_BAR * size / scale))


def _gib(size: int) -> str:
    return f"{size / _GIB:,.1f}"


def _dim(text: str) -> Text:
    return Text(text, style="dim")
