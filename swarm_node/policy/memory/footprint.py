"""How many bytes of memory each part of a node takes: formulas, no torch.

What is counted is what this program holds, read off qwen2.py, lora.py, logprobs.py, trainer.py and
torch_sampler.py; benchmarks/plan.py holds the estimate against measured use. Names in formulas:
h hidden size, i intermediate size, q and k widths of all query and of all key heads, L layers,
V vocabulary, r rank, T tokens of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swarm_node.policy.models.config import Qwen2Config

Device = Literal["cpu", "cuda"]
Precision = Literal["float32", "bfloat16"]
#: Logits held at once, in elements (128 MiB of float32): more tokens than that go in pieces.
LOGIT_ELEMENTS = 1 << 25
#: Tokens of a prompt, where nothing is known of them: a guess.
PROMPT_TOKENS = 256
_MIB = 1 << 20
#: Of a CUDA context with its kernels, per process: an assumption (benchmarks/gpu_plan.py measures).
_CONTEXT = 512 * _MIB
_GRADIENT = 4
#: Two moments of AdamW in float32 (arXiv 1711.05101), or in eight bits (arXiv 2110.02861).
_MOMENTS, _MOMENTS_8BIT = 8, 2
#: Logits alive at once, in float32: log-softmax, the gradient that comes in, the one that goes out.
_LOGIT_COPIES = 3
#: Tokens that a sampler computes at once in a prefill.
PREFILL_TOKENS = 2048
_PROMPT_ROOM = 4096


@dataclass(frozen=True, slots=True)
class Training:
    """How the trainer works: the rank of its adapters (0 trains everything), whether activations
    are recomputed, tokens per micro-batch, the type of matrix products, which is also that of
    weights that are not trained, and whether moments have eight bits."""

    lora_rank: int = 0
    checkpointing: bool = False
    micro_batch_tokens: int = 8192
    dtype: Precision = "float32"
    eight_bit: bool = False


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes. `weights` of the sampler's model (`sampler_weights`) and of the trainer's, `optimizer`
    gradients and moments, `kv` keys and values, `activations` of the largest micro-batch with its
    logits, `workspace` what the sampler computes in, `published` the copies by which weights reach
    the sampler, where they are in this memory, `reserve` the contexts of the processes."""

    sampler_weights: int
    trainer_weights: int
    optimizer: int
    kv: int
    activations: int
    workspace: int
    published: int
    reserve: int

    @property
    def weights(self) -> int:
        return self.sampler_weights + self.trainer_weights

    @property
    def sampler(self) -> int:
        """What the sampler's engine takes, its context aside."""
        return self.sampler_weights + self.kv + self.workspace

    @property
    def resident(self) -> int:
        """What no setting of a micro-batch makes smaller."""
        return self.weights + self.optimizer + self.published + self.reserve

    def total(self, *, asleep: bool = False) -> int:
        """The peak. `asleep`: the sampler has given back what it holds while the trainer works."""
        held = self.trainer_weights + self.optimizer + self.published + self.reserve
        if asleep:
            return held + max(self.sampler, self.activations)
        return held + self.sampler + self.activations


def footprint(
    model: Qwen2Config, training: Training, *, device: Device, rows: int, max_new_tokens: int
) -> Footprint:
    """What training `model` while sampling `rows` answers of `max_new_tokens` at once takes on
    `device`. What is trained is float32; the rest, the sampler too, is of the trainer's type. On a
    CPU published weights stay in memory, in the trainer's hands or in shared memory; those of a GPU
    are outside of it."""
    count, width = model.weight_count, _size(training.dtype)
    trained = adapter_count(model, training.lora_rank) if training.lora_rank else count
    context = context_tokens(model, max_new_tokens)
    moments = _MOMENTS_8BIT if training.eight_bit else _MOMENTS
    return Footprint(
        sampler_weights=width * count,
        trainer_weights=4 * trained + (width * count if training.lora_rank else 0),
        optimizer=(_GRADIENT + moments) * trained,
        kv=kv_bytes(model, rows, max_new_tokens, width),
        activations=activation_bytes(model, training, longest_row=context),
        workspace=_workspace(model, rows, context, width),
        published=width * count if device == "cpu" else 0,
        reserve=2 * _CONTEXT if device == "cuda" else 0,
    )


