"""The policy update: one synchronous, readable step over one batch.

Nothing here knows about processes, peers or disks; see `trainer_process` for those.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.errors import CheckpointError, ConfigError, ModelError
from swarm_node.policy.batch import Batch, TrainRow, micro_batches
from swarm_node.policy.checkpoint import TrainingState
from swarm_node.policy.losses import LOSSES, ClipBounds, LossSums, Tokens
from swarm_node.policy.models import policy_digests
from swarm_node.policy.qwen2 import Qwen2

#: So many non-finite updates in a row mean that the state itself is bad.
MAX_NON_FINITE = 3
#: Logits held at once, in elements (128 MiB of float32): more tokens than that go in pieces.
LOGIT_ELEMENTS = 1 << 25

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """How to train. AdamW with a linear warm-up over `warmup_updates`, then a constant
    `learning_rate`. `temperature` must be the sampler's. `micro_batch_tokens` bounds rows × longest
    row, hence memory, never the result.

    Raises:
        ConfigError: a value makes no sense; the message names it.
    """

    loss: str = "dapo"
    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    warmup_updates: int = 10
    clip_low: float = 0.2
    clip_high: float = 0.28
    ratio_cap: float = 5.0
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    micro_batch_tokens: int = 8192
    seed: int = 0

    def __post_init__(self) -> None:
        valid = {
            "loss": self.loss in LOSSES,
            "learning_rate": 0 < self.learning_rate < math.inf,
            "betas": len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            "weight_decay": 0 <= self.weight_decay < math.inf,
            "warmup_updates": self.warmup_updates >= 0,
            "clip_low": 0 < self.clip_low <= 1,
            "clip_high": 0 < self.clip_high < math.inf,
            "ratio_cap": 1 + self.clip_high <= self.ratio_cap < math.inf,
            "max_grad_norm": 0 < self.max_grad_norm < math.inf,
            "temperature": 0 < self.temperature < math.inf,
            "micro_batch_tokens": self.micro_batch_tokens > 0,
        }
        wrong = [name for name, fine in valid.items() if not fine]
        if wrong:
            raise ConfigError(f"trainer.{wrong[0]} cannot be {getattr(self, wrong[0])!r}")

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> TrainerSettings:
        """The inverse of `dataclasses.asdict`, after a trip through MessagePack."""
        return cls(**{**values, "betas": tuple(values["betas"])})

    def digest(self) -> bytes:
        """sha256 over all values."""
        return hashlib.sha256(msgpack.packb(sorted(asdict(self).items()))).digest()


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one update did.

    `version` is the policy's afterwards. `tokens` and `rows` count what was trained on, including
    rows without advantage; `informative` the rows with one; `refused` those the model cannot take
    (too long, or token ids outside its vocabulary). `clipped_share`, `mean_ratio`, `kl` (k3) and
    `mean_abs_delta` (of log-probs, nats) are per token with a measured behaviour log-prob, and
    0, 1, 0, 0 when there is none. `grad_norm` is before clipping. `seconds` of wall time.
    `skipped` says why nothing was applied, else None.
    """

    version: int
    loss: float
    grad_norm: float
    tokens: int
    rows: int
    informative: int
    refused: int
    clipped_share: float
    mean_ratio: float
    kl: float
    mean_abs_delta: float
    seconds: float
    skipped: str | None


