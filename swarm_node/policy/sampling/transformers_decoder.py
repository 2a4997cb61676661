"""Decodes with a model that transformers computes: a batch from prompts to ends, step by step.

No row takes the place of one that ended. Prompts run once and are copied for their rows; the cache
is transformers'.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from swarm_node.policy.memory.out_of_memory import free_caches
from swarm_node.policy.models.by_transformers.language_model import TransformersLM
from swarm_node.policy.sampling.decoding import CacheShape


class TransformersDecoder:
    """A `BatchDecoder` of one model."""

    def __init__(self, model: TransformersLM, shape: CacheShape | None = None) -> None:
        """`shape` bounds the rows of a batch, as a plan of the memory grants them."""
        self.model = model
        self.shape = shape
        self._cache: Any = None
        self._mask = torch.zeros(0, 0, dtype=torch.bool)
        self._positions = torch.zeros(0, dtype=torch.int64)

    def begin(
        self, ids: Tensor, mask: Tensor, rows: Tensor, steps: int, refill_length: int | None = None
    ) -> Tensor:
        """See `Decoder.begin`; no sequences come later."""
        assert refill_length is None, "no row takes another's place"
        self._cache = None  # first, because it holds the memory of before
        hidden_states, self._cache = self.model.start(ids, mask)
        self._cache.batch_select_indices(rows)
        self._mask = mask.index_select(0, rows)
        self._positions = self._mask.sum(1)
        return self.model.logits(hidden_states.index_select(0, rows))

    def step(self, tokens: Tensor) -> Tensor:
        """See `Decoder.step`."""
        self._mask = torch.cat([self._mask, torch.ones_like(self._mask[:, :1])], 1)
        hidden_states = self.model.step(tokens, self._mask, self._positions, self._cache)
        self._positions = self._positions + 1
        return self.model.logits(hidden_states)

    def keep(self, rows: Tensor) -> None:
        """See `Decoder.keep`."""
        self._cache.batch_select_indices(rows)
        self._mask, self._positions = self._mask[rows], self._positions[rows]

    def forget(self) -> None:
        """There are no graphs."""

    def shrink(self, rows: int) -> None:
        """See `Decoder.shrink`."""
        self._cache = None
        if self.shape is not None:
            self.shape = replace(self.shape, rows=min(rows, self.shape.rows))
        free_caches()
