"""Attention over whole sequences: causal, or of several answers to the prompt that they share.

On CUDA, torch's flash kernel takes half-precision numbers and no mask. Its efficient kernel takes
float32 too, but (torch 2.13) no fewer key heads than query heads. Inputs that neither takes go to a
kernel that holds the scores of all pairs of tokens. So attention here needs no mask on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.backends.cuda import is_flash_attention_available

#: Attention's result [B, T, heads * d] for query [B, T, heads, d], and key and value [B, T,
#: key/value heads, d].
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

#: The longest sequences that take a mask, which has the square of their tokens. On a CPU one masked
#: call is faster than one call for every answer up to about this length (benchmarks/trainer.py).
_MOST_MASKED = 512
#: Limits of the flash kernel for CUDA: heads up to this size, on a GPU at least so capable.
_MOST_HEAD, _AMPERE = 256, (8, 0)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The `Attend` in which a token attends to itself and to those before it."""
    return _fused_attention(*_of_one_type(query, key, value))


def within(segments: Tensor, device: torch.device) -> tuple[Attend, Tensor]:
    """Attention for `segments` i64[B, T], and the positions i64[B, T] of the tokens on `device`.

    The tokens of a segment are adjacent, and those of segment 0 come first. A token attends to
    segment 0 and to its own, itself included and never to what comes later. A token of padding
    (segment −1) attends to padding, and may to segment 0, so that its result is a number."""
    segments = segments.cpu()
    if device.type == "cpu" and segments.shape[1] <= _MOST_MASKED:
        mask = _visible(segments)
        return Masked(mask), mask[:, 0].sum(-1) - 1
    spans = Spans(segments.numpy(), device)
    return spans, spans.positions


class Masked:
    """Attention under a mask bool[B, 1, T, T]."""

    def __init__(self, mask: Tensor) -> None:
        self._mask = mask

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = _of_one_type(query, key, value)
        self._mask = _mask_to_bias(self._mask, query.dtype)
        return _fused_attention(query, key, value, self._mask)


