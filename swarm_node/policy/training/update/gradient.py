"""The gradient of one update, accumulated over micro-batches that fit the memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace

from torch import nn

from swarm_node.errors import ModelError
from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.memory.footprint import TrainingMethod, logit_elements
from swarm_node.policy.memory.out_of_memory import free_caches, out_of_memory, trim_heap
from swarm_node.policy.models.loading import PolicyModel
from swarm_node.policy.placement import Precision
from swarm_node.policy.training.objective.logprobs import (
    ReferencePolicy,
    RowReference,
    claimed_tokens,
    completion_scores,
    token_vectors,
)
from swarm_node.policy.training.objective.losses import (
    BatchSize,
    ClipBounds,
    LossFn,
    LossSums,
    check_claims,
)
from swarm_node.policy.training.objective.packing import padded_tokens
from swarm_node.policy.training.objective.plausible import learnt, likely_tokens
from swarm_node.policy.training.update.ranks import ALONE, Ranks, rounds

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Accumulated:
    """Sums over the micro-batches of one update."""

    loss: float = 0.0
    implausible_rows: int = 0
    tokens: int = 0
    #: Entropy of the policy at these tokens, in nats.
    entropy: float = 0.0
    sums: LossSums = field(default_factory=LossSums)
    #: Number of rows of each group that were left out as unlikely.
    unlikely_rows: list[int] = field(default_factory=list)
    #: For each group, the sum of `learnt` over its rows.
    group_gains: list[float] = field(default_factory=list)


class LossScale:
    """The factor of the loss in float16, in which a gradient below 6e-8 is 0 (Mixed Precision
    Training, arXiv 1710.03740). It is halved until the gradient is finite, and doubled after
    `GROWS` updates without that. In other types it is 1."""

    GROWS = 200

    def __init__(self, dtype: Precision) -> None:
        self.factor = 65_536.0 if dtype == "float16" else 1.0
        self._scales = dtype == "float16"
        self._finite_steps = 0

    def undo(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Divide the gradients by the factor. False if they overflowed, and a smaller one may
        help."""
        if not self._scales:
            return True
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            self._finite_steps = 0
            self.factor /= 2
            return self.factor < 1  # then something else is wrong
        for gradient in gradients:
            gradient.div_(self.factor)
        self._finite_steps += 1
        if self._finite_steps % self.GROWS == 0:
            self.factor *= 2
        return True


