"""Small verified groups, rows, models and snapshots, for every test that needs some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import hypothesis
import msgspec
import numpy as np

from swarm_node.config import load_settings
from swarm_node.node.metrics.history import GroupCounts, HistoryRow
from swarm_node.node.metrics.snapshot import SCHEMA, Snapshot
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.experience.replay import ReplaySettings
from swarm_node.rollout import (
    Completion,
    EarlierTurn,
    Finish,
    PolicyRef,
    Provenance,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
    VersionSpan,
)

if TYPE_CHECKING:
    from torch import Tensor

    from swarm_node.policy.training.update.settings import TrainerSettings
    from swarm_node.policy.training.update.stats import UpdateStats
    from swarm_node.policy.training.update.trainer import TrainerCore

#: Of the repository.
ROOT = Path(__file__).resolve().parents[1]
#: The fixture `load_benchmark`: imports a module of benchmarks/ by its name.
LoadBenchmark = Callable[[str], ModuleType]


def examples(count: int, **changes: Any) -> hypothesis.settings:
    """So many examples of a property in `make test-all`, and fewer elsewhere by its profile."""
    share = hypothesis.settings().max_examples / 100  # hypothesis's own number
    return hypothesis.settings(max_examples=max(1, round(count * share)), **changes)


def completion(
    ids: Sequence[int], text: str = "x", finish: Finish = Finish.STOP, versions: Sequence[int] = ()
) -> Completion:
    """`versions` are those that sampled each token, 0 if none are given; log-probs −1, −2, …"""
    return Completion(
        text=text,
        token_ids=np.array(ids, np.uint32),
        logprobs=-np.arange(1, len(ids) + 1, dtype=np.float32),
        spans=tuple(VersionSpan(v, i, i + 1) for i, v in enumerate(versions or [0] * len(ids))),
        finish=finish,
    )


def dialogue(
    turns: Sequence[tuple[str, Sequence[int]]], finish: Finish = Finish.STOP
) -> Completion:
    """All that a policy said in `turns` of a text and its ids, with the end tokens."""
    ids = [token for _, said in turns for token in said]
    ends = np.cumsum([len(said) for _, said in turns]).tolist()
    earlier = tuple(
        EarlierTurn(text, end) for (text, _), end in zip(turns, ends[:-1], strict=False)
    )
    return replace(completion(ids, turns[-1][0], finish), earlier_turns=earlier)


def verified(
    name: str | bytes = "g",
    author: str = "me",
    *,
    provenance: Provenance | None = None,
    rewards: Sequence[float] = (0.0, 1.0),
    completions: Sequence[Completion] | None = None,
    claimed: Sequence[float] | None = None,
    family: str = "f",
    seed: int = 0,
    arrived: int = 0,
    prompt: str = "q",
    policy: PolicyRef | None = None,
    observations: Sequence[Sequence[str]] = (),
) -> VerifiedGroup:
    """A group of "me" is an own one, others' are kin. Its policy is the newest of its tokens."""
    if completions is None:
        completions = [completion([0])] * len(rewards)
    newest = max((span.version for each in completions for span in each.spans), default=0)
    if provenance is None:
        provenance = Provenance.LOCAL if author == "me" else Provenance.SAME_MODEL
    return VerifiedGroup(
        id=name.encode() if isinstance(name, str) else name,
        author=author,
        provenance=provenance,
        group=RolloutGroup(
            task=TaskRef("e", "1", family, seed),
            policy=policy or PolicyRef(b"m" * 32, b"t" * 32, newest),
            completions=tuple(completions),
            claimed=tuple(rewards if claimed is None else claimed),
        ),
        prompt=prompt,
        rewards=tuple(rewards),
        arrival_version=arrived,
        observations=tuple(map(tuple, observations)),
    )


