"""The policy update: one synchronous step over one batch.

`worker.py` adds disks and shared memory, `process.py` the child process.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.errors import CheckpointError, ModelError
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.memory.footprint import TrainingMethod
from swarm_node.policy.models.decoder.lora import TrainedAdapter
from swarm_node.policy.models.loading import PolicyModel, make_adapter
from swarm_node.policy.models.model import policy_digests
from swarm_node.policy.models.tensors import on_host
from swarm_node.policy.placement import hardware, place
from swarm_node.policy.training.checkpoints.checkpoint import TrainingState
from swarm_node.policy.training.checkpoints.stored import OTHER_BASE, require_same
from swarm_node.policy.training.objective.logprobs import ReferencePolicy
from swarm_node.policy.training.objective.losses import (
    LOSSES,
    NEEDS_REFERENCE,
    BatchSize,
    ClipBounds,
)
from swarm_node.policy.training.objective.plausible import OwnAnswers, mostly_unlikely
from swarm_node.policy.training.update.gradient import Accumulated, GradientPass
from swarm_node.policy.training.update.moments import are_usable
from swarm_node.policy.training.update.optimizer import make_optimizer
from swarm_node.policy.training.update.ranks import ALONE, Ranks
from swarm_node.policy.training.update.settings import TrainerSettings
from swarm_node.policy.training.update.stats import UpdateStats
from swarm_node.policy.weights.base import make_base
from swarm_node.policy.weights.device import DTYPES
from swarm_node.rollout import Provenance

#: This many non-finite updates in a row mean that the state itself is bad.
MAX_NON_FINITE = 3

_log = logging.getLogger(__name__)


class TrainerCore:
    """Holds the model and its optimizer. Not thread-safe."""

    def __init__(
        self,
        model_dir: Path,
        settings: TrainerSettings,
        clock: Clock = SYSTEM_CLOCK,
        ranks: Ranks = ALONE,
        *,
        digest: bytes | None = None,
        share: Path | None = None,
    ) -> None:
        """Load the base model, and share it in the directory `share`, if any. With several `ranks`,
        each process has a core of its own, and all processes make every call together. `digest` is
        the model's sha256, as `policy_digests` gives it; without one, the core hashes the files.

        Raises:
            ModelError: `model_dir` holds no model that can be trained here.
            ConfigError: there is no such device, or bitsandbytes is needed and not installed.
        """
        self.settings = settings
        self.version = 0
        self._ranks = ranks
        local_size = min(ranks.count, settings.processes)
        self.placement = place(
            settings.device,
            settings.dtype,
            hardware(settings.device),
            rank=ranks.index % local_size,
            ranks=local_size,
        )
        self.model = self._load(model_dir, share)
        #: The adapter that is trained; None where all weights are.
        self.adapter: TrainedAdapter | None = None
        if settings.lora_rank:
            self.adapter = make_adapter(self.model, settings.lora_rank, seed=settings.seed)
        parameters = self.adapter.parameters if self.adapter else self.model.named_parameters()
        self._parameters = dict(parameters)
        self._clock = clock
        self._updates = 0
        self._non_finite = 0
        self._own_answers = OwnAnswers()
        #: Called before each step, which changes the weights and the moments.
        self.before_step: Callable[[], None] = lambda: None
        self._base = policy_digests(model_dir)[0] if digest is None else digest
        self._gradient = self._gradient_pass(model_dir)
        #: This process's parts of the trained parameters, by the parameters' names.
        self._parts = {name: ranks.local(parameter) for name, parameter in self._parameters.items()}
        self._optimizer = make_optimizer(
            *(settings.optimizer, list(self._parts.values())),
            *(settings.betas, settings.weight_decay),
            tables=[self._parts[name] for name in self._tables()],
        )

    def update(self, batch: Batch) -> UpdateStats:
        """One optimizer step on `batch`; the version rises by one if it is applied.

        The step is skipped when no row has an advantage or a number is not finite. Neither weights
        nor optimizer change then.

        Raises:
            ModelError: the third update in a row was not finite, so that an earlier state must be
                restored; or one row alone does not fit in memory.
        """
        start = self._clock.now()
        fit_mask = [self._fits(row) for row in batch.rows]
        rows = list(compress(batch.rows, fit_mask))
        self._own_answers.note(rows)
        gradient_rows = [row for row in rows if row.informative]
        tokens = sum(row.completion_ids.size for row in rows)
        result, grad_norm = Accumulated(), 0.0
        halvings = self._gradient.halvings
        skip_reason: str | None = "no mixed rewards"
        if gradient_rows:
            size = BatchSize(tokens, len(rows), self.settings.longest_answer)
            # Only peers' rows are compared with them.
            peers = any(row.provenance is not Provenance.LOCAL for row in gradient_rows)
            floors = self._own_answers.floors(self.settings.temperature) if peers else ()
            result = self._gradient.accumulate(gradient_rows, size, self.version, floors)
            grad_norm = self._clip_gradient()
            skip_reason = self._non_finite_fault(result.loss, grad_norm)
        if skip_reason is None:
            self._step()
        return UpdateStats(
            version=self.version,
            loss=result.loss,
            grad_norm=grad_norm,
            tokens=tokens,
            rows=len(rows),
            informative=len(gradient_rows),
            refused=len(batch.rows) - len(rows),
            implausible=result.implausible_rows,
            too_long=_peers_groups(compress(batch.rows, map(not_, fit_mask))),
            unlikely=mostly_unlikely(gradient_rows, result.unlikely_rows),
            learnt=tuple(result.group_gains),
            clip_ratio=result.sums.mean("clipped_tokens", 0.0),
            mean_ratio=result.sums.mean("ratio", 1.0),
            mismatch_kl=result.sums.mean("kl", 0.0),
            mean_abs_delta=result.sums.mean("absolute", 0.0),
            entropy=result.entropy / max(result.tokens, 1),
            seconds=self._clock.now() - start,
            halvings=self._gradient.halvings - halvings,
            micro_batch_tokens=self._gradient.token_budget,
            skipped=skip_reason,
        )

    def weights(self, take: Callable[[Tensor, torch.dtype], Tensor] = on_host) -> dict[str, Tensor]:
        """All weights under transformers' names, with the adapter merged, in the type of the matrix
        products. Only the first process gets them; the others get none. `take` converts each
        weight; by default it copies the weight to main memory."""
        return self._gather_weights(DTYPES[self.placement.products], take)

    def state(
        self,
        rng: bytes,
        extra: Mapping[str, Any],
        take: Callable[[Tensor, torch.dtype], Tensor] = on_host,
    ) -> TrainingState:
        """All state that `restore` needs for an identical continuation. Of an adapter's base model
        it holds the digest only. `take` as in `weights`; without a copy, the next step changes the
        state."""
        moments: dict[str, Tensor] = {}
        for name, part in self._parts.items():
            for kind, value in self._optimizer.state.get(part, {}).items():
                full_tensor = self._ranks.gather(self._parameters[name], value)
                if not self._ranks.index:
                    moments[f"{kind}:{name}"] = take(full_tensor, full_tensor.dtype)
        if self.adapter:
            adapters = self.adapter.parameters.items()
            weights = {name: take(value, value.dtype) for name, value in adapters}
        else:
            weights = self._gather_weights(torch.float32, take)
        return TrainingState(
            version=self.version,
            updates=self._updates,
            weights=weights,
            optimizer=moments,
            rng=rng,
            settings=self.settings.plain(),
            model=self._base,
            extra=extra,
            own_answers=self._own_answers.to_bytes(),
        )

    def restore(self, state: TrainingState) -> None:
        """Restore a stored state, which may be of another device, number type, optimizer or number
        of processes. Hyper-parameters stay those of the current settings.

        Raises:
            CheckpointError: the state is of another base model, or another part of it was trained;
                or its moments are damaged.
        """
        origin = state.settings.get("lora_rank", 0), state.model
        require_same(origin, (self.settings.lora_rank, self._base))
        keys = [key.partition(":") for key in state.optimizer]
        if not {name for *_, name in keys} <= self._parameters.keys():
            raise CheckpointError(OTHER_BASE)
        settings = self.settings.plain()
        changed_names = [name for name in settings if state.settings.get(name) != settings[name]]
        if changed_names:
            _log.warning(
                "settings differ from those of the checkpoint: %s", ", ".join(changed_names)
            )
        if self.adapter:
            self.adapter.load_state(state.weights)
        else:
            self._ranks.load(self.model, state.weights)
        self._optimizer.state.clear()
        moments: dict[str, dict[str, Tensor]] = {}
        for (kind, _, name), value in zip(keys, state.optimizer.values(), strict=True):
            moments.setdefault(name, {})[kind] = value
        for name, tensors in moments.items():
            part = self._parts[name]
            if not are_usable(tensors, self._parameters[name].shape):
                raise CheckpointError(
                    f"the checkpoint's moments of {name} are damaged",
                    "move its directory away to use an older one",
                )
            self._optimizer.state[part] = {
                kind: self._ranks.cut(self._parameters[name], value).to(part.device, copy=True)
                for kind, value in self._optimizer.layout(part, tensors).items()
            }
        try:
            self._own_answers = OwnAnswers(state.own_answers)
        except ValueError as error:
            raise CheckpointError(
                f"{error}", "move its directory away to use an older one"
            ) from error
        self.version, self._updates = state.version, state.updates
        self._non_finite = 0

    def _tables(self) -> list[str]:
        """Names of the trained parameters with a row for each token of the vocabulary."""
        tokens = self.model.config.vocab_size
        parameters = self._parameters.items()
        return [
            name
            for name, parameter in parameters
            if parameter.ndim == 2 and parameter.shape[0] == tokens
        ]

    def _gradient_pass(self, model_dir: Path) -> GradientPass:
        settings = self.settings
        return GradientPass(
            self.model,
            self._parameters.values(),
            LOSSES[settings.loss],
            ClipBounds(settings.clip_low, settings.clip_high, settings.ratio_cap),
            temperature=settings.temperature,
            token_budget=settings.micro_batch_tokens,
            way=TrainingMethod(
                settings.lora_rank, dtype=self.placement.products, processes=self._ranks.count
            ),
            reference=self._base_policy(model_dir) if settings.loss in NEEDS_REFERENCE else None,
            ranks=self._ranks,
        )

    def _load(self, model_dir: Path, share: Path | None) -> PolicyModel:
        self._ranks.agree_on(self.placement)
        model: PolicyModel
        if self.settings.lora_rank:
            four_bit = self.settings.base == "nf4"
            model = make_base(model_dir, share, self.placement, four_bit=four_bit)
        else:
            # Trained weights stay float32: fewer bits would round the optimizer's small steps away.
            model = self._ranks.load_sharded(model_dir, self.placement)
        model.recompute = self.settings.activation_checkpointing
        model.products = DTYPES[self.placement.products]
        return model

    def _gather_weights(
        self, dtype: torch.dtype, take: Callable[[Tensor, torch.dtype], Tensor] = on_host
    ) -> dict[str, Tensor]:
        if self.adapter:
            return {} if self._ranks.index else self.adapter.merged_weights(dtype)
        state: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            full_tensor = self._ranks.gather(parameter, self._ranks.local(parameter))
            if not self._ranks.index:
                for hf_name, part in self.model.hf_parts(name, full_tensor):
                    state[hf_name] = take(part, dtype)
        return state

    def _base_policy(self, model_dir: Path) -> ReferencePolicy:
        """The frozen base model: the model without its adapter, or else a copy."""
        if self.adapter:
            return ReferencePolicy(self.model, self.adapter.disable)
        return ReferencePolicy.from_directory(model_dir, self.placement)

    def _fits(self, row: TrainRow) -> bool:
        """Check that the model can take `row`. A peer's row that it cannot take is left out, so
        that the update does not fail. A peer's row longer than own ones must also fit a
        micro-batch, so that it does not use up the memory."""
        config = self.model.config
        inserted_ids = (token for _, ids in row.observations for token in ids)
        max_id = max(int(row.prompt_ids.max()), int(row.completion_ids.max()), *inserted_ids)
        as_own = row.completion_ids.size <= self.settings.longest_answer
        limit = config.max_position_embeddings
        if row.provenance is not Provenance.LOCAL and not as_own:
            limit = min(limit, self._gradient.token_budget)
        return max_id < config.vocab_size and len(row) <= limit

    def _clip_gradient(self) -> float:
        max_norm = self.settings.max_grad_norm
        return self._ranks.norm(torch.nn.utils.clip_grad_norm_(self._parameters.values(), max_norm))

    def _non_finite_fault(self, loss: float, grad_norm: float) -> str | None:
        broken = sum(not bool(part.isfinite().all()) for part in self._parts.values())
        parameters_finite = not self._ranks.sums([broken])[0]
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
        self.before_step()
        for name, part in self._parts.items():
            part.grad = self._ranks.gradient(self._parameters[name])
        self._optimizer.step(self.settings.rate_at(self._updates))
        for part in self._parts.values():
            part.grad = None
        self._updates += 1
        self.version += 1


def _peers_groups(rows: Iterable[TrainRow]) -> tuple[int, ...]:
    """The numbers of the groups of peers' rows."""
    return tuple(sorted({row.group for row in rows if row.provenance is not Provenance.LOCAL}))
