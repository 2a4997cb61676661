"""The first lines of `join`: device, sampler, model, training, tasks and home. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from swarm_node.config import Settings
from swarm_node.config.sources import HOME_SOURCE
from swarm_node.node.home.home import Home
from swarm_node.node.preflight.doctor import Finding, amount, gib
from swarm_node.node.preflight.facts import Facts
from swarm_node.policy.memory.footprint import longest_tokens
from swarm_node.policy.models.by_transformers.config import ReadingConfig
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.hub import Download
from swarm_node.policy.models.model import Told
from swarm_node.policy.planning.fit import Fit, Machine
from swarm_node.program.commands import with_home


class Line(NamedTuple):
    """One line: its first word, the rest for people, and the same as fields for programs."""

    event: str
    text: str
    fields: Mapping[str, object]
    warning: bool = False


def start_lines(
    settings: Settings, facts: Facts, machine: Machine, model_fit: Fit, shape: ModelConfig
) -> Iterator[Line]:
    """Describe a node that trains a model of `shape` as `model_fit` says."""
    name, device = settings.model, model_fit.placement.device
    card = None if device == "cpu" else facts.card
    text = device.upper() if card is None else f"{card} ({device})"
    if machine.gpu is not None:
        text += f", {gib(machine.gpu.free)} of {gib(machine.gpu.total)} GiB free"
    fields = {} if card is None else {"gpu": card.name, "driver": card.driver}
    text += f", {amount(facts.memory)} of RAM free"
    yield Line("device", text, {"device": device, **fields})
    engine = str(facts.vllm) if model_fit.vllm else "built in"
    yield Line(
        "sampler", f"{engine}: {model_fit.reason}", {"engine": engine, "reason": model_fit.reason}
    )
    if model_fit.numbers:
        yield Line("dtype", model_fit.numbers, {"dtype": model_fit.placement.products})
    millions = f"{shape.weight_count / 1e6:,.1f}M parameters"
    yield Line("model", f"{name}, {millions}", {"model": name, "parameters": shape.weight_count})
    if not shape.native:
        yield Line(
            "decoder",
            f"no native decoder for this {shape.model_type}: transformers' own code, slower",
            {"decoder": shape.architecture, "native": False},
        )
    yield from _training(settings.training.learning_rate, model_fit, shape)
    table = settings.environment
    families = ", ".join(table.families) or "all"
    options = ", ".join(f"{key} {value}" for key, value in table.options.items())
    yield Line(
        "tasks",
        f"{table.name}, {options or 'default options'}, families: {families}",
        {"environment": table.name, "options": table.options, "families": table.families},
    )
    if tracker := settings.run.track:
        yield Line("tracker", f"{tracker}, in {Home(facts.home).runs}", {"tracker": tracker})
    yield Line("home", str(facts.home), {"home": str(facts.home)})


def _training(rate: float, model_fit: Fit, shape: ModelConfig) -> Iterator[Line]:
    plan, job, parts = model_fit.plan, model_fit.job, model_fit.parts(shape)
    if plan is not None:
        method, total, rows = plan.describe(), plan.total, plan.rows
    else:
        rows, training = job.rows, model_fit.training
        rank = training.lora_rank
        kind = f"LoRA of rank {rank}" if rank else "full fine-tuning"
        kind += f" in {job.dtype}" + ", activations recomputed" * training.checkpointing
        method = f"{kind}, micro-batches of {training.micro_batch_tokens:,} tokens, "
        method, total = f"{method}{rows} concurrent sequences", parts.total()
    context_length = longest_tokens(shape, job.longest)
    text = f"{method}, {job.describe()}, context length {context_length:,}, learning rate {rate:g}"
    fields = {"how": method, "rows": rows, "context": context_length, "learning_rate": rate}
    yield Line("training", text, fields)
    summary = parts.summary()
    unit, format_size = (" GiB", gib) if model_fit.placement.device != "cpu" else ("", amount)
    sizes = ", ".join(f"{part} {format_size(size)}" for part, size in summary.items())
    yield Line(
        "memory",
        f"{format_size(total)}{unit} at the peak: {sizes}",
        {"bytes": total, "parts": summary},
    )


def told_line(event: Told) -> Line:
    """Return the line of what takes long before a model is there, or of quantised weights."""
    fields = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in event._asdict().items()
    }
    if isinstance(event, Download):
        text = f"{event.files} files, {amount(event.size)} to {event.cache}"
        return Line("download", text, fields)
    return Line("config" if isinstance(event, ReadingConfig) else "gguf", str(event), fields)


def remembered_lines(origins: Mapping[str, str]) -> Iterator[Line]:
    """Name the settings that the home remembers from earlier starts, if any are in force."""
    keys = [key for key, source in origins.items() if source == HOME_SOURCE]
    if keys:
        text = f"as before: {', '.join(keys)} (swarm-node config; join --forget KEY)"
        yield Line("settings", text, {"remembered": keys})


def tickets_line(names: Sequence[str], endpoints: Sequence[str]) -> Line:
    """Tell the maker of tickets for `names` that they name `endpoints` in vain."""
    text = (
        f"no node listens any more where tickets for {', '.join(names)} lead "
        f"({', '.join(endpoints)})\n→ make new ones (swarm-node invite), or return to that address "
        "(swarm-node join --listen ADDRESS)"
    )
    return Line("tickets", text, {"names": names, "endpoints": endpoints}, True)


def invite_line(swarm: str, home: Path | None) -> Line:
    """Return the founder's command that admits the next node; None: in the usual home."""
    command = with_home("swarm-node invite --name NAME --out NAME.ticket", home)
    text = f"created swarm {swarm!r}, with one member. A ticket for the next:\n{command}"
    return Line("invite", text, {"swarm": swarm, "command": command})


def finding_line(finding: Finding) -> Line:
    """Return the line of a finding, a warning unless all is well."""
    text = f"{finding.found}\n→ {finding.remedy}" if finding.remedy else finding.found
    return Line(finding.subject, text, finding._asdict(), finding.level != "ok")