class GradientPass:
    """Accumulates the gradient of a batch in `parameters`, the trained parameters of `model`.

    `token_budget` bounds rows × longest row of a micro-batch. When memory runs out, the budget is
    halved for good, and for single rows activations are recomputed; `halvings` counts how often.
    `way` says what is trained, in which type.
    """

    def __init__(
        self,
        model: PolicyModel,
        parameters: Iterable[nn.Parameter],
        loss: LossFn,
        bounds: ClipBounds,
        *,
        temperature: float,
        token_budget: int,
        way: TrainingMethod,
        reference: ReferencePolicy | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.token_budget = ranks.token_budget(token_budget)
        self.halvings = 0
        self._model = model
        self._parameters = tuple(parameters)
        self._loss = loss
        self._bounds = bounds
        self._temperature = temperature
        self._way = way
        self._reference = reference
        self._ranks = ranks
        self.scale = LossScale(way.dtype)

    def accumulate(
        self, rows: Sequence[TrainRow], size: BatchSize, version: int, floors: Sequence[float]
    ) -> Accumulated:
        """Accumulate the gradient of `rows` (at least one) for an update of policy `version`. With
        several processes, each computes the gradient of its share, and all get the sum. `floors`
        are those of `likely_tokens`.

        When memory runs out, a single process discards the gradient and starts again with
        micro-batches of half the tokens. The result is the same up to the order of summation. One
        of several processes cannot start again, because the others wait for it in a collective
        step: it stores the smaller budget for the restart, and raises.

        Raises:
            ModelError: a single row does not fit in memory.
        """
        while True:
            result = self._attempt(rows, size, version, floors)
            if result is not None:
                # Where the loss itself is not finite, no factor helps.
                if not math.isfinite(result.loss) or self.scale.undo(self._parameters):
                    return result
                continue
            # Not in an exception handler: there the traceback would keep the tensors alive.
            self._clear()
            free_caches()
            self._halve(rows)

    def _attempt(
        self, rows: Sequence[TrainRow], size: BatchSize, version: int, floors: Sequence[float]
    ) -> Accumulated | None:
        """Accumulate the gradient once. Return None when memory ran out."""
        self._clear()
        try:
            return self._accumulate(rows, size, version, floors)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if self._ranks.count > 1:
                self._note_smaller(rows)
                raise
            return None

    def _accumulate(
        self, rows: Sequence[TrainRow], size: BatchSize, version: int, floors: Sequence[float]
    ) -> Accumulated:
        groups = 1 + max(row.group for row in rows)
        result = Accumulated(unlikely_rows=[0] * groups, group_gains=[0.0] * groups)
        references: dict[int, RowReference] | None = None
        micro_batches = self._rounds(rows)
        if self._reference is not None:
            references = self._reference.log_probs(
                self._model, rows, self._temperature, micro_batches
            )
        on_cpu = self._parameters[0].device.type == "cpu"
        for number, indices in enumerate(micro_batches):
            if number and on_cpu:
                trim_heap()
            part = [rows[index] for index in indices] or [min(rows, key=len)]
            logp, entropy = completion_scores(
                self._model, part, self._temperature, self._most_logits
            )
            if not indices:  # no row left here, but every process must take part in the pass
                (0.0 * logp.sum()).backward()  # type: ignore[no-untyped-call]
                continue
            row_references = [references[index] for index in indices] if references else None
            tokens = token_vectors(part, logp, version, row_references)
            logp_array = logp.detach().numpy()
            mask, left_out = likely_tokens(logp_array, part, floors)
            for group in left_out:
                result.unlikely_rows[group] += 1
            for row, value in zip(part, learnt(logp_array, part, mask.numpy()), strict=True):
                result.group_gains[row.group] += value
            claimed = claimed_tokens(part)[mask]
            tokens, outliers = check_claims(tokens.select(mask), claimed)
            result.implausible_rows += outliers
            result.tokens += len(logp)
            result.entropy += entropy
            loss, sums = self._loss(tokens, self._bounds, size)
            (self.scale.factor * loss).backward()  # type: ignore[no-untyped-call]
            result.loss += float(loss.detach())
            result.sums += sums
        self._ranks.add_gradients(self._parameters)
        return self._all_reduce_sums(result)

    def _all_reduce_sums(self, result: Accumulated) -> Accumulated:
        """The sums over all processes."""
        counts = [result.loss, result.implausible_rows, result.tokens, result.entropy]
        parts = astuple(result.sums)
        totals = self._ranks.sums([*counts, *parts, *result.unlikely_rows, *result.group_gains])
        loss, outliers, tokens, entropy, *rest = totals
        sums, rest = LossSums(*rest[: len(parts)]), rest[len(parts) :]
        unlikely_rows = [round(n) for n in rest[: len(result.unlikely_rows)]]
        gains = rest[len(result.unlikely_rows) :]
        return Accumulated(
            loss, round(outliers), round(tokens), entropy, sums, unlikely_rows, gains
        )

    def _most_logits(self, tokens: int) -> int:
        way = replace(self._way, checkpointing=self._model.recompute, micro_batch_tokens=tokens)
        return logit_elements(self._model.config, way, longest_row=0)

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _rounds(self, rows: Sequence[TrainRow]) -> list[list[int]]:
        has_reference = self._reference is not None
        return rounds(
            *(rows, self.token_budget, self._ranks),
            whole_groups=has_reference,
            share=self._model.shares_prompts,
        )

    def _halve(self, rows: Sequence[TrainRow]) -> None:
        try:
            self.token_budget = self._smaller(rows)
        except ModelError:
            if self._model.recompute:
                raise
            self._model.recompute = True
        self.halvings += 1
        suffix = ", recomputed" * self._model.recompute
        _log.warning("out of memory: micro-batches of %d tokens%s", self.token_budget, suffix)

    def _note_smaller(self, rows: Sequence[TrainRow]) -> None:
        try:
            self._ranks.shrink(self._smaller(rows))
        except ModelError as error:  # the caller raises the error about memory
            _log.error("%s", error)

    def _smaller(self, rows: Sequence[TrainRow]) -> int:
        groups = self._rounds(rows)
        if all(len(group) <= 1 for group in groups):
            raise ModelError(
                f"not enough memory to train on one row at a time, of {max(map(len, rows))} tokens "
                "at most",
                "set training.lora_rank or a smaller sampling.max_new_tokens",
            )
        # Half of the largest micro-batch: half of a budget far above it would change nothing.
        share = self._model.shares_prompts
        max_tokens = max(padded_tokens(rows, group, share) for group in groups if group)
        return max(1, min(self.token_budget, max_tokens) // 2)
