"""Renews the tables of docs/research/one-gpu.md: plans by `swarm-node plan` and by hand, and what a
GPU measured.

    make gpu-table [RESULTS="FILE ..."]

RESULTS are files `results.json` of benchmarks/gpu_proof.sh: their figures come under "measured",
and into the table of the steps that join. What stands there else stays. The plan is that of the
built-in sampler and of torch 2.12 or newer, so the table does not depend on this machine.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.cli.verbs.plan import shape_of
from swarm_node.node.preflight.defaults import LONGEST_ANSWER
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import repeats_heads, torch_version

PAGE = Path(__file__).resolve().parents[1] / "docs" / "research" / "one-gpu.md"
#: GB of the GPU, model, new tokens: as many as `join` has by default, and fewer.
CASES = [
    (8, "qwen2.5-0.5b", LONGEST_ANSWER),
    *((gib, "qwen2.5-1.5b", LONGEST_ANSWER) for gib in (8, 12, 16, 24)),
    (12, "qwen3-4b", LONGEST_ANSWER),
    (12, "qwen3-4b", 128),
    (24, "qwen3-8b", LONGEST_ANSWER),
]
HEAD = (
    "| GPU, GB | model | new tokens | method | weights | optimizer | KV | activations | other "
    "| plan | by hand | measured | headroom |\n|" + " --- |" * 13
)
TABLE = re.compile(re.escape(HEAD) + r"\n(\|.*\n)*")
#: Steps of gpu_proof.sh that join, by their names for people.
JOINED = {
    "join-tiny": "`tiny`, drills",
    "join-card-8": "1.5B, 8 GiB",
    "join-card-12": "1.5B, 12 GiB",
    "join-card-16": "1.5B, 16 GiB",
    "join-card-24": "1.5B, 24 GiB",
    "two-nodes": "0.5B, two nodes, 24 GiB",
    "join-nf4": "4B in nf4, 12 GiB",
    "join-real": "SmolLM2-135M-Instruct, whole GPU",
}
JOINED_HEAD = (
    "| step | what joins | GPU, torch | verdict | updates | plan | peak | tokens/s sampled "
    "| s an update | KL at first | halvings | graphs |\n|" + " --- |" * 12
)
JOINED_TABLE = re.compile(re.escape(JOINED_HEAD) + r"\n(\|.*\n)*")
_MIB = 1 << 20
#: Plans that differ by no more than this share train in the same way.
_SAME_PLAN = 0.02


def plan_of(gib: int, model: str, new: int) -> dict[str, Any]:
    """The plan as `swarm-node plan --json` gives it; the least one where none fits."""
    command = ["plan", "--model", model, "--vram", f"{gib}GB", "--json"]
    command += ["--set", f"sampling.max_new_tokens={new}", "--set", "sampling.engine=torch"]
    cli_result = CliRunner().invoke(app, command, catch_exceptions=False)
    (card_plan,) = json.loads(cli_result.stdout)["cards"]
    return dict(card_plan)


def by_hand(model: ModelConfig, plan: dict[str, Any], new: int) -> float:
    """Bytes, by the page's formula for adapters and the built-in sampler; its names."""
    h, i, q, k = (
        *(model.hidden_size, model.intermediate_size),
        *(model.query_size, model.key_value_size),
    )
    layers, rows, training = model.num_hidden_layers, plan["rows"], plan["training"]
    r, T = training["lora_rank"], max(training["micro_batch_tokens"], 256 + new)  # noqa: N806
    adapters = layers * r * (4 * h + 2 * q + 2 * k + 3 * h + 3 * i)
    tables = model.vocab_size * h * (1 if model.tie_word_embeddings else 2)
    # nf4: half a byte a weight, and a float32 for each 64.
    body = (0.5625 if training["nf4"] else 2) * (model.weight_count - tables)
    weights = body + 2 * tables + (4 + 2) * adapters
    tokens = max(rows * (256 + new), 4096 + new + 128)
    layer = T * (12 * h + 8 * i + 6 * q + 6 * k + 20 * k + 14 * r)
    kept_activations = layers * (2 * h * T if training["checkpointing"] else layer)
    again = layer if training["checkpointing"] else 0
    activations = kept_activations + max(16 * h * T + 6 * 2**24, again + 16 * (h + i) * T)
    sampler = 2048 * 2 * (3 * i + 4 * h) + 18 * rows * model.vocab_size
    sampler += 2 * rows * (256 + new) * layers * k
    steps = [*(size for size in (8, 16, 32, 64) if size < rows), rows]
    graphs = 4 * model.vocab_size * sum(steps)
    total = weights + 12 * adapters + 4 * layers * k * tokens + activations + sampler + graphs
    total += 2**30
    return float(total)


