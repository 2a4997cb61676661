"""Renews the table of docs/research/one-card.md: plans by `swarm-node plan`, and by hand.

    python benchmarks/gpu_table.py [RESULTS ...]

RESULTS are files `results.json` of benchmarks/gpu_proof.sh: their figures come under "measured".
What stands there else stays, by card, model and new tokens. The plan is that of the built-in
sampler and of torch 2.12 or newer, so the table does not depend on this machine.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.cli.verbs.plan import shape_of
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.placement import repeats_heads, torch_version

PAGE = Path(__file__).resolve().parents[1] / "docs" / "research" / "one-card.md"
#: GB of the card, model, new tokens.
CASES = [
    (8, "qwen2.5-0.5b", 1024),
    *((card, "qwen2.5-1.5b", 1024) for card in (8, 12, 16, 24)),
    (12, "qwen3-4b", 1024),
    (12, "qwen3-4b", 128),
    (24, "qwen3-8b", 1024),
]
HEAD = (
    "| card, GB | model | new tokens | method | weights | optimizer | KV | activations | other "
    "| plan | by hand | measured | headroom |\n|" + " --- |" * 13
)
TABLE = re.compile(re.escape(HEAD) + r"\n(\|.*\n)*")
_MIB = 1 << 20


def plan_of(card: int, model: str, new: int) -> dict[str, Any]:
    """The plan as `swarm-node plan --json` gives it; the least one where none fits."""
    command = ["plan", "--model", model, "--vram", f"{card}GB", "--json"]
    command += ["--set", f"sampling.max_new_tokens={new}", "--set", "sampling.engine=torch"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    (found,) = json.loads(done.stdout)["cards"]
    return dict(found)


def by_hand(model: Qwen2Config, plan: dict[str, Any], new: int) -> float:
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
    kept = layers * (2 * h * T if training["checkpointing"] else layer)
    again = layer if training["checkpointing"] else 0
    activations = kept + max(16 * h * T + 6 * 2**24, again + 16 * (h + i) * T)
    sampler = 2048 * 2 * (3 * i + 4 * h) + 18 * rows * model.vocab_size
    sampler += 2 * rows * (256 + new) * layers * k
    steps = [*(size for size in (8, 16, 32, 64) if size < rows), rows]
    graphs = 4 * model.vocab_size * sum(steps)
    total = weights + 12 * adapters + 4 * layers * k * tokens + activations + sampler + graphs
    total += 2**30
    return float(total)


def row_of(card: int, model: str, new: int, measured: str) -> str:
    plan = plan_of(card, model, new)
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
        *(str(card), model, f"{new:,}", method),
        *(
            f"{one / _MIB:,.0f}"
            for one in (
                parts["sampler_weights"] + parts["trainer_weights"],
                *(parts["optimizer"], parts["kv"], parts["activations"], other, total),
            )
        ),
        *(hand, measured, f"{1024 * card - total / _MIB:,.0f}"),
    ]
    return "| " + " | ".join(cells) + " |"


def measured(files: list[Path]) -> dict[tuple[str, ...], str]:
    """MiB that plans took on a card, as cells of the table by its first three columns. Settings are
    those of `join`: a run with others has no row."""
    found: dict[tuple[str, ...], str] = {}
    for file in files:
        for step in json.loads(file.read_text())["steps"].values():
            for one in step["figures"]:
                if one.get("context_mib") and "taken_mib" in one and one.get("set") == []:
                    key = (f"{one['card']:g}", one["model"], f"{one['new']:,}")
                    found[key] = f"{one['taken_mib']:,.0f}"
    return found


def main() -> None:
    if repeats_heads(torch_version()):
        sys.exit(
            f"the table is that of torch 2.12 or newer, and torch {torch_version()} is installed"
        )
    text = PAGE.read_text()
    (table,) = TABLE.finditer(text)
    old = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines()[2:]]
    kept = {tuple(cells[:3]): cells[11] for cells in old}
    kept |= measured([Path(name) for name in sys.argv[1:]])
    rows = [
        row_of(*case, kept.get((str(case[0]), case[1], f"{case[2]:,}"), "not run yet"))
        for case in CASES
    ]
    PAGE.write_text(text.replace(table[0], "\n".join([HEAD, *rows, ""])))


if __name__ == "__main__":
    main()
