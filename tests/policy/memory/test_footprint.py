"""What a layer keeps for the backward pass, measured on real widths, against what is planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from swarm_node.policy.memory.footprint import TrainingMethod, _layer_bytes, adapter_count
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.attention import Spans, _of_one_type, _repeat_heads
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.decoder.lora import Adapter
from swarm_node.policy.models.shapes import known_shape
from swarm_node.policy.placement import repeats_heads

pytestmark = pytest.mark.slow(reason="traces layers of real widths")

ANSWERS = 8


def kept_bytes(
    config: ModelConfig, training: TrainingMethod, batch: int, length: int, varlen: bool
) -> int:
    """Bytes of storage that autograd keeps of a forward pass, weights excluded. The second half of
    each sequence are `ANSWERS` answers to the first half. `varlen` is the kernel for CUDA in half
    precision. Tensors have shapes and no numbers, so that nothing is computed."""
    half = training.dtype == "bfloat16"
    model = CausalLM(config, draw=False)
    if half and training.lora_rank:
        model.to(torch.bfloat16)
    adapter = Adapter(model, training.lora_rank) if training.lora_rank else None
    model.products = torch.bfloat16 if half else torch.float32
    numbers = np.zeros((batch, length), np.int64)
    numbers[:, length // 2 :] = 1 + np.arange(length - length // 2) * ANSWERS // (length // 2 + 1)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        spans = Spans(numbers, torch.device("cpu"))

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = _of_one_type(query, key, value)
            times = query.shape[2] // key.shape[2] if training.repeats_heads else 1
            copies = (_repeat_heads(spans._copy_spans(part), times) for part in (key, value))
            kernel = spans._at_once if varlen else spans._one_by_one
            return kernel(query.flatten(0, 1), *copies).reshape(batch, length, -1)

        real = [*model.parameters(), *(adapter.parameters.values() if adapter else ())]
        weights = [mode.from_tensor(part) for part in real]
        owned = {part.untyped_storage()._cdata for part in weights}
        kept: dict[int, int] = {}

        def note(part: torch.Tensor) -> torch.Tensor:
            storage = part.untyped_storage()
            if storage._cdata not in owned:
                kept[storage._cdata] = storage.nbytes()
            return part

        def layers(x: torch.Tensor) -> torch.Tensor:
            cos, sin = (table[spans.positions][:, :, None] for table in model.rotary(length, x))
            for layer in model.blocks():
                x, _, _ = layer(x, cos, sin, attend)
            return x

        x = torch.randn(batch, length, config.hidden_size, dtype=model.embedding.dtype)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda part: part):
            result = model.whole(layers, x.requires_grad_())
        assert result.requires_grad
    for part in real:  # a trace under autocast keeps them alive in torch 2.13
        part.untyped_storage().resize_(0)
    return sum(kept.values())


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("varlen", [False, True])
@pytest.mark.parametrize(
    ("name", "batch", "length"),
    [
        ("qwen2.5-0.5b", 1, 2048),
        ("qwen3-0.6b", 1, 2048),
        *(("qwen2.5-1.5b", *size) for size in ((7, 280), (2, 1024), (1, 2048), (1, 8192))),
    ],
)
@pytest.mark.parametrize(
    "training",
    [
        TrainingMethod(32),
        TrainingMethod(32, dtype="bfloat16"),
        TrainingMethod(0, dtype="bfloat16"),
        TrainingMethod(),
    ],
    ids=lambda one: f"rank {one.lora_rank}, {one.dtype}",
)
def test_a_layer_keeps_what_is_planned(
    name: str, batch: int, length: int, training: TrainingMethod, varlen: bool, repeats: bool
) -> None:
    if varlen and not repeats and repeats_heads(torch.__version__):
        pytest.skip("this torch's kernel takes no fewer key heads than query heads")
    training = replace(training, repeats_heads=repeats)
    shape = known_shape(name)
    assert shape is not None
    one, two = (replace(shape, num_hidden_layers=count, vocab_size=8) for count in (1, 2))
    less, more = (kept_bytes(each, training, batch, length, varlen) for each in (one, two))
    weights = adapter_count(one, 32) if training.lora_rank else two.weight_count - one.weight_count
    casts = 2 * weights if training.dtype == "bfloat16" else 0
    planned = batch * length * _layer_bytes(shape, training) + casts
    assert more - less <= planned <= 1.15 * (more - less)
