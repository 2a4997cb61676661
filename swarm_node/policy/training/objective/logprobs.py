"""Log-probs of training rows under a model, and the token vectors that losses take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from swarm_node.errors import ModelError
from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.memory.footprint import LEAST_LOGITS
from swarm_node.policy.models.loading import PolicyModel
from swarm_node.policy.placement import ON_CPU, Placement
from swarm_node.policy.training.objective.head import head_logprobs, logit_logprobs
from swarm_node.policy.training.objective.losses import Tokens
from swarm_node.policy.training.objective.packing import arrange
from swarm_node.policy.weights.base import make_base
from swarm_node.policy.weights.canary import Canary, canary_ids
from swarm_node.rollout import Provenance


def completion_logprobs(
    model: PolicyModel,
    rows: Sequence[TrainRow],
    temperature: float,
    logit_elements: int = LEAST_LOGITS,
) -> Tensor:
    """log π f32[N] of the completion tokens of `rows`, row after row, with gradient. The result is
    in main memory wherever the model is, because a loss is many small steps, which are faster there
    than on a GPU.

    Logits are computed at completion positions only, and at most `logit_elements` of them at once
    (`head_logprobs`).
    """
    return completion_scores(model, rows, temperature, lambda tokens: logit_elements)[0]


def completion_scores(
    model: PolicyModel,
    rows: Sequence[TrainRow],
    temperature: float,
    logit_elements: Callable[[int], int],
) -> tuple[Tensor, float]:
    """`completion_logprobs`, and the sum of the entropies of π at these tokens, in nats; 0 where no
    gradient is asked for. `logit_elements` takes the tokens of the micro-batch."""
    arrangement = arrange(rows, model.shares_prompts)
    device = model.embedding.device
    ids, places = torch.from_numpy(arrangement.ids), torch.from_numpy(arrangement.places)
    segments = None if arrangement.segments is None else torch.from_numpy(arrangement.segments)
    logp, entropy = model.whole(
        _scores,
        *(model, ids.to(device), segments, places.to(device)),
        *(temperature, logit_elements(arrangement.ids.size)),
    )
    return logp, 0.0 if entropy is None else float(entropy.double().sum())


def _scores(
    model: PolicyModel,
    ids: Tensor,
    segments: Tensor | None,
    places: Tensor,
    temperature: float,
    logit_elements: int,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs and entropies of an `Arrangement` with these ids, segments and places."""
    at_sequence, at_position, target = places
    hidden_states = model.hidden(ids, segments)[at_sequence, at_position]

    piece = max(1, logit_elements // model.config.vocab_size)
    weight = model.head_weight
    if weight is None:
        logp, entropy = logit_logprobs(model.logits, hidden_states, target, temperature, piece)
    else:
        logp, entropy = head_logprobs(weight, hidden_states, target, temperature, piece)
    return logp.cpu(), entropy


@torch.no_grad()
def measure_canary(model: PolicyModel, text: Sequence[int] = ()) -> Canary:
    """The canary of `model` with its current weights, by one forward pass over a few tokens. For
    `text` see `canary_ids`.

    Raises:
        ModelError: numbers of the model are too large for float16.
    """
    ids = canary_ids(model.config.vocab_size, model.config.max_position_embeddings, text)
    tokens = np.asarray(ids, np.uint32)
    row = TrainRow(tokens[:1], tokens[1:], None, 0.0, Provenance.LOCAL)
    logp = completion_logprobs(model, [row], 1.0)
    if model.products is torch.float16 and not bool(logp.isfinite().all()):
        raise ModelError(
            'the model\'s numbers overflow in float16: set training.dtype to "float32"'
        )
    return Canary(ids, tuple(logp.tolist()))


@dataclass(frozen=True, slots=True)
class RowReference:
    """One row under the reference policy: its log-probs `logp` f32[T], and `drift`, the mean of
    Σ(log π − log π_ref) over the rows of its group."""

    logp: NDArray[np.float32]
    drift: float


class ReferencePolicy:
    """The frozen base model. It costs two forward passes per row, and memory where it is a copy."""

    def __init__(
        self,
        model: PolicyModel,
        base_context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`model` computes the base policy inside the context `base_context()`."""
        self._model = model
        self._base_context = base_context

    @classmethod
    def from_directory(cls, model_dir: Path, placement: Placement = ON_CPU) -> Self:
        """Load a second copy of the model, in the type of the products.

        Raises:
            ModelError: `model_dir` holds no model that can be used here.
        """
        return cls(make_base(model_dir, None, placement))

    @torch.no_grad()
    def log_probs(
        self,
        model: PolicyModel,
        rows: Sequence[TrainRow],
        temperature: float,
        rounds: Sequence[Sequence[int]],
    ) -> dict[int, RowReference]:
        """One entry for each row in `rounds`, the micro-batches. For an empty micro-batch the
        models run without a result, because every process must take part. `drift` is a mean over a
        whole group, whose rows may be in several micro-batches, so all rows are passed before the
        first gradient."""
        logps: dict[int, NDArray[np.float32]] = {}
        distances: dict[int, float] = {}
        for indices in rounds:
            part = [rows[index] for index in indices] or [min(rows, key=len)]
            sizes = [row.completion_ids.size for row in part]
            now = torch.split(completion_logprobs(model, part, temperature), sizes)
            with self._base_context():
                base = torch.split(completion_logprobs(self._model, part, temperature), sizes)
            for index, policy_logp, base_logp in zip(indices, now, base, strict=False):
                logps[index] = base_logp.numpy()
                distances[index] = float((policy_logp - base_logp).double().sum())
        groups: dict[int, list[float]] = defaultdict(list)
        for index, distance in distances.items():
            groups[rows[index].group].append(distance)
        drift = {group: sum(values) / len(values) for group, values in groups.items()}
        return {
            index: RowReference(logp, drift[rows[index].group]) for index, logp in logps.items()
        }


def token_vectors(
    rows: Sequence[TrainRow],
    logp: Tensor,
    version: int,
    references: Sequence[RowReference] | None = None,
) -> Tokens:
    """The token vectors of `rows`, in the order of `logp`, for an update of policy `version`."""
    sizes = [row.completion_ids.size for row in rows]

    def spread(values: Sequence[float | bool], dtype: type[np.generic]) -> Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values, dtype), sizes))

    def join_parts(parts: Sequence[NDArray[np.generic]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts))

    zeros = [np.zeros(size, np.float32) for size in sizes]
    return Tokens(
        logp=logp,
        behaviour=join_parts(
            [z if r.logprobs is None else r.logprobs for r, z in zip(rows, zeros, strict=True)]
        ),
        is_measured=spread([row.logprobs is not None for row in rows], np.bool_),
        advantage=spread([row.advantage for row in rows], np.float32),
        row=spread(range(len(rows)), np.int64),
        staleness=join_parts([_behind(row, version) for row in rows]),
        reference=join_parts([ref.logp for ref in references] if references else zeros),
        drift=spread(
            [ref.drift for ref in references] if references else [0.0] * len(rows), np.float32
        ),
    )


def claimed_tokens(rows: Sequence[TrainRow]) -> Tensor:
    """bool[N]: True where a peer stated the token's log μ, if it has one."""
    sizes = [row.completion_ids.size for row in rows]
    is_external = [row.provenance is not Provenance.LOCAL for row in rows]
    return torch.from_numpy(np.repeat(np.asarray(is_external, np.bool_), sizes))


def _behind(row: TrainRow, version: int) -> NDArray[np.int64]:
    if row.versions is None:
        return np.full(row.completion_ids.size, -1, np.int64)
    # After a crash the sampler may have been ahead of the checkpoint; that counts as not behind.
    return np.maximum(version - row.versions, 0)