def adapter_count(model: Qwen2Config, rank: int) -> int:
    """Weights of LoRA adapters on all seven projections: r·(in + out) each (arXiv 2106.09685)."""
    h, i, q, k = (
        model.hidden_size,
        model.intermediate_size,
        model.query_size,
        model.key_value_size,
    )
    return model.num_hidden_layers * rank * (2 * (h + q) + 2 * (h + k) + 3 * (h + i))


def context_tokens(model: Qwen2Config, max_new_tokens: int) -> int:
    """Tokens of a prompt of usual length with its answer."""
    return min(model.max_position_embeddings, PROMPT_TOKENS + max_new_tokens)


def longest_tokens(model: Qwen2Config, max_new_tokens: int) -> int:
    """Tokens of the longest sequence that a sampler takes: an answer after a prompt of 4,096."""
    return min(model.max_position_embeddings, _PROMPT_ROOM + max_new_tokens)


def kv_bytes(model: Qwen2Config, rows: int, max_new_tokens: int, width: int) -> int:
    """Keys and values: 2·L·k·`width` bytes a token, for `rows` usual sequences, and for one of the
    longest that is taken with a block to spare."""
    token = 2 * model.num_hidden_layers * model.key_value_size * width
    longest = longest_tokens(model, max_new_tokens) + 128
    return token * max(rows * context_tokens(model, max_new_tokens), longest)


def activation_bytes(model: Qwen2Config, training: Training, *, longest_row: int) -> int:
    """The peak of a micro-batch above weights, gradients and moments. A row is never cut, so the
    longest one is the least that a micro-batch holds. Attention is not quadratic in memory: torch
    computes it in blocks (FlashAttention, arXiv 2205.14135)."""
    tokens = max(training.micro_batch_tokens, longest_row)
    h, width = model.hidden_size, _size(training.dtype)
    layer = tokens * _layer_bytes(model, training)
    # Only inputs of layers are kept and one layer is computed again (arXiv 1604.06174).
    again = layer if training.checkpointing else 0
    kept = model.num_hidden_layers * (tokens * h * width if training.checkpointing else layer)
    # One micro-batch's gradient of the embedding, and of a layer, beside what has been summed.
    embedding = 0 if training.lora_rank else 4 * h * model.vocab_size
    matrix = 0 if training.lora_rank else 4 * h * 2 * model.intermediate_size
    logits = max(model.vocab_size, min(LOGIT_ELEMENTS, tokens * model.vocab_size))
    half = 2 if width < 4 else 0
    # Weights that are float32 are cast for the products, and the casts kept for the way back.
    casts = half * model.weight_count if not training.lora_rank else 0
    working = 4 * 4 * (model.intermediate_size + h) * tokens
    return casts + max(
        # In the head, where nothing is given back yet,
        kept + 4 * 4 * h * tokens + (4 * _LOGIT_COPIES + half) * logits + embedding,
        # in the last layer, which is the first to be gone through backwards,
        kept + again + working + matrix + embedding,
        # and at the end, where a tied embedding gets its second gradient.
        layer + working + 2 * embedding,
    )


def _layer_bytes(model: Qwen2Config, training: Training) -> int:
    """What autograd keeps of one layer for one token. Per norm its input and what it was scaled to
    (the latter for the gradient of its weight), what the projections are given, the fused and the
    rotated heads, the attended values, and four times i in the gated MLP. Norms are float32."""
    h, i, q, k = (
        model.hidden_size,
        model.intermediate_size,
        model.query_size,
        model.key_value_size,
    )
    width = _size(training.dtype)
    norms = 4 * 2 * h
    given = h + q + h + i
    kept = width * ((q + 2 * k) + (q + k) + 3 * i + given)
    if model.normalises_heads:
        kept += 4 * (q + k)
    if training.lora_rank:
        return norms + kept + width * 7 * training.lora_rank
    return 2 * norms + kept


def _workspace(model: Qwen2Config, rows: int, context: int, width: int) -> int:
    """A prefill's widest layer, the log-probs and float64 sums of a step over the vocabulary, and
    the keys of usual rows again, while the cache drops rows that ended."""
    prefill = PREFILL_TOKENS * (3 * model.intermediate_size + 4 * model.hidden_size) * width
    step = rows * model.vocab_size * (width + 4 + 4 + 8)
    keys = rows * context * model.num_hidden_layers * model.key_value_size * width
    return prefill + step + keys


def _size(precision: Precision) -> int:
    return 4 if precision == "float32" else 2
