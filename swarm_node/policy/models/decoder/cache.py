"""Keys and values of the sequences that are being decoded.

They lie in one piece of memory, which is kept from call to call. A call takes views of it, and its
sequences stay where they are until some of them are dropped, or new ones take their places. So the
addresses that a CUDA graph has captured stay valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swarm_node.policy.models.config import ModelConfig


class KeyValueCache:
    """Keys and values of N sequences whose last tokens are in the same slot (left padding).

    `keys[l]`: [N * key/value heads, head_dim, capacity], `values[l]`: [N * key/value heads,
    capacity, head_dim], as the two batched products of a decode step read them; `bias`: [N *
    key/value heads, 1, capacity], very negative where a slot is padding; `positions`: i64[N], of
    the next token; `length`: slots in use; `slot`: i64[1], the same number on the device.

    With a `window`, a step attends to that many slots, of which the unused ones are masked. Its
    shapes and addresses are then those of the step before."""

    def __init__(
        self,
        keys: list[Tensor],
        values: list[Tensor],
        bias: Tensor,
        positions: Tensor,
        slot: Tensor,
        window: int | None = None,
    ) -> None:
        self.keys, self.values, self.bias = keys, values, bias
        self.positions, self.slot, self.window = positions, slot, window
        self.length = 0

    @property
    def capacity(self) -> int:
        return self.bias.shape[-1]

    @property
    def _masked_bias(self) -> float:
        """The bias of a slot that is not attended to."""
        return torch.finfo(self.bias.dtype).min

    @property
    def _unused_bias(self) -> float:
        """The bias of a slot that is not in use yet: without a window no step sees it."""
        return 0.0 if self.window is None else self._masked_bias

    def fill(self, key_values: Sequence[tuple[Tensor, Tensor]], mask: Tensor, rows: Tensor) -> None:
        """Take over key and value [B, T, key/value heads, d] of each layer: sequence n begins with
        prompt `rows[n]` (i64[N] below B). mask bool[B, T] is True at tokens."""
        n, slots = len(rows), mask.shape[1]
        for layer, (key, value) in enumerate(key_values):
            heads, d = key.shape[2:]
            keys = self.keys[layer].view(n, heads, d, -1)
            keys[..., :slots] = key.permute(0, 2, 3, 1).index_select(0, rows)
            values = self.values[layer].view(n, heads, -1, d)
            values[:, :, :slots] = value.transpose(1, 2).index_select(0, rows)
        bias = self.bias.view(n, -1, self.capacity)
        bias.fill_(self._unused_bias)
        token_mask = mask.index_select(0, rows)[:, None]
        padding = torch.zeros_like(token_mask, dtype=bias.dtype).masked_fill_(
            ~token_mask, self._masked_bias
        )
        bias[:, :, :slots] = padding
        self.positions.copy_(mask.sum(1).index_select(0, rows))
        self.length = slots
        self.slot.fill_(slots)

    def replace(
        self,
        key_values: Sequence[tuple[Tensor, Tensor]],
        mask: Tensor,
        rows: Tensor,
        places: Tensor,
    ) -> None:
        """Put new sequences in the place of sequences `places` (i64[M]): sequence m begins with
        prompt `rows[m]`. The prompts, which are as those of `fill`, end in the last slot in use."""
        slots = mask.shape[1]
        n, end, span = len(self.positions), self.length, slice(self.length - slots, self.length)
        for layer, (key, value) in enumerate(key_values):
            heads, d = key.shape[2:]
            keys = self.keys[layer].view(n, heads, d, -1)
            keys[places, :, :, span] = key.permute(0, 2, 3, 1).index_select(0, rows)
            values = self.values[layer].view(n, heads, -1, d)
            values[places, :, span] = value.transpose(1, 2).index_select(0, rows)
        token_mask = mask.index_select(0, rows)
        bias = self.bias.new_full((len(rows), 1, self.capacity), self._masked_bias)
        bias[:, 0, span].masked_fill_(token_mask, 0.0)
        bias[:, 0, end:] = self._unused_bias
        self.bias.view(n, -1, self.capacity)[places] = bias
        self.positions[places] = mask.sum(1).index_select(0, rows)

    def move(self, count: int, end: int) -> None:
        """Let the last `count` slots of all sequences end before slot `end`, and forget what lies
        before them."""
        source, target = slice(self.length - count, self.length), slice(end - count, end)
        new_slots = slice(self.length, end)
        for keys, values in zip(self.keys, self.values, strict=True):
            # Fresh memory may hold anything, and a masked slot must be finite.
            keys[:, :, new_slots] = values[:, new_slots] = 0.0
            keys[:, :, target] = keys[:, :, source].clone()
            values[:, target] = values[:, source].clone()
        self.bias[:, :, target] = self.bias[:, :, source].clone()
        self.bias[:, :, : end - count] = self._masked_bias
        self.bias[:, :, end:] = self._unused_bias
        self.length = end
        self.slot.fill_(end)

    def clamp_positions(self) -> None:
        """Keep all positions within the model's tables. Those of sequences that have ended grow on,
        because these stay in the batch while others take new places."""
        self.positions.clamp_(max=self.capacity - 1)

    def keep(self, rows: Tensor) -> None:
        """Drop every sequence but `rows` (i64[M]), which become the first M."""
        heads = self.bias.shape[0] // self.positions.shape[0]
        head_rows = (rows[:, None] * heads + torch.arange(heads, device=rows.device)).flatten()
        span = slice(0, self.length)
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            self.keys[layer] = _move_rows(keys, head_rows, (slice(None), span))
            self.values[layer] = _move_rows(values, head_rows, (span,))
        self.bias = _move_rows(self.bias, head_rows, ())
        self.positions = _move_rows(self.positions, rows, ())

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Append one token per sequence in `layer` and attend to all of it.

        query: [N, heads, d]; key, value: [N, key/value heads, d]. Returns [N, heads * d]."""
        n, _, d = query.shape
        keys, values = self.keys[layer], self.values[layer]
        if self.window is None:
            # On a CPU this takes half the time of the copies by index below.
            window = self.length + 1
            keys[:, :, self.length] = key.reshape(-1, d)
            values[:, self.length] = value.reshape(-1, d)
        else:
            window = self.window
            keys.index_copy_(2, self.slot, key.reshape(-1, d, 1))
            values.index_copy_(1, self.slot, value.reshape(-1, 1, d))
        keys, values = keys[:, :, :window], values[:, :window]
        # Query heads that share a key head become rows of one product: keys are never repeated.
        queries = query.reshape(keys.shape[0], -1, d)
        scores = torch.baddbmm(self.bias[:, :, :window], queries, keys, alpha=d**-0.5)
        return torch.bmm(scores.softmax(-1), values).view(n, -1)

    def unmask(self) -> None:
        """Let the next step see its own slot."""
        if self.window is not None:
            self.bias[:, :, self.length] = 0.0

    def advance(self) -> None:
        """The slot that the last step wrote is in use."""
        self.positions.add_(1)
        self.slot.add_(1)
        self.length += 1