class TrainerCore:
    """Owns the model and its optimizer. Not thread-safe."""

    def __init__(
        self, model_dir: Path, settings: TrainerSettings, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Load the base model.

        Raises:
            ModelError: `model_dir` holds no model that can be trained here.
        """
        self.settings = settings
        self.version = 0
        self.model = Qwen2.from_directory(model_dir)
        self._clock = clock
        self._updates = 0
        self._non_finite = 0
        self._base, _ = policy_digests(model_dir)
        self._bounds = ClipBounds(settings.clip_low, settings.clip_high, settings.ratio_cap)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )

    def update(self, batch: Batch) -> UpdateStats:
        """One optimizer step on `batch`; the version rises by one when it was applied.

        It is skipped, and `skipped` says why, when no row has an advantage or when a number is not
        finite: then neither weights nor optimizer change.

        Raises:
            ModelError: the third update in a row was not finite; go back to an earlier state.
        """
        started = self._clock.now()
        rows = [row for row in batch.rows if self._fits(row)]
        informative = [row for row in rows if row.informative]
        tokens = sum(row.completion_ids.size for row in rows)
        loss, grad_norm, sums = 0.0, 0.0, LossSums()
        skipped: str | None = "no informative row"
        if informative:
            loss, sums = self._accumulate_gradient(informative, tokens)
            grad_norm = float(self._clip_gradient())
            skipped = self._non_finite_fault(loss, grad_norm)
        if skipped is None:
            self._step()
        return UpdateStats(
            version=self.version,
            loss=loss,
            grad_norm=grad_norm,
            tokens=tokens,
            rows=len(rows),
            informative=len(informative),
            refused=len(batch.rows) - len(rows),
            clipped_share=sums.mean("clipped", 0.0),
            mean_ratio=sums.mean("ratio", 1.0),
            kl=sums.mean("kl", 0.0),
            mean_abs_delta=sums.mean("absolute", 0.0),
            seconds=self._clock.now() - started,
            skipped=skipped,
        )

    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights under transformers' names."""
        return self.model.hf_state()

    def state(self, rng: bytes, extra: Mapping[str, Any]) -> TrainingState:
        """Everything that `restore` needs to go on as if nothing had happened."""
        moments = {
            f"{kind}:{name}": value.clone()
            for name, parameter in self.model.named_parameters()
            for kind, value in self._optimizer.state.get(parameter, {}).items()
        }
        return TrainingState(
            version=self.version,
            updates=self._updates,
            weights=self.weights(),
            optimizer=moments,
            rng=rng,
            settings=self.settings.digest(),
            model=self._base,
            extra=extra,
        )

    def restore(self, state: TrainingState) -> None:
        """Take over a stored state; hyper-parameters stay those of the current settings.

        Raises:
            CheckpointError: it belongs to another base model.
        """
        parameters = dict(self.model.named_parameters())
        keys = [key.partition(":") for key in state.optimizer]
        if state.model != self._base or not {name for *_, name in keys} <= parameters.keys():
            raise CheckpointError(
                "the checkpoint was made from another base model; use that model, or move the "
                "checkpoints away to start anew"
            )
        if state.settings != self.settings.digest():
            _log.warning("the trainer's settings differ from those of the checkpoint")
        self.model.load_hf_state(state.weights)
        self._optimizer.state.clear()
        for (kind, _, name), value in zip(keys, state.optimizer.values(), strict=True):
            self._optimizer.state[parameters[name]][kind] = value.clone()
        self.version, self._updates = state.version, state.updates
        self._non_finite = 0

    def _fits(self, row: TrainRow) -> bool:
        """A peer's row that the model cannot take must cost that row, not the update."""
        config = self.model.config
        largest = max(int(row.prompt_ids.max()), int(row.completion_ids.max()))
        return largest < config.vocab_size and len(row) <= config.max_position_embeddings

    def _accumulate_gradient(
        self, rows: Sequence[TrainRow], total_tokens: int
    ) -> tuple[float, LossSums]:
        loss_of = LOSSES[self.settings.loss]
        loss, sums = 0.0, LossSums()
        self._optimizer.zero_grad(set_to_none=True)
        for indices in micro_batches(rows, self.settings.micro_batch_tokens):
            part = [rows[index] for index in indices]
            logp = completion_logprobs(self.model, part, self.settings.temperature)
            part_loss, part_sums = loss_of(_tokens(part, logp), self._bounds, total_tokens)
            part_loss.backward()  # type: ignore[no-untyped-call]
            loss += float(part_loss.detach())
            sums += part_sums
        return loss, sums

    def _clip_gradient(self) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)

    def _non_finite_fault(self, loss: float, grad_norm: float) -> str | None:
        parameters_finite = all(bool(p.isfinite().all()) for p in self.model.parameters())
        if math.isfinite(loss) and math.isfinite(grad_norm) and parameters_finite:
            self._non_finite = 0
            return None
        self._non_finite += 1
        if self._non_finite >= MAX_NON_FINITE:
            raise ModelError(
                f"{MAX_NON_FINITE} updates in a row were not finite: restart the trainer from its "
                "last checkpoint, with a lower learning rate if it happens again"
            )
        return "non-finite gradient" if parameters_finite else "non-finite parameters"

    def _step(self) -> None:
        warmup = max(self.settings.warmup_updates, 1)
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * min(1.0, (self._updates + 1) / warmup)
        self._optimizer.step()
        self._updates += 1
        self.version += 1


def completion_logprobs(
    model: Qwen2,
    rows: Sequence[TrainRow],
    temperature: float,
    logit_elements: int = LOGIT_ELEMENTS,
) -> Tensor:
    """log π f32[N] of the completion tokens of `rows`, row after row, with gradient.

    Logits exist at completion positions only; when they exceed `logit_elements` they are made in
    pieces, and again in the backward pass, instead of being kept.
    """
    ids = torch.zeros(len(rows), max(map(len, rows)) - 1, dtype=torch.int64)
    at_row, at_position, targets = [], [], []
    for index, row in enumerate(rows):
        sequence = np.concatenate([row.prompt_ids, row.completion_ids]).astype(np.int64)
        ids[index, : len(sequence) - 1] = torch.from_numpy(sequence[:-1])
        # The token at position t is predicted at t - 1.
        at_position.append(torch.arange(row.prompt_ids.size - 1, len(sequence) - 1))
        at_row.append(torch.full_like(at_position[-1], index))
        targets.append(torch.from_numpy(sequence[row.prompt_ids.size :]))
    hidden = model.hidden(ids)[torch.cat(at_row), torch.cat(at_position)]
    wanted = torch.cat(targets)

    def logprobs(hidden: Tensor, wanted: Tensor) -> Tensor:
        logits = model.logits(hidden).float() / temperature
        return -F.cross_entropy(logits, wanted, reduction="none")

    piece = max(1, logit_elements // model.config.vocab_size)
    if len(wanted) <= piece:
        return logprobs(hidden, wanted)
    return torch.cat(
        [
            recompute_in_backward(logprobs, *pair, use_reentrant=False, preserve_rng_state=False)
            for pair in zip(torch.split(hidden, piece), torch.split(wanted, piece), strict=True)
        ]
    )


def _tokens(rows: Sequence[TrainRow], logp: Tensor) -> Tokens:
    """The rows' token vectors, in the order of `logp`."""
    sizes = [row.completion_ids.size for row in rows]
    behaviour = np.concatenate(
        [
            np.zeros(size, np.float32) if row.logprobs is None else row.logprobs
            for row, size in zip(rows, sizes, strict=True)
        ]
    )
    measured = np.repeat([row.logprobs is not None for row in rows], sizes)
    advantage = np.repeat(np.array([row.advantage for row in rows], np.float32), sizes)
    return Tokens(logp, *map(torch.from_numpy, (behaviour, measured, advantage)))