class Spans:
    """Attention span by span, without a mask, and with memory linear in the tokens. A span is a
    sequence's prompt with the answer behind it, or one further answer. Keys and values of the
    prompt are copied in front of those of each further answer; there the causal triangle begins.

    `positions` i64[B, T] are those of the tokens."""

    def __init__(self, segments: NDArray[np.int64], device: torch.device) -> None:
        """`segments` are those of `within`."""
        positions = np.zeros(segments.size, np.int64)
        key_indices: list[NDArray[np.int64]] = []
        self._queries: list[int] = []
        self._keys: list[int] = []
        for prompt, begin, end in _spans(segments):
            positions[begin:end] = np.arange(end - begin) + len(prompt)
            key_indices += [np.asarray(prompt, np.int64), np.arange(begin, end)]
            self._queries.append(end - begin)
            self._keys.append(end - begin + len(prompt))
        self.positions = torch.from_numpy(positions.reshape(segments.shape)).to(device)
        self._key_indices = torch.from_numpy(np.concatenate(key_indices)).to(device)
        self._query_ends, self._key_ends = (
            torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int32, device=device)
            for sizes in (self._queries, self._keys)
        )
        self._masks: dict[tuple[int, int], Tensor] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, length = query.shape[:2]
        query, key, value = _of_one_type(query, key, value)
        key, value = self._copy_spans(key), self._copy_spans(value)
        output = (self._at_once if _flash(query) else self._one_by_one)(
            query.flatten(0, 1), key, value
        )
        return output.reshape(batch, length, -1)

    def _copy_spans(self, part: Tensor) -> Tensor:
        """Keys or values [sum of the spans' keys, heads, d] of [B, T, heads, d]."""
        # An embedding's backward pass adds the copies up in float32, in the same order every time.
        copies = F.embedding(self._key_indices, part.flatten(2).flatten(0, 1))
        return copies.view(-1, *part.shape[2:])

    def _at_once(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn  # defines operators: only where used

        options: dict[str, Any] = {"enable_gqa": True}
        if not _groups_heads(varlen_attn):
            options, times = {}, query.shape[1] // key.shape[1]
            key, value = _repeat_heads(key, times), _repeat_heads(value, times)
        output = varlen_attn(
            query,
            key,
            value,
            *(self._query_ends, self._key_ends, max(self._queries), max(self._keys)),
            window_size=(-1, 0),  # causal, and aligned with the last key
            **options,
        )
        assert isinstance(output, Tensor)
        return output

    def _one_by_one(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        spans = zip(
            torch.split(query, self._queries),
            torch.split(key, self._keys),
            torch.split(value, self._keys),
            strict=True,
        )
        return torch.cat(
            [
                _fused_attention(q[None], k[None], v[None], self._mask(len(q), len(k), q))[0]
                for q, k, v in spans
            ]
        )

    def _mask(self, queries: int, keys: int, prototype: Tensor) -> Tensor | None:
        """None where all keys are the queries' own, else a triangle aligned with the last key."""
        if queries == keys:
            return None
        if prototype.is_cuda:  # not a tensor of that size: it names the triangle to the kernel
            from torch.nn.attention.bias import causal_lower_right

            return causal_lower_right(queries, keys)
        size = queries, keys
        if size not in self._masks:
            self._masks[size] = torch.ones(size, dtype=torch.bool).tril(keys - queries)
        self._masks[size] = _mask_to_bias(self._masks[size], prototype.dtype)
        return self._masks[size]


def _spans(segments: NDArray[np.int64]) -> Iterator[tuple[range, int, int]]:
    """Yield three things for each span: the prompt whose keys are copied in front of its own, its
    begin, and its end. All count tokens of the flattened batch. Spans come in order and cover the
    batch; padding makes spans of its own."""
    for row, numbers in enumerate(segments):
        start = row * len(numbers)
        prompt_indices = np.flatnonzero(numbers == 0) + start
        prompt = (
            range(prompt_indices[0], prompt_indices[-1] + 1) if prompt_indices.size else range(0)
        )
        changes = np.flatnonzero(np.diff(numbers)) + 1
        # The first answer needs no copy: it goes on with the prompt, in one span.
        boundaries = [
            place for place in changes.tolist() if numbers[place - 1] != 0 or numbers[place] < 0
        ]
        for begin, end in pairwise([0, *boundaries, len(numbers)]):
            yield prompt if numbers[begin] > 0 else range(0), start + begin, start + end


def _fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    """[B, Tq, heads * d] for query [B, Tq, heads, d], and key and value [B, Tk, key/value heads,
    d]; causal without a mask, and then Tq is Tk."""
    times = query.shape[2] // key.shape[2]
    if query.is_cuda and not _flash(query):
        key, value = _repeat_heads(key, times), _repeat_heads(value, times)
        times = 1
    output = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=times > 1,
    )
    return output.transpose(1, 2).flatten(2)


def _repeat_heads(part: Tensor, times: int) -> Tensor:
    """Keys or values [..., heads, d] with each head `times` times. Autograd keeps them, which a
    plan of the memory knows (`placement.repeats_heads`)."""
    return part.repeat_interleave(times, dim=-2)


def _groups_heads(varlen_attn: Callable[..., Any]) -> bool:
    """Check that this torch's `varlen_attn` takes fewer key heads than query heads."""
    return "enable_gqa" in signature(varlen_attn).parameters


def _mask_to_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a mask of booleans to a bias that is added to scores of type `dtype`; a bias is
    returned as it is. From booleans torch would make it anew in every layer, and keep it for the
    backward pass."""
    if mask.dtype == dtype:
        return mask
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.where(mask, torch.zeros((), dtype=dtype), torch.full((), -torch.inf, dtype=dtype))


def _flash(query: Tensor) -> bool:
    """Check that torch's flash kernel for CUDA takes these numbers without padding their heads."""
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= _MOST_HEAD
        and is_flash_attention_available()
        and torch.cuda.get_device_capability(query.device) >= _AMPERE
    )


def _of_one_type(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three in the type of matrix products. Under autocast, rotated heads can be float32 where
    values are not."""
    device = query.device.type
    if not torch.is_autocast_enabled(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _visible(segments: Tensor) -> Tensor:
    """bool[B, 1, T, T] for segments i64[B, T]: the tokens that each token attends to, itself
    included. The position of a token that is no padding is one less than their number."""
    keys, queries = segments[:, None, None, :], segments[:, None, :, None]
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    # Padding attends to padding too: a row without any key would be NaN, and nobody reads this one.
    return (keys == queries).logical_or_(keys == 0).logical_and_(causal)