class KeyValueMemory:
    """The memory of one model's keys and values, for as many sequences and slots as were ever
    needed at once."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._rows = self._slots = 0
        self._tensors: tuple[Tensor, ...] = ()

    def holds(self, rows: int, slots: int) -> bool:
        """Check that `reserve` leaves the memory as it is."""
        return rows <= self._rows and slots <= self._slots

    def reserve(self, rows: int, slots: int, prototype: Tensor) -> None:
        """Have room for `rows` sequences, and for `slots` slots of all sequences together, in the
        type and on the device of `prototype`."""
        if self.holds(rows, slots):
            return
        rows, slots = max(rows, self._rows), max(slots, self._slots)
        self.release()  # before the new memory is asked for
        config, device = self._config, prototype.device
        self._tensors = (
            prototype.new_empty(2 * config.num_hidden_layers, slots * config.key_value_size),
            prototype.new_empty(slots * config.num_key_value_heads),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )
        self._rows, self._slots = rows, slots

    @property
    def tokens(self) -> Tensor:
        """i64[rows]: a place for the tokens of a step."""
        return self._tensors[-1]

    def clear(self) -> None:
        """Set all of it to zero: masked numbers must be finite."""
        for tensor in self._tensors:
            tensor.zero_()

    def release(self) -> None:
        """Give the memory back."""
        self._tensors = ()
        self._rows = self._slots = 0

    def view(self, rows: int, capacity: int, window: int | None = None) -> KeyValueCache:
        """A cache of the first `rows` sequences, each of `capacity` slots. Caches of one capacity
        share their sequences."""
        buffer, bias, positions, slot, _ = self._tensors
        heads, d = self._config.num_key_value_heads, self._config.head_dim
        n = rows * heads
        parts = buffer[:, : n * d * capacity]
        layers = self._config.num_hidden_layers
        return KeyValueCache(
            [part.view(n, d, capacity) for part in parts[:layers]],
            [part.view(n, capacity, d) for part in parts[layers:]],
            bias[: n * capacity].view(n, 1, capacity),
            positions[:rows],
            slot,
            window,
        )


def _move_rows(tensor: Tensor, rows: Tensor, spans: tuple[slice, ...]) -> Tensor:
    """Copy `rows` of `tensor` to its first rows, each row cut to the part `spans`. Return the first
    rows."""
    target = tensor[: len(rows)]
    part = (slice(None), *spans)
    target[part] = tensor[part].index_select(0, rows)
    return target