def train_rows(count: int = 6) -> list[TrainRow]:
    """Own rows of random tokens below 63, of several lengths, good and bad in turn."""
    rng = np.random.default_rng(1)
    return [
        TrainRow(
            rng.integers(0, 63, 2 + n % 3).astype(np.uint32),
            rng.integers(0, 63, 3 + 2 * (n % 4)).astype(np.uint32),
            None,
            (-1.0) ** n * (1 + n / 10),
            Provenance.LOCAL,
        )
        for n in range(count)
    ]


def quiet_snapshot(**changes: Any) -> Snapshot:
    """A running node without peers and without a fault, with these `changes`."""
    quiet = Snapshot(
        schema=SCHEMA,
        peer_id="12D3KooW",
        swarm="team",
        swarm_id="00",
        model="tiny",
        state="running",
        seconds=1.0,
        version=3,
        steps=3,
        skipped_batches=0,
        trainer_restarts=0,
        groups=GroupCounts(),
        rejected={},
        faults={},
        evals=[],
        families=[],
        local_families=[],
        peers=[],
        buffer={},
        last_step=None,
        addresses=[],
        processes={},
    )
    return msgspec.structs.replace(quiet, **changes)


def history_row(time: float, **changes: Any) -> HistoryRow:
    """A row of a node that does nothing at the Unix second `time`, with these `changes`."""
    return HistoryRow(**{**_required(HistoryRow), "time": time, **changes})


@cache
def _required(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Zeros for the fields without a default. To read annotations takes long, so each kind once."""
    return {field.name: 0 for field in msgspec.structs.fields(kind) if field.required}


def write_model(path: Path, **shape: Any) -> Path:
    """`path`, to which a random Qwen2 of 64 tokens, four heads and this `shape` was written; by
    default it has two layers and 48 positions."""
    import torch
    from safetensors.torch import save_file

    from swarm_node.policy.models.config import ModelConfig
    from swarm_node.policy.models.decoder.causal_lm import CausalLM

    default = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "max_position_embeddings": 48,
    }
    config = ModelConfig(
        vocab_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        **{**default, **shape},
    )
    (path / "config.json").write_text(json.dumps(config.to_hf()))
    (path / "tokenizer.json").write_text("{}")
    model = CausalLM(config, generator=torch.Generator().manual_seed(5))
    save_file(model.hf_state(), path / "model.safetensors")
    return path


def replay_settings(**changes: Any) -> ReplaySettings:
    """Settings of a replay buffer: four groups of each kind, and `changes`."""
    return ReplaySettings(**{"local": 4, "external": 4, "max_staleness": 8} | changes)


def trainer_settings(**changes: Any) -> TrainerSettings:
    """Settings of a trainer in float32 on the CPU: the defaults of a node, and `changes`."""
    from swarm_node.node.start import derive  # imports torch

    given = {"run.device": "cpu", "training.dtype": "float32"}
    return replace(derive.trainer_settings(load_settings(given, environ={})), **changes)


def update_with_gradient(
    core: TrainerCore, rows: Sequence[TrainRow]
) -> tuple[UpdateStats, dict[str, Tensor]]:
    """The update of a trainer, and the gradient that its step is made with and forgets."""
    found: dict[str, Tensor] = {}
    parameters = dict(core.model.named_parameters())
    core.before_step = lambda: found.update(
        {name: each.grad.clone() for name, each in parameters.items() if each.grad is not None}
    )
    stats = core.update(Batch(tuple(rows)))
    assert stats.skipped is None
    assert found.keys() == parameters.keys()
    return stats, found


def same_tensors(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Check that both have the same tensors under the same names, bit for bit."""
    return left.keys() == right.keys() and all(left[name].equal(right[name]) for name in left)


def edit_json(path: Path, **changes: Any) -> None:
    """Change entries of an object in a file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """`path`, to which `rows` were written, a line of JSON each."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def printed_by(program: str, *arguments: object, given: str = "", **variables: str) -> str:
    """What a program in a process of its own prints, which reads what is `given` and has these
    `variables` beside those of the tests. It must end well."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        input=given,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
