"""The gradient of one update, micro-batch by micro-batch, in whatever memory there is."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field

import torch
from torch import nn

from swarm_node.errors import ModelError
from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.models.qwen2 import Qwen2
from swarm_node.policy.training.logprobs import (
    ReferencePolicy,
    RowReference,
    claimed_tokens,
    completion_logprobs,
    token_vectors,
)
from swarm_node.policy.training.losses import (
    BatchSize,
    ClipBounds,
    LossFn,
    LossSums,
    check_claims,
    off_policy_mask,
)
from swarm_node.policy.training.packing import padded_tokens
from swarm_node.policy.training.ranks import ALONE, Ranks, rounds

#: How torch's CPU allocator says what on a GPU is a `torch.OutOfMemoryError`.
_CPU_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Accumulated:
    """Of one update, over its micro-batches."""

    loss: float = 0.0
    implausible: int = 0
    masked: int = 0
    sums: LossSums = field(default_factory=LossSums)


class GradientPass:
    """Accumulates the gradient of a batch in `parameters`, those of `model` that are trained.

    `token_budget` bounds rows × longest row of a micro-batch. It is halved, for good, when memory
    does not suffice, and `halvings` counts that.
    """

    def __init__(
        self,
        model: Qwen2,
        parameters: Iterable[nn.Parameter],
        loss: LossFn,
        bounds: ClipBounds,
        *,
        temperature: float,
        token_budget: int,
        off_policy_mask: float | None = None,
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
        self._mask = off_policy_mask
        self._reference = reference
        self._ranks = ranks

    def accumulate(self, rows: Sequence[TrainRow], size: BatchSize, version: int) -> Accumulated:
        """The gradient of `rows`, which are not empty, for an update of policy `version`; of
        several processes each computes for its share of the rows, and all get the sum.

        Out of memory, it starts again from nothing with micro-batches of half the tokens: the
        result is the same up to the order of summation. One of several processes cannot, for the
        others are in the middle of a step with it: it notes the smaller size, and raises.

        Raises:
            ModelError: a single row does not fit in memory.
        """
        while True:
            done = self._attempt(rows, size, version)
            if done is not None:
                return done
            # Outside of any handler: an exception in flight holds the frames, they the tensors.
            self._clear()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._halve(rows)

    def _attempt(
        self, rows: Sequence[TrainRow], size: BatchSize, version: int
    ) -> Accumulated | None:
        """None when memory did not suffice."""
        self._clear()
        try:
            return self._accumulate(rows, size, version)
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
            if self._ranks.count > 1:
                self._note_smaller(rows)
                raise
            return None

    def _accumulate(self, rows: Sequence[TrainRow], size: BatchSize, version: int) -> Accumulated:
        done = Accumulated()
        references: dict[int, RowReference] | None = None
        mine = self._rounds(rows)
        if self._reference is not None:
            references = self._reference.judge(self._model, rows, self._temperature, mine)
        for indices in mine:
            part = [rows[index] for index in indices] or [min(rows, key=len)]
            logp = completion_logprobs(self._model, part, self._temperature)
            if not indices:  # nothing left for this process, but all go through the model together
                (0.0 * logp.sum()).backward()  # type: ignore[no-untyped-call]
                continue
            known = [references[index] for index in indices] if references else None
            tokens = token_vectors(part, logp, version, known)
            tokens, implausible = check_claims(tokens, claimed_tokens(part))
            done.implausible += implausible
            if self._mask is not None:
                tokens, masked = off_policy_mask(tokens, self._mask)
                done.masked += masked
            loss, sums = self._loss(tokens, self._bounds, size)
            loss.backward()  # type: ignore[no-untyped-call]
            done.loss += float(loss.detach())
            done.sums += sums
        self._ranks.add_gradients(self._parameters)
        return self._added(done)

    def _added(self, done: Accumulated) -> Accumulated:
        """What all processes did together."""
        counts = [done.loss, done.implausible, done.masked]
        loss, implausible, masked, *sums = self._ranks.sums([*counts, *astuple(done.sums)])
        return Accumulated(loss, round(implausible), round(masked), LossSums(*sums))

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _rounds(self, rows: Sequence[TrainRow]) -> list[list[int]]:
        judged = self._reference is not None
        return rounds(rows, self.token_budget, self._ranks, whole_groups=judged)

    def _halve(self, rows: Sequence[TrainRow]) -> None:
        self.token_budget = self._smaller(rows)
        self.halvings += 1
        _log.warning("out of memory: micro-batches of %d tokens from now on", self.token_budget)

    def _note_smaller(self, rows: Sequence[TrainRow]) -> None:
        try:
            self._ranks.shrink(self._smaller(rows))
        except ModelError as error:  # this process dies all the same, of what it ran out of
            _log.error("%s", error)

    def _smaller(self, rows: Sequence[TrainRow]) -> int:
        groups = self._rounds(rows)
        if all(len(group) <= 1 for group in groups):
            raise ModelError(
                f"not enough memory to train on one row at a time, of {max(map(len, rows))} tokens "
                "at most: set policy.activation_checkpointing, or policy.lora_rank, or a smaller "
                "sampling.max_new_tokens"
            )
        # Of the largest micro-batch there was: half of a budget far above it would change nothing.
        largest = max(padded_tokens(rows, group) for group in groups if group)
        return max(1, min(self.token_budget, largest) // 2)


def _out_of_memory(error: RuntimeError | MemoryError) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return any(words in str(error) for words in _CPU_OUT_OF_MEMORY)
