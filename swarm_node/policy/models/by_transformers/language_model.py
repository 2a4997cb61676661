"""A causal model of transformers behind the methods of the native decoder, for any other
architecture. transformers' own modules compute it, so it is slower: neither prompts of a training
batch nor places of a sampling batch are shared.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from swarm_node.errors import ModelError
from swarm_node.policy.models.by_transformers.config import make_config
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import stored_weights
from swarm_node.policy.models.tensors import check_finite, check_weights, on_host

_Made = TypeVar("_Made")

#: What the trainer and the sampler may differ by in a log-prob, in float32.
_TOLERANCE = 1e-4
_INNER, _WRAPPED = "inner.", ".base_layer."
#: What gpt2's files have beside weights.
_MASKS = (".attn.bias", ".attn.masked_bias")


class TransformersLM(nn.Module):
    """transformers' model of a `config`, with the methods of `CausalLM` that a trainer calls, and
    `start` and `step` for a sampler. It is in evaluation mode always, so that no dropout makes the
    trainer's log-probs differ from the sampler's."""

    #: Answers to one task are rows of their own, each with its prompt.
    shares_prompts = False
    #: Logits may be more than a product: a scale, or a cap.
    head_weight = None

    def __init__(self, config: ModelConfig) -> None:
        """Weights are uninitialised, to be loaded.

        Raises:
            ModelError: transformers cannot make it, or keeps more than weights and a cache.
        """
        from transformers import AutoModelForCausalLM
        from transformers.initialization import no_init_weights

        super().__init__()
        assert config.transformers is not None, "the native decoder computes the others"
        self.config = config
        self.products = torch.float32
        self._recompute = False
        self._hf_config = make_config(config.transformers.text)
        capped = getattr(self._hf_config, "attn_logit_softcapping", None) is not None
        with no_init_weights():
            self.inner = AutoModelForCausalLM.from_config(
                self._hf_config,
                trust_remote_code=False,
                dtype=torch.float32,
                **({"attn_implementation": "eager"} if capped else {}),
            )
        self.inner.tie_weights()
        self.inner.eval()
        decoder = self.inner.get_decoder()
        parameters = inspect.signature(type(decoder).forward).parameters
        if not {"input_ids", "attention_mask", "past_key_values"} <= parameters.keys():
            raise self._refusal("keeps no keys and values in a cache")
        self._takes_positions = "position_ids" in parameters
        names = {name for name, _ in self.inner.named_parameters(remove_duplicate=False)}
        if self.inner.state_dict().keys() - names:
            raise self._refusal("stores more than weights")
        self._head = _Head(self.inner)

    @classmethod
    def from_directory(cls, path: Path, dtype: torch.dtype = torch.float32) -> Self:
        """Load `config.json` and the weights, which are safetensors files. In float32 the model is
        tried on a few tokens: with its cache it must compute what it computes without.

        Raises:
            ModelError: a file is missing, malformed or does not fit the architecture, or the model
                cannot be sampled as it is trained.
        """
        model = cls(ModelConfig.from_directory(path))
        state = stored_weights(path)
        check_finite(state, path)
        model.load_hf_state(model._rename_weights(state))
        model.check_sampling()
        for parameter in model.parameters():  # not rotary angles, which need float32
            parameter.data = parameter.data.to(dtype)
        return model

    @property
    def embedding(self) -> nn.Parameter:
        """The input embedding [V, hidden]: its type and device are the model's."""
        weight: nn.Parameter = self.inner.get_input_embeddings().weight
        return weight

    @property
    def recompute(self) -> bool:
        """See `CausalLM.recompute`."""
        return self._recompute

    @recompute.setter
    def recompute(self, on: bool) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        self._recompute = on
        if not on:
            self.inner.gradient_checkpointing_disable()
            return
        self.inner.gradient_checkpointing_enable({"use_reentrant": False})
        for module in self.inner.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True  # of the layer alone: what is in it has dropout

    def whole(self, function: Callable[..., _Made], *args: Any) -> _Made:
        """See `CausalLM.whole`."""
        if self.products is torch.float32:
            return function(*args)
        with torch.autocast(self.embedding.device.type, self.products):
            return function(*args)

    def forward(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] of right-padded ids i64[B, T]; see `hidden`."""
        return self.logits(self.hidden(ids, segments))

    def hidden(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Final normalised hidden states [B, T, hidden] of right-padded ids i64[B, T]. `segments`
        must be None: no sequence has several answers."""
        assert segments is None, "each answer is a row of its own"
        hidden_states: Tensor = self.inner.get_decoder()(
            input_ids=ids, use_cache=False
        ).last_hidden_state
        return hidden_states

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., hidden], as transformers computes them."""
        flat_logits = self._head(hidden_states.reshape(-1, hidden_states.shape[-1]))
        return flat_logits.view(*hidden_states.shape[:-1], flat_logits.shape[-1])

    def start(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        """Run left-padded prompts. ids i64[B, T], mask bool[B, T]. Returns the last hidden states
        [B, hidden], and transformers' cache."""
        from transformers import DynamicCache

        # Without a config it keeps all positions, and masks alone are windows: it would drop those
        # outside a window that only config.json has, and the trainer's attention would not.
        cache = DynamicCache()
        return self._forward_cached(
            ids, mask, (mask.long().cumsum(1) - 1).clamp_(min=0), cache
        ), cache

    def step(self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Append tokens i64[N] to the cached sequences, at `positions` i64[N]; `mask` bool[N, T]
        covers them too. Returns their hidden states [N, hidden]."""
        return self._forward_cached(tokens[:, None], mask, positions[:, None], cache)

    def _forward_cached(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        options = {"position_ids": positions} if self._takes_positions else {}
        outputs = self.inner.get_decoder()(
            input_ids=ids,
            attention_mask=mask.long(),
            past_key_values=cache,
            use_cache=True,
            **options,
        )
        last: Tensor = outputs.last_hidden_state[:, -1]
        return last

    def hf_state(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """See `CausalLM.hf_state`."""
        return {name: on_host(weight, dtype) for name, weight in self.hf_weights()}

    def load_hf_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights in from transformers' names, cast to this model's type.

        Raises:
            ModelError: a name is missing or unexpected, or a shape differs; nothing was changed.
        """
        weights = dict(self.hf_weights())
        tied_names = self.inner.state_dict().keys() - weights.keys()
        check_weights(weights, state, tied_names)
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(state[name])

    def _rename_weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a file under this model's names. Files of transformers' first models, such
        as gpt2 and bloom, have the names of the decoder alone, and masks of positions."""
        prefix = f"{self.inner.base_model_prefix}."
        if any(name.startswith(prefix) for name in state):
            return state
        names = self.inner.state_dict().keys()
        weights = {
            name if name in names else prefix + name: weight for name, weight in state.items()
        }
        return {name: weight for name, weight in weights.items() if not name.endswith(_MASKS)}

    def hf_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The model's weights under transformers' names, without those of adapters."""
        for name, parameter in self.named_parameters():
            if ".lora_" not in name:
                yield name.removeprefix(_INNER).replace(_WRAPPED, "."), parameter

    def hf_parts(self, name: str, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
        """See `names.hf_parts`; every parameter is a weight of transformers."""
        yield name.removeprefix(_INNER), parameter

    @torch.no_grad()
    def check_sampling(self) -> None:
        """Try on a few tokens that a sampler with a cache and a trainer get the same log-probs.

        Raises:
            ModelError: they do not.
        """
        count = min(12, self.config.max_position_embeddings)
        vocab_size = self.config.vocab_size
        ids = (torch.arange(2 * count) * 7919 % vocab_size).view(2, count)
        hidden_states = self.hidden(ids)
        trainer_logps = self.logits(hidden_states).float().log_softmax(-1)
        forward_logps = self.inner(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        # The second row is one token shorter at first, so that it has padding.
        lengths = torch.tensor([count // 2, count // 2 - 1])
        prompts = torch.stack([ids[0, : lengths[0]], ids[1].roll(1)[: lengths[0]]])
        mask = torch.ones_like(prompts, dtype=torch.bool)
        mask[1, 0] = False
        last, cache = self.start(prompts, mask)
        errors = [float((trainer_logps - forward_logps).abs().max())]
        for _ in range(count // 2):
            cached_logps = self.logits(last).float().log_softmax(-1)
            rows = torch.arange(2)
            errors.append(float((cached_logps - trainer_logps[rows, lengths - 1]).abs().max()))
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            last = self.step(ids[rows, lengths], mask, lengths, cache)
            lengths = lengths + 1
        if not max(errors) <= _TOLERANCE:
            raise self._refusal(f"computes other log-probs with its cache (by {max(errors):.1g})")

    def _refusal(self, reason: str) -> ModelError:
        return ModelError(
            f"a {self.config.model_type} of transformers {reason}",
            "choose another model, such as qwen2.5-0.5b",
        )


class _Head:
    """What a causal model of transformers computes after its decoder: a copy of its outer modules
    around the same weights, whose decoder returns the hidden states that it is given."""

    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        path = next(name for name, module in model.named_modules() if module is decoder)
        *parents, leaf = path.split(".")
        self._stub_decoder = _Given()
        self._outer = parent = _shallow(model)
        for name in parents:
            parent._modules[name] = inner = _shallow(parent._modules[name])
            parent = inner
        parent._modules[leaf] = self._stub_decoder

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, hidden]."""
        self._stub_decoder.hidden_states = hidden_states[None]
        ids = torch.zeros(1, len(hidden_states), dtype=torch.int64, device=hidden_states.device)
        try:
            logits: Tensor = self._outer(input_ids=ids, use_cache=False).logits[0]
            return logits
        finally:
            self._stub_decoder.hidden_states = None


class _Given(nn.Module):
    """A decoder that computes nothing."""

    hidden_states: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.hidden_states)


def _shallow(module: Any) -> Any:
    """A copy with a list of modules of its own."""
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    return clone