def row_of(gib: int, model: str, new: int, old_cell: str, run: tuple[float, str] | None) -> str:
    """A row of the table. A `run` counts that had the same plan, or one for another torch that is
    hardly different; without one the cell stays the `old_cell`."""
    plan = plan_of(gib, model, new)
    same = run and abs(run[0] * _MIB / plan["total_bytes"] - 1) < _SAME_PLAN
    measured = run[1] if run and same else old_cell
    parts, training = plan["parts_bytes"], plan["training"]
    method = f"LoRA {training['lora_rank']}" if training["lora_rank"] else "all weights"
    method += ", nf4" * training["nf4"]
    method += ", recomputed" * training["checkpointing"]
    method += f", {training['micro_batch_tokens']:,} tokens, {plan['rows']} answers"
    if not plan["fits"]:
        method = f"**does not fit**; least: {method}"
    total = plan["total_bytes"]
    # A formula for adapters has nothing to say of all weights.
    hand = (
        f"{by_hand(shape_of(model), plan, new) / _MIB:,.0f}"
        if training["lora_rank"]
        else "no formula"
    )
    other = parts["workspace"] + parts["published"] + parts["reserve"]
    cells = [
        *(str(gib), model, f"{new:,}", method),
        *(
            f"{one / _MIB:,.0f}"
            for one in (
                parts["sampler_weights"] + parts["trainer_weights"],
                *(parts["optimizer"], parts["kv"], parts["activations"], other, total),
            )
        ),
        *(hand, measured, f"{1024 * gib - total / _MIB:,.0f}"),
    ]
    return "| " + " | ".join(cells) + " |"


def measured(files: list[Path]) -> dict[tuple[str, ...], tuple[float, str]]:
    """MiB of plans, and as cells of the table what they took on a GPU, by its first three columns.
    Settings are those of `join`: a run with others has no row."""
    runs_by_case: dict[tuple[str, ...], tuple[float, str]] = {}
    for file in files:
        for step in json.loads(file.read_text())["steps"].values():
            for one in step["figures"]:
                if one.get("context_mib") and "taken_mib" in one and one.get("set") == []:
                    key = (f"{one['gib']:g}", one["model"], f"{one['new']:,}")
                    runs_by_case[key] = one["planned_mib"], f"{one['taken_mib']:,.0f}"
    return runs_by_case


def joined_rows(files: list[Path]) -> dict[str, str]:
    """Rows of the table of the steps that join, by step, as the files have them; a step that did
    not run on a GPU has none."""
    rows: dict[str, str] = {}
    for file in files:
        steps = json.loads(file.read_text())["steps"]
        for step in JOINED.keys() & steps.keys():
            facts: dict[str, Any] = next(
                (one for one in steps[step]["figures"] if "device" in one), {}
            )
            if facts.get("device", "CPU") != "CPU" and steps[step]["verdict"] != "NOT RUN":
                machine = f"{facts['device']}, {facts['torch'].partition('+')[0]}"
                rows[step] = joined_row(step, machine, steps[step])
    return rows


def joined_row(step: str, machine: str, step_result: dict[str, Any]) -> str:
    """One step's row: plan and peak in MiB (of two nodes both), medians over the updates but the
    first."""
    updates = [one for one in step_result["figures"] if "update" in one]
    plans = [one for one in step_result["figures"] if "planned_mib" in one and "free_mib" in one]
    later = updates[1:] or updates
    rates = [one["sampled_tokens_per_s"] for one in later if one["sampled_tokens_per_s"]]
    cells = [
        *(f"`{step}`", JOINED[step], machine),
        step_result["verdict"] + f": {step_result['why']}" * (step_result["verdict"] != "PASS"),
        *(
            f"{max((one['update'] for one in updates), default=0)}",
            f"{sum(one['planned_mib'] for one in plans):,.0f}",
        ),
        f"{max((one['peak_mib'] for one in updates), default=0):,.0f}",
        f"{statistics.median(rates):,.0f}" if rates else "none",
        f"{statistics.median(one['seconds'] for one in later):.2f}" if later else "none",
        f"{updates[0]['kl']:.1g}" if updates and updates[0]["kl"] is not None else "none",
        f"{sum(one['halvings'] for one in updates)}",
        f"{max((one['graphs'] for one in updates), default=0)}",
    ]
    return "| " + " | ".join(" ".join(cell.replace("|", "/").split()) for cell in cells) + " |"


def cells_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def main() -> None:
    if repeats_heads(torch_version()):
        sys.exit(
            f"the table is that of torch 2.12 or newer, and torch {torch_version()} is installed"
        )
    text, files = PAGE.read_text(), [Path(name) for name in sys.argv[1:]]
    (table,) = TABLE.finditer(text)
    old_cells = {tuple(cells[:3]): cells[11] for cells in cells_of(table[0])}
    runs, rows = measured(files), []
    for case in CASES:
        key = str(case[0]), case[1], f"{case[2]:,}"
        rows.append(row_of(*case, old_cells.get(key, "not run yet"), runs.get(key)))
    text = text.replace(table[0], "\n".join([HEAD, *rows, ""]))
    (table,) = JOINED_TABLE.finditer(text)
    old = {line.split("`")[1]: line for line in table[0].splitlines()[2:]}
    old |= joined_rows(files)
    unknown = " |" * 9
    lines = [
        old.get(step, f"| `{step}` | {what} | not run yet |{unknown}")
        for step, what in JOINED.items()
    ]
    PAGE.write_text(text.replace(table[0], "\n".join([JOINED_HEAD, *lines, ""])))


if __name__ == "__main__":
    main()
