"""The native decoder of the Llama lineage, which the trainer and the built-in sampler run.

Same function as transformers' classes of `families.FAMILIES`, with q/k/v and gate/up fused into one
matrix each (fewer, larger matrix products) and a cached decode path for sampling. Weights are
exchanged under transformers' names, so a checkpoint of this model loads anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from swarm_node.policy.models.config import ModelConfig, weight_files
from swarm_node.policy.models.decoder.attention import Attend, causal, within
from swarm_node.policy.models.decoder.cache import KeyValueCache
from swarm_node.policy.models.decoder.nf4 import FourBit
from swarm_node.policy.models.names import hf_parts
from swarm_node.policy.models.tensors import (
    check_finite,
    check_weights,
    load_safetensors,
    on_host,
)

__all__ = ["MATRICES", "CausalLM", "DecoderLayer", "ModelConfig", "hf_parts"]

#: Output of an adapter for x [..., in]. It is added to one projection: "qkv", "out", "gate_up" or
#: "down".
Added = Callable[[str, Tensor], Tensor]
_Made = TypeVar("_Made")

#: The matrices of a layer; its other parameters are vectors.
MATRICES = ("qkv", "out", "gate_up", "down")
_INIT_STD = 0.02
_DERIVED = ".rotary_emb.inv_freq"
#: Tokens and padding of prompts that a CPU reads in one pass: more make it hardly faster.
_READ_AT_ONCE = 2048


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis (arXiv 1910.07467), in float32."""
    # On a CPU, torch's own function takes twice as long for the few rows of a decode step.
    upcast = x.float()
    normed = upcast * torch.rsqrt((upcast * upcast).mean(-1, keepdim=True) + epsilon)
    return normed.to(x.dtype) * weight


