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
        self._own = make_config(config.transformers.text)
        capped = getattr(self._own, "attn_logit_softcapping", None) is not None
        with no_init_weights():
            self.inner = AutoModelForCausalLM.from_config(
                self._own,
                trust_remote_code=False,
                dtype=torch.float32,
                **({"attn_implementation": "eager"} if capped else {}),
            )
        self.inner.tie_weights()
        self.inner.eval()
        decoder = self.inner.get_decoder()
        taken = inspect.signature(type(decoder).forward).parameters
        if not {"input_ids", "attention_mask", "past_key_values"} <= taken.keys():
            raise self._refusal("keeps no keys and values in a cache")
        self._takes_positions = "position_ids" in taken
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
        model.load_hf_state(model._named(state))
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
        found: Tensor = self.inner.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., hidden], as transformers computes them."""
        made = self._head(hidden.reshape(-1, hidden.shape[-1]))
        return made.view(*hidden.shape[:-1], made.shape[-1])

    def start(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        """Run left-padded prompts. ids i64[B, T], mask bool[B, T]. Returns the last hidden states
        [B, hidden], and transformers' cache."""
        from transformers import DynamicCache

        # Without a config it keeps all positions, and masks alone are windows: it would drop those
        # outside a window that only config.json has, and the trainer's attention would not.
        cache = DynamicCache()
        return self._cached(ids, mask, (mask.long().cumsum(1) - 1).clamp_(min=0), cache), cache

    def step(self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Append tokens i64[N] to the cached sequences, at `positions` i64[N]; `mask` bool[N, T]
        covers them too. Returns their hidden states [N, hidden]."""
        return self._cached(tokens[:, None], mask, positions[:, None], cache)

    def _cached(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        given = {"position_ids": positions} if self._takes_positions else {}
        made = self.inner.get_decoder()(
            input_ids=ids,
            attention_mask=mask.long(),
            past_key_values=cache,
            use_cache=True,
            **given,
        )
        last: Tensor = made.last_hidden_state[:, -1]
        return last

    def hf_state(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """See `CausalLM.hf_state`."""
        return {name: on_host(weight, dtype) for name, weight in self.hf_weights()}

    def load_hf_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights in from transformers' names, cast to this model's type.

        Raises:
            ModelError: a name is missing or unexpected, or a shape differs; nothing was changed.
        """
        own = dict(self.hf_weights())
        tied = self.inner.state_dict().keys() - own.keys()
        check_weights(own, state, tied)
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(state[name])

    def _named(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a file under this model's names. Files of transformers' first models, such
        as gpt2 and bloom, have the names of the decoder alone, and masks of positions."""
        prefix = f"{self.inner.base_model_prefix}."
        if any(name.startswith(prefix) for name in stored):
            return stored
        own = self.inner.state_dict().keys()
        found = {name if name in own else prefix + name: each for name, each in stored.items()}
        return {name: each for name, each in found.items() if not name.endswith(_MASKS)}

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
        most = self.config.vocab_size
        ids = (torch.arange(2 * count) * 7919 % most).view(2, count)
        hidden = self.hidden(ids)
        wanted = self.logits(hidden).float().log_softmax(-1)
        theirs = self.inner(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        # The second row is one token shorter at first, so that it has padding.
        lengths = torch.tensor([count // 2, count // 2 - 1])
        padded = torch.stack([ids[0, : lengths[0]], ids[1].roll(1)[: lengths[0]]])
        mask = torch.ones_like(padded, dtype=torch.bool)
        mask[1, 0] = False
        last, cache = self.start(padded, mask)
        errors = [float((wanted - theirs).abs().max())]
        for _ in range(count // 2):
            found = self.logits(last).float().log_softmax(-1)
            rows = torch.arange(2)
            errors.append(float((found - wanted[rows, lengths - 1]).abs().max()))
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            last = self.step(ids[rows, lengths], mask, lengths, cache)
            lengths = lengths + 1
        if not max(errors) <= _TOLERANCE:
            raise self._refusal(f"computes other log-probs with its cache (by {max(errors):.1g})")

    def _refusal(self, why: str) -> ModelError:
        return ModelError(
            f"a {self.config.model_type} of transformers {why}",
            "choose another model, such as qwen2.5-0.5b",
        )


class _Head:
    """What a causal model of transformers computes after its decoder: a copy of its outer modules
    around the same weights, whose decoder returns the hidden states that it is given."""

    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        path = next(name for name, module in model.named_modules() if module is decoder)
        *parents, leaf = path.split(".")
        self._given = _Given()
        self._outer = here = _shallow(model)
        for name in parents:
            here._modules[name] = inner = _shallow(here._modules[name])
            here = inner
        here._modules[leaf] = self._given

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, hidden]."""
        self._given.hidden = hidden[None]
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        try:
            made: Tensor = self._outer(input_ids=ids, use_cache=False).logits[0]
            return made
        finally:
            self._given.hidden = None


class _Given(nn.Module):
    """A decoder that computes nothing."""

    hidden: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.hidden)


def _shallow(module: Any) -> Any:
    """A copy with a list of modules of its own."""
    made = copy.copy(module)
    made._modules = dict(module._modules)
    return made
