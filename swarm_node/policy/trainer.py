"""The policy update: one synchronous, readable step over one batch.

Nothing here knows about processes, peers or disks; see `trainer_process` for those.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import torch
from torch import Tensor

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.errors import CheckpointError, ConfigError, ModelError
from swarm_node.policy.adamw import AdamW
from swarm_node.policy.batch import Batch, TrainRow, micro_batches
from swarm_node.policy.checkpoint import TrainingState
from swarm_node.policy.logprobs import (
    ReferencePolicy,
    claimed_tokens,
    completion_logprobs,
    token_vectors,
)
from swarm_node.policy.loss_masks import check_claims, off_policy_mask
from swarm_node.policy.loss_names import LossName
from swarm_node.policy.loss_types import BatchSize, ClipBounds, LossSums
from swarm_node.policy.losses import LOSSES, NEEDS_REFERENCE
from swarm_node.policy.models import policy_digests
from swarm_node.policy.qwen2 import Qwen2

#: So many non-finite updates in a row mean that the state itself is bad.
MAX_NON_FINITE = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """How to train. AdamW with a linear warm-up over `warmup_updates`, then a constant
    `learning_rate`. `temperature` must be the sampler's. `micro_batch_tokens` bounds rows × longest
    row, hence memory, never the result. `longest_answer` is the sampler's bound in tokens. With
    `off_policy_mask`, rows of negative advantage further than that many nats per token from the
    policy that sampled them are left out; None trains on them all.

    Raises:
        ConfigError: a value makes no sense; the message names it.
    """

    loss: LossName = "decoupled"
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
    longest_answer: int = 24
    off_policy_mask: float | None = None
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
            "longest_answer": self.longest_answer > 0,
            "off_policy_mask": self.off_policy_mask is None or 0 < self.off_policy_mask < math.inf,
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
    (too long, or token ids outside its vocabulary), `implausible` those whose author's log-probs
    were not believed, `masked` those left out as too far off-policy. `clipped_share`, `mean_ratio`,
    `kl` (k3) and `mean_abs_delta` (of log-probs, nats) are per token with a measured behaviour
    log-prob, and 0, 1, 0, 0 when there is none. `grad_norm` is before clipping. `seconds` of wall
    time. `skipped` says why nothing was applied, else None.
    """

    version: int
    loss: float
    grad_norm: float
    tokens: int
    rows: int
    informative: int
    refused: int
    implausible: int
    masked: int
    clipped_share: float
    mean_ratio: float
    kl: float
    mean_abs_delta: float
    seconds: float
    skipped: str | None


@dataclass(slots=True)
class _Accumulated:
    """Of one update, over its micro-batches."""

    loss: float = 0.0
    implausible: int = 0
    masked: int = 0
    sums: LossSums = field(default_factory=LossSums)


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
        needs_reference = settings.loss in NEEDS_REFERENCE
        self._reference = ReferencePolicy(model_dir) if needs_reference else None
        self._bounds = ClipBounds(settings.clip_low, settings.clip_high, settings.ratio_cap)
        self._optimizer = AdamW(self.model.parameters(), settings.betas, settings.weight_decay)

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
        done, grad_norm = _Accumulated(), 0.0
        skipped: str | None = "no informative row"
        if informative:
            size = BatchSize(tokens, len(rows), self.settings.longest_answer)
            done = self._accumulate_gradient(informative, size)
            grad_norm = float(self._clip_gradient())
            skipped = self._non_finite_fault(done.loss, grad_norm)
        if skipped is None:
            self._step()
        return UpdateStats(
            version=self.version,
            loss=done.loss,
            grad_norm=grad_norm,
            tokens=tokens,
            rows=len(rows),
            informative=len(informative),
            refused=len(batch.rows) - len(rows),
            implausible=done.implausible,
            masked=done.masked,
            clipped_share=done.sums.mean("clipped", 0.0),
            mean_ratio=done.sums.mean("ratio", 1.0),
            kl=done.sums.mean("kl", 0.0),
            mean_abs_delta=done.sums.mean("absolute", 0.0),
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
            moments = self._optimizer.state.setdefault(parameters[name], {})
            moments[kind] = value.clone()
        self.version, self._updates = state.version, state.updates
        self._non_finite = 0

    def _fits(self, row: TrainRow) -> bool:
        """A peer's row that the model cannot take must cost that row, not the update."""
        config = self.model.config
        largest = max(int(row.prompt_ids.max()), int(row.completion_ids.max()))
        return largest < config.vocab_size and len(row) <= config.max_position_embeddings

    def _accumulate_gradient(self, rows: Sequence[TrainRow], size: BatchSize) -> _Accumulated:
        settings, done = self.settings, _Accumulated()
        loss_of = LOSSES[settings.loss]
        references = None
        if self._reference is not None:
            references = self._reference.judge(
                self.model, rows, settings.temperature, settings.micro_batch_tokens
            )
        self._optimizer.zero_grad()
        for indices in micro_batches(rows, settings.micro_batch_tokens):
            part = [rows[index] for index in indices]
            logp = completion_logprobs(self.model, part, settings.temperature)
            known = [references[index] for index in indices] if references else None
            tokens = token_vectors(part, logp, self.version, known)
            tokens, implausible = check_claims(tokens, claimed_tokens(part))
            done.implausible += implausible
            if settings.off_policy_mask is not None:
                tokens, masked = off_policy_mask(tokens, settings.off_policy_mask)
                done.masked += masked
            loss, sums = loss_of(tokens, self._bounds, size)
            loss.backward()  # type: ignore[no-untyped-call]
            done.loss += float(loss.detach())
            done.sums += sums
        return done

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
        rate = self.settings.learning_rate * min(1.0, (self._updates + 1) / warmup)
        self._optimizer.step(rate)
        self._updates += 1
        self.version += 1