class DecoderLayer(nn.Module):
    """One pre-norm block: grouped-query attention, then a gated MLP. `adapter` computes an
    adapter's outputs for its projections; None without an adapter. `four_bit` has the projections
    whose matrices are frozen in four bits; their parameters here are NaN and only say the shape."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden_size, query = config.hidden_size, config.query_size
        qkv_size = query + 2 * config.key_value_size
        self.config = config
        self.adapter: Added | None = None
        self.four_bit: dict[str, FourBit] = {}
        self.input_norm = nn.Parameter(torch.ones(hidden_size))
        self.qkv = nn.Parameter(torch.empty(qkv_size, hidden_size))
        self.qkv_bias: nn.Parameter | None = None
        self.query_norm: nn.Parameter | None = None
        self.key_norm: nn.Parameter | None = None
        if config.family.head_norms:
            self.query_norm = nn.Parameter(torch.ones(config.head_dim))
            self.key_norm = nn.Parameter(torch.ones(config.head_dim))
        if config.family.qkv_bias:
            self.qkv_bias = nn.Parameter(torch.zeros(qkv_size))
        self.out = nn.Parameter(torch.empty(hidden_size, query))
        self.post_norm = nn.Parameter(torch.ones(hidden_size))
        self.gate_up = nn.Parameter(torch.empty(2 * config.intermediate_size, hidden_size))
        self.down = nn.Parameter(torch.empty(hidden_size, config.intermediate_size))

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated query, rotated key and value, [..., heads, d] each, of x [..., hidden]."""
        config = self.config
        y = rms_norm(x, self.input_norm, config.rms_norm_eps)
        heads, kv = config.num_attention_heads, config.num_key_value_heads
        qkv = self._linear("qkv", y, self.qkv, self.qkv_bias)
        qkv = qkv.view(*x.shape[:-1], heads + 2 * kv, config.head_dim)
        # Query and key turn by the same angles: rotate both in one pass.
        turning = qkv[..., : heads + kv, :]
        if self.query_norm is not None and self.key_norm is not None:
            weight = torch.cat([self.query_norm.expand(heads, -1), self.key_norm.expand(kv, -1)])
            turning = rms_norm(turning, weight, config.rms_norm_eps)
        rotated_heads = torch.addcmul(turning * cos, turning.roll(config.head_dim // 2, -1), sin)
        return (
            rotated_heads[..., :heads, :],
            rotated_heads[..., heads:, :],
            qkv[..., heads + kv :, :],
        )

    def merge(self, x: Tensor, attention: Tensor) -> Tensor:
        """The rest of the block after attention; both [..., hidden]."""
        config = self.config
        x = x + self._linear("out", attention, self.out)
        y = rms_norm(x, self.post_norm, config.rms_norm_eps)
        gate, up = self._linear("gate_up", y, self.gate_up).chunk(2, -1)
        return x + self._linear("down", F.silu(gate) * up, self.down)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, hidden] to the same, with key and value [B, T, key/value heads, d]."""
        query, key, value = self.project(x, cos, sin)
        return self.merge(x, attend(query, key, value)), key, value

    def _linear(self, site: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.dtype is torch.float16:  # see `CausalLM`
            x = x.half()
        matrix = self.four_bit.get(site)
        y = F.linear(x, weight, bias) if matrix is None else matrix.linear(x, bias)
        return y if self.adapter is None else y + self.adapter(site, x)


class CausalLM(nn.Module):
    """The decoder with its embedding and output head. With `recompute`, `forward` and `hidden` keep
    only the input of each layer for the backward pass, which runs the layers again: the same
    gradient for less memory and more time. With `products` of another type than float32, functions
    that run in `whole` compute their matrix products in it, whatever the type of the weights
    (autocast).

    With weights in float16, what goes from layer to layer is float32: it grows with each layer, and
    float16 ends at 65,504."""

    #: A training sequence may have several answers to its prompt.
    shares_prompts = True

    def __init__(
        self, config: ModelConfig, *, generator: torch.Generator | None = None, draw: bool = True
    ) -> None:
        """Draw weights from a normal distribution with standard deviation 0.02 (biases 0, norms 1).
        Without `draw`, matrices stay uninitialised, to be loaded."""
        super().__init__()
        assert config.native, "transformers computes it"
        self.config = config
        self.recompute = False
        self.products = torch.float32
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.head: nn.Parameter | None = None
        if not config.tie_word_embeddings:
            self.head = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self._rotary_table: tuple[Tensor, Tensor] | None = None
        for parameter in self.parameters():
            if draw and parameter.ndim == 2:
                nn.init.normal_(parameter, std=_INIT_STD, generator=generator)

    @classmethod
    def from_directory(cls, path: Path, dtype: torch.dtype = torch.float32) -> Self:
        """Load `config.json` and `model.safetensors` (or its shards with their index).

        Raises:
            ModelError: a file is missing, malformed or does not fit the architecture.
        """
        # Not on the "meta" device, for which torch imports its compiler: 70 MiB.
        model = cls(ModelConfig.from_directory(path), draw=False).to(dtype)
        state = stored_weights(path)
        check_finite(state, path)
        model.load_hf_state(state)
        return model

    def whole(self, function: Callable[..., _Made], *args: Any) -> _Made:
        """Run `function(*args)`, which may call `hidden` and `logits`, as one forward pass. Sharded
        weights are gathered around it."""
        if self.products is torch.float32:
            return function(*args)
        with torch.autocast(self.embedding.device.type, self.products):
            return function(*args)

    def forward(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] of ids i64[B, T].

        `segments` i64[B, T]: a token sees those before it of segment 0 and of its own; -1 is
        padding. Right-padded batches of one segment need none: with causal attention no real token
        sees what comes after it."""
        return self.logits(self.hidden(ids, segments))

    def hidden(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Final normalised hidden states [B, T, hidden]; see `forward`."""
        return self._run(ids, segments, None)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., hidden]."""
        return F.linear(hidden_states, self.head_weight)

    @property
    def head_weight(self) -> nn.Parameter:
        """The output head [V, hidden], which may be the embedding."""
        return self.embedding if self.head is None else self.head

    def prefill(self, ids: Tensor, mask: Tensor, rows: Tensor, cache: KeyValueCache) -> Tensor:
        """Run left-padded prompts once and begin N sequences in `cache`, n after prompt `rows[n]`.

        ids i64[B, T], mask bool[B, T], rows i64[N] below B. Returns the last hidden states [N,
        hidden]."""
        last, key_values = self.read(ids, mask)
        cache.fill(key_values, mask, rows)
        return last.index_select(0, rows)

    def read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Run left-padded prompts, as `prefill` takes them. Returns the last hidden states [B,
        hidden], and key and value [B, T, key/value heads, d] of each layer."""
        if self.embedding.is_cuda or ids.numel() <= _READ_AT_ONCE:
            key_values: list[tuple[Tensor, Tensor]] = []
            return self._run(ids, mask.long() - 1, key_values)[:, -1], key_values
        return self._read_in_parts(ids, mask)

    def _read_in_parts(
        self, ids: Tensor, mask: Tensor
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """`read` for a CPU, which takes as long for padding as for tokens: prompts of similar
        lengths run together."""
        batch, width = ids.shape
        lengths = mask.sum(1).tolist()
        last: Tensor | None = None
        key_values: list[tuple[Tensor, Tensor]] = []
        for rows in _of_similar_lengths(lengths):
            first = width - lengths[rows[-1]]
            part_key_values: list[tuple[Tensor, Tensor]] = []
            hidden_states = self._run(
                ids[rows, first:], mask[rows, first:].long() - 1, part_key_values
            )
            if last is None:
                last = hidden_states.new_empty(batch, hidden_states.shape[-1])
                first_key = part_key_values[0][0]
                shape = (batch, width, *first_key.shape[2:])
                key_values = [
                    (first_key.new_zeros(shape), first_key.new_zeros(shape))
                    for _ in part_key_values
                ]
            last[rows] = hidden_states[:, -1]
            for (keys, values), (key, value) in zip(key_values, part_key_values, strict=True):
                keys[rows, first:], values[rows, first:] = key, value
        assert last is not None
        return last, key_values

    def step(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Append tokens i64[N] to the cached sequences; their hidden states [N, hidden]. The same
        call gives the same until `cache.advance`."""
        x = self._embed(tokens)
        cos, sin = self.rotary(cache.capacity, self.embedding)
        cos = cos.index_select(0, cache.positions)[:, None]
        sin = sin.index_select(0, cache.positions)[:, None]
        for index, layer in enumerate(self.blocks()):
            query, key, value = layer.project(x, cos, sin)
            x = layer.merge(x, cache.attend(index, query, key, value))
        return self._normalise(x)

    def hf_state(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """A copy of the weights in main memory under transformers' names, contiguous, in their own
        type or `dtype`; without `lm_head.weight` when the embedding is tied to it."""
        return {name: on_host(part, dtype) for name, part in self.hf_weights()}

    def hf_parts(self, name: str, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The parts of the `parameter` called `name`, under transformers' names; no copies."""
        return hf_parts(self.config, name, parameter)

    def load_hf_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights in from transformers' names, cast to this model's type or to four bits.

        Raises:
            ModelError: a name is missing or unexpected, or a shape differs; nothing was changed.
        """
        views = dict(self.hf_views())
        check_weights(views, state, {"lm_head.weight"})
        matrices = self._four_bit_modules()
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parts = dict(hf_parts(self.config, name, parameter))
                if name in matrices:
                    matrices[name].fill([state[part] for part in parts])
                    continue
                for part, view in parts.items():
                    view.copy_(state[part])

    def blocks(self) -> Iterator[DecoderLayer]:
        """The layers, first to last."""
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            yield layer

    def _run(
        self, ids: Tensor, segments: Tensor | None, collect: list[tuple[Tensor, Tensor]] | None
    ) -> Tensor:
        length = ids.shape[1]
        x = self._embed(ids)
        cos, sin = self.rotary(length, self.embedding)
        attend: Attend = causal
        if segments is None:
            cos, sin = cos[:length, None], sin[:length, None]
        else:
            attend, positions = within(segments, x.device)
            cos, sin = cos[positions][:, :, None], sin[positions][:, :, None]
        recompute = self.recompute and torch.is_grad_enabled()
        for layer in self.blocks():
            if recompute and collect is None:
                x, _, _ = recompute_in_backward(
                    layer, x, cos, sin, attend, use_reentrant=False, preserve_rng_state=False
                )
                continue
            x, key, value = layer(x, cos, sin, attend)
            if collect is not None:
                collect.append((key, value))
        return self._normalise(x)

    def _embed(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self.embedding)
        return x.float() if x.dtype is torch.float16 else x

    def _normalise(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.norm, self.config.rms_norm_eps).to(self.embedding.dtype)

    def rotary(self, length: int, prototype: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [>= length, d] of the rotary angles (arXiv 2104.09864), such
        that x * cos + roll(x, d/2) * sin turns x. Computed in float32, then cast."""
        table = self._rotary_table
        if table is not None and len(table[0]) >= length and _alike(table[0], prototype):
            return table
        # A table made in inference mode could not take part in a later backward pass.
        with torch.inference_mode(False):
            d, device = self.config.head_dim, prototype.device
            exponents = torch.arange(0, d, 2, dtype=torch.float32, device=device) / d
            rows = 1 << max(length - 1, 63).bit_length()
            steps = torch.arange(rows, dtype=torch.float32, device=device)
            frequencies, scaling = 1.0 / self.config.rope_theta**exponents, self.config.rope_scaling
            if scaling is not None:
                scaled_freqs = [scaling.scale(frequency) for frequency in frequencies.tolist()]
                frequencies = torch.tensor(scaled_freqs, dtype=torch.float32, device=device)
            angles = torch.outer(steps, frequencies)
            cos, sin = angles.cos(), angles.sin()
            cosines, sines = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
            table = cosines.to(prototype.dtype), sines.to(prototype.dtype)
        self._rotary_table = table
        return table

    def hf_views(self) -> Iterator[tuple[str, Tensor]]:
        """Names as transformers has them, each with its part of the fused weights; no copies. For a
        matrix in four bits only the shape is right."""
        for name, parameter in self.named_parameters():
            yield from hf_parts(self.config, name, parameter)

    def hf_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights of `hf_views`, with matrices in four bits dequantized one at a time."""
        matrices = self._four_bit_modules()
        for name, parameter in self.named_parameters():
            weight = matrices[name].whole() if name in matrices else parameter
            yield from hf_parts(self.config, name, weight)

    def _four_bit_modules(self) -> dict[str, FourBit]:
        return {
            f"layers.{index}.{site}": matrix
            for index, layer in enumerate(self.blocks())
            for site, matrix in layer.four_bit.items()
        }


def stored_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a model's directory, mapped into memory: unused weights are not read.

    Raises:
        ModelError: a file is missing or malformed.
    """
    state: dict[str, Tensor] = {}
    for file in weight_files(path):
        state.update(load_safetensors(file))
    # Older Llama checkpoints store the rotary angles, which `config.json` defines.
    return {name: part for name, part in state.items() if not name.endswith(_DERIVED)}


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.device == b.device and a.dtype == b.dtype


def _of_similar_lengths(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows in parts of `_READ_AT_ONCE` tokens at most, by length; the longest of a part is last."""
    part: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if part and (len(part) + 1) * lengths[row] > _READ_AT_ONCE:
            yield part
            part = []
        part.append(row)
    yield part
