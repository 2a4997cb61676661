"""Memory of each part of a node in bytes: formulas, no torch.

The formulas follow causal_lm.py, lora.py, logprobs.py, trainer.py and generating.py;
benchmarks/plan.py compares them with measured use. Names: h hidden size, i intermediate size, q and
k widths of all query and of all key heads, L layers, V vocabulary, r rank, T tokens of a
micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import Precision

Device = Literal["cpu", "cuda"]
#: Logits that may be held at once whatever the memory, in elements: smaller pieces read the head
#: more often than they save memory (docs/research/benchmarks.md).
LEAST_LOGITS = 1 << 24
#: Tokens of a typical prompt where the environment's are not known, and the least for a GPU.
PROMPT_TOKENS = 256
#: Tokens that a chat template adds, and bytes of a question for each of its tokens. Words have four
#: and more, but digits and single letters are tokens of their own.
_TEMPLATE_TOKENS, _TOKEN_BYTES = 48, 2
#: Tokens of an observation between two turns of a multi-turn rollout: its most characters at four a
#: token.
REPLY_TOKENS = 256
#: So many checkpoints are on a disk that has the room, the one that is being written included.
KEPT_CHECKPOINTS = 3
_MIB = 1 << 20
#: On a CPU the processes of a node without a model: code and libraries (`benchmarks/real_shapes.py`
#: measured 931 and 974 MiB, docs/research/one-gpu.md).
PROCESSES = 950 * _MIB
#: Bytes of a process's CUDA context: an assumption (benchmarks/gpu_plan.py measures it).
CONTEXT = 512 * _MIB
#: Bytes that NCCL takes of each GPU on which several processes work together, and bytes of one
#: CUDA graph for each layer of the model: assumptions too.
_NCCL = 256 * _MIB
_GRAPH = _MIB // 8
#: Least rows of a decoding step of the built-in sampler (fewer take as long: a step reads all
#: weights for few products), and windows for each number of rows, each of which has a CUDA graph.
LEAST_BUCKET, WINDOWS = 8, 2
#: On a CPU activations take so many percent more, in types of four bytes and of two: glibc keeps
#: the memory freed between them (docs/research/one-gpu.md has the measurements).
_KEPT = {4: 20, 2: 60}
_GRADIENT = 4
#: Two moments of AdamW in float32 (arXiv 1711.05101), or in eight bits (arXiv 2110.02861).
_MOMENTS, _MOMENTS_8BIT = 8, 2
#: Tokens of one prefill step.
PREFILL_TOKENS = 2048
_PROMPT_ROOM = 4096
#: A sequence of answers to one prompt has at most so many tokens, at most this share of its rows'
#: tokens, and at most so many keys for each token (packing.py, which says why).
MOST_SHARED_TOKENS, WORTHWHILE, MOST_KEYS = 2048, 0.7, 8
#: Copies of keys and values per token where eight answers of 24 tokens share a typical prompt: each
#: answer has its own (attention.py). Sequences of their own have none.
SHARED_KEYS = 5


@dataclass(frozen=True, slots=True)
class TrainingMethod:
    """Ways to train. `lora_rank` is the rank of adapters; 0 trains all weights. `checkpointing`
    recomputes activations. `dtype` is the type of matrix products and of frozen weights. With
    `eight_bit`, moments have eight bits. With `nf4`, the matrices of the frozen base have four bits
    a weight. `processes` share all weights that are trained, their gradients and moments; adapters
    and their base are whole in each (sharded.py). With `repeats_heads`, attention repeats keys and
    values for each query head that shares them (attention.py)."""

    lora_rank: int = 0
    checkpointing: bool = False
    micro_batch_tokens: int = 8192
    dtype: Precision = "float32"
    eight_bit: bool = False
    nf4: bool = False
    processes: int = 1
    repeats_heads: bool = False

    @property
    def shards(self) -> int:
        """Parts into which the weights are cut."""
        return 1 if self.lora_rank else self.processes


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of each part on one device, the first of several. `optimizer` has gradients and
    moments, `kv` keys and values, and `activations` the largest micro-batch with its logits.
    `workspace` is the sampler's temporary memory. `published` are the copies by which weights reach
    the sampler, if they are in this memory. `reserve` are, on a GPU, the contexts of the processes,
    NCCL's buffers, and the sampler's CUDA graphs, and on a CPU the processes without a model."""

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
        """Bytes of the sampler's engine, without its context."""
        return self.sampler_weights + self.kv + self.workspace

    @property
    def resident(self) -> int:
        """Bytes that do not depend on the micro-batch."""
        return self.weights + self.optimizer + self.published + self.reserve

    def summary(self) -> dict[str, int]:
        """The bytes by the parts' names for people."""
        return {
            "weights": self.weights,
            "optimizer": self.optimizer,
            "KV cache": self.kv,
            "activations": self.activations,
            "other": self.workspace + self.published + self.reserve,
        }

    def total(self, *, is_asleep: bool = False) -> int:
        """The peak; `is_asleep` if the sampler frees its memory while the trainer works."""
        fixed_bytes = self.trainer_weights + self.optimizer + self.published + self.reserve
        if is_asleep:
            return fixed_bytes + max(self.sampler, self.activations)
        return fixed_bytes + self.sampler + self.activations


def footprint(
    model: ModelConfig,
    training: TrainingMethod,
    *,
    device: Device,
    rows: int,
    max_new_tokens: int,
    one_base: bool = False,
    vllm: bool = False,
    cards: int = 1,
    prompt_tokens: int = PROMPT_TOKENS,
) -> Footprint:
    """The memory on `device` for training `model` and sampling `rows` answers of `max_new_tokens`
    to prompts of `prompt_tokens` at once. Trained weights are float32; frozen ones and the
    sampler's have the trainer's type. On a CPU, published weights stay in this memory, in the
    trainer or in shared memory. Those of a GPU do not. With adapters, these alone are published;
    with `one_base`, the sampler shares the trainer's frozen weights. With `vllm`, vLLM samples and
    not the built-in sampler. An engine is spread over `cards` GPUs: weights, keys and values."""
    width, context = _size(training.dtype), context_tokens(model, max_new_tokens, prompt_tokens)
    trained_count = _trained_count(model, training.lora_rank)
    base = frozen_bytes(model, training)
    adapters = width * trained_count if training.lora_rank else 0
    sampler_bytes = adapters + (0 if training.lora_rank and one_base else -(-base // cards))
    # A matrix of four bits is dequantized for its product.
    matrix_bytes = width * 2 * model.intermediate_size * model.hidden_size if training.nf4 else 0
    shard_count = -(-trained_count // training.shards)
    moments = _moment_bytes(model, training.lora_rank, eight_bit=training.eight_bit)
    activations = activation_bytes(model, training, longest_row=context) + matrix_bytes
    if vllm:
        graphs = vllm_graph_bytes(model, rows, training.lora_rank)
    else:
        graphs = built_in_graph_bytes(model, rows, width)
    reserve = 2 * CONTEXT + graphs
    reserve += _NCCL * ((training.processes > 1) + (cards > 1))
    heap_bytes = activations * _KEPT[width] // 100 if device == "cpu" else 0
    # Without vLLM the cache of a CPU grows with each batch: nothing is kept for longer ones.
    cache_grows = device == "cpu" and not vllm
    slots = rows * context if cache_grows else kv_slots(model, rows, max_new_tokens, context)
    return Footprint(
        sampler_weights=sampler_bytes,
        trainer_weights=4 * shard_count + (base if training.lora_rank else 0),
        optimizer=_GRADIENT * shard_count + -(-moments // training.shards),
        kv=-(-2 * model.num_hidden_layers * model.key_value_size * width * slots // cards),
        activations=activations + heap_bytes,
        workspace=_workspace(model, rows, context, width) + matrix_bytes,
        published=(adapters or base) if device == "cpu" else 0,
        reserve=reserve if device == "cuda" else PROCESSES,
    )


def engine_cards(model: ModelConfig, cards: int) -> int:
    """Number of the `cards` over which an engine is spread: the largest by which both the heads and
    the columns of the MLP divide evenly (vLLM's tensor parallelism)."""
    counts = model.num_attention_heads, model.num_key_value_heads, model.intermediate_size
    return next(n for n in range(cards, 0, -1) if not any(count % n for count in counts))


def checkpoint_bytes(model: ModelConfig, lora_rank: int, *, eight_bit: bool = False) -> int:
    """Bytes of one checkpoint, and of its copy in memory: the trained weights in float32, with
    their moments."""
    moments = _moment_bytes(model, lora_rank, eight_bit=eight_bit)
    return 4 * _trained_count(model, lora_rank) + moments


def graph_sizes(rows: int) -> list[int]:
    """The numbers of rows for which vLLM keeps a CUDA graph of a decoding step, ascending. A step
    with fewer rows is padded to the next number. That costs little, because decoding waits for
    weights to be read. Each graph takes memory, so there are few."""
    return [*(size for size in (8, 16, 32, *range(64, rows, 32)) if size < rows), rows]


def bucket_sizes(rows: int) -> list[int]:
    """The same of the built-in sampler: powers of two, which are fewer, as each has a graph for
    each window."""
    doubled = (LEAST_BUCKET << n for n in range(rows.bit_length()))
    return [*(size for size in doubled if size < rows), rows]


def vllm_graph_bytes(model: ModelConfig, rows: int, lora_rank: int) -> int:
    """Bytes of vLLM's CUDA graphs. With adapters it keeps each graph with and without them."""
    return len(graph_sizes(rows)) * model.num_hidden_layers * _GRAPH * (2 if lora_rank else 1)


def built_in_graph_bytes(model: ModelConfig, rows: int, width: int) -> int:
    """Bytes of the built-in sampler's CUDA graphs. Each keeps its result, the logits of its rows,
    at `width` bytes. Sequences longer than typical ones, of which there are fewer at once, have
    graphs of their own, which are not counted."""
    sizes = bucket_sizes(rows)
    layers = len(sizes) * model.num_hidden_layers * _GRAPH
    return WINDOWS * (layers + sum(sizes) * model.vocab_size * width)


def adapter_count(model: ModelConfig, rank: int) -> int:
    """Weights of LoRA adapters on all seven projections, or on every linear layer of a model that
    transformers computes: r·(in + out) each (arXiv 2106.09685)."""
    if model.transformers is not None:
        return rank * model.transformers.adapter_width
    h, i, q, k = (
        model.hidden_size,
        model.intermediate_size,
        model.query_size,
        model.key_value_size,
    )
    return model.num_hidden_layers * rank * (2 * (h + q) + 2 * (h + k) + 3 * (h + i))


def frozen_bytes(model: ModelConfig, training: TrainingMethod) -> int:
    """Bytes of a base in the type of matrix products. With `nf4`, a weight of a projection has half
    a byte, and 64 of them a float32 (arXiv 2305.14314)."""
    width, h, i = _size(training.dtype), model.hidden_size, model.intermediate_size
    quantized_count = 0
    if training.nf4:
        layer = h * (2 * model.query_size + 2 * model.key_value_size + 3 * i)
        quantized_count = model.num_hidden_layers * layer
    return (
        width * (model.weight_count - quantized_count)
        + quantized_count // 2
        + quantized_count // 16
    )


def tokens_of_prompt(prompt_bytes: int) -> int:
    """Tokens of a prompt of `prompt_bytes` UTF-8 bytes with its chat template; 0 bytes stand for a
    length that nobody knows. An estimate: a plan is made before there is a tokenizer."""
    if not prompt_bytes:
        return PROMPT_TOKENS
    return min(_PROMPT_ROOM, _TEMPLATE_TOKENS + -(-prompt_bytes // _TOKEN_BYTES))


def group_tokens(prompt: int, answer: int, answers: int) -> int:
    """Tokens that the trainer computes for `answers` of `answer` tokens to one prompt, which it
    computes once where that pays (`packing.sequences`). Shorter answers take fewer."""

    def sequence(count: int) -> int:
        """Tokens of one sequence of so many answers, or of as many sequences."""
        shared_tokens, split_tokens = prompt + count * answer, count * (prompt + answer)
        return shared_tokens if shared_tokens <= WORTHWHILE * split_tokens else split_tokens

    max_answers = max(1, (MOST_SHARED_TOKENS - prompt) // answer)
    while max_answers > 1 and max_answers * (prompt + answer) > MOST_KEYS * (
        prompt + max_answers * answer
    ):
        max_answers -= 1
    full, left = divmod(answers, max_answers)
    return full * sequence(max_answers) + (sequence(left) if left else 0)


def context_tokens(
    model: ModelConfig, max_new_tokens: int, prompt_tokens: int = PROMPT_TOKENS
) -> int:
    """Tokens of a prompt with its answer."""
    return min(model.max_position_embeddings, prompt_tokens + max_new_tokens)


def longest_tokens(model: ModelConfig, max_new_tokens: int) -> int:
    """Tokens of the longest sequence that a sampler takes: a prompt of 4,096 and an answer."""
    return min(model.max_position_embeddings, _PROMPT_ROOM + max_new_tokens)


def kv_slots(model: ModelConfig, rows: int, max_new_tokens: int, context: int) -> int:
    """Tokens whose keys and values a cache holds that is made once: `rows` sequences of `context`,
    and at least one of the longest with a spare block."""
    return max(rows * context, longest_tokens(model, max_new_tokens) + 128)


def activation_bytes(model: ModelConfig, training: TrainingMethod, *, longest_row: int) -> int:
    """The peak of a micro-batch, on top of weights, gradients and moments. A row is never cut, so a
    micro-batch holds at least the longest row. Attention is linear in memory, because torch
    computes it in blocks (FlashAttention, arXiv 2205.14135)."""
    tokens = max(training.micro_batch_tokens, longest_row)
    h, width = model.hidden_size, _size(training.dtype)
    layer = tokens * _layer_bytes(model, training)
    # With checkpointing only the inputs of layers are kept, and one layer is recomputed at a time
    # (arXiv 1604.06174).
    recompute_bytes = layer if training.checkpointing else 0
    # What goes from layer to layer is float32 beside weights in float16.
    residual_width = 4 if training.dtype == "float16" else width
    saved_bytes = model.num_hidden_layers * (
        tokens * h * residual_width if training.checkpointing else layer
    )
    # A micro-batch's gradient of the embedding, before it is added to the sum.
    embedding = 0 if training.lora_rank else h * model.vocab_size * _gradient_bytes(training)
    logits = logit_elements(model, training, longest_row=longest_row)
    logits = max(model.vocab_size, min(logits, tokens * model.vocab_size))
    workspace = 4 * 4 * (model.intermediate_size + h) * tokens
    return _copied_weights(model, training) + max(
        # The peak is in the head, where no memory is freed yet,
        saved_bytes + 4 * 4 * h * tokens + _head_bytes(model, training, logits) + embedding,
        # in the last layer, the first of the backward pass,
        saved_bytes + recompute_bytes + workspace + _matrix_gradient(model, training) + embedding,
        # or at the end, where a tied embedding gets its second gradient; parts of gradients are
        # added up in float32.
        layer
        + workspace
        + 2 * embedding
        + (4 * h * model.vocab_size if training.shards > 1 else 0),
    )


def _copied_weights(model: ModelConfig, training: TrainingMethod) -> int:
    """Bytes of weights in the type of the products, where trained weights are held in another way.
    float32 weights are cast, and the casts are kept for the backward pass. Weights in parts are
    gathered (FSDP2). The embedding and the head are gathered for the whole pass. The layers in
    memory are the one at work, its gradient, the next one twice (received and in use), and a
    gradient in float32 on its way."""
    width = _size(training.dtype)
    if training.shards == 1:
        trained_count = adapter_count(model, training.lora_rank) or model.weight_count
        return 2 * trained_count if width < 4 else 0
    tables = (1 if model.tie_word_embeddings else 2) * model.vocab_size * model.hidden_size
    layer = (model.weight_count - tables) // model.num_hidden_layers
    return width * tables + (4 * width + 4) * layer


def logit_elements(model: ModelConfig, training: TrainingMethod, *, longest_row: int) -> int:
    """Most logits that the trainer holds at once in a micro-batch. They are as many as do not raise
    its peak, which is in the last layer, but at least `LEAST_LOGITS`. Further logits are computed
    in pieces."""
    tokens = max(training.micro_batch_tokens, longest_row)
    room = 4 * 4 * model.intermediate_size * tokens + _matrix_gradient(model, training)
    if training.checkpointing:  # the trainer, which asks too, does not know of repeated heads
        room += tokens * _layer_bytes(model, replace(training, repeats_heads=False))
    room -= _head_bytes(model, training, 0)
    return max(LEAST_LOGITS, room // _logit_bytes(training))


def _matrix_gradient(model: ModelConfig, training: TrainingMethod) -> int:
    """Bytes of a micro-batch's gradient of a layer's largest matrix. 0 with adapters, and with
    weights in parts, where `_copied_weights` includes it."""
    if training.lora_rank or training.shards > 1:
        return 0
    return 4 * model.hidden_size * 2 * model.intermediate_size


def _head_bytes(model: ModelConfig, training: TrainingMethod, logits: int) -> int:
    """The logits, in float32 and cast for products, and the gradient of a head cast likewise."""
    cast = 0 if training.lora_rank else 4 - _size(training.dtype)
    cast *= training.shards == 1
    return _logit_bytes(training) * logits + cast * model.vocab_size * model.hidden_size


def _gradient_bytes(training: TrainingMethod) -> int:
    """Gradient bytes per trained weight: 4 in float32, or the width of the products' type where
    weights are gathered."""
    return 4 if training.shards == 1 else _size(training.dtype)


def _logit_bytes(training: TrainingMethod) -> int:
    return 4 if training.dtype == "float32" else 4 + 2


def _layer_bytes(model: ModelConfig, training: TrainingMethod) -> int:
    """Bytes that autograd keeps of one layer for one token: the input and (for the gradient of its
    weight) the scaled output of each norm, the inputs of the projections, the fused and the rotated
    heads, copies of shared keys and values (with repeated heads as wide as the queries), the
    attended values with a number for each head, and four times i in the gated MLP. Norms are
    float32."""
    h, i, q, k = (
        model.hidden_size,
        model.intermediate_size,
        model.query_size,
        model.key_value_size,
    )
    width = _size(training.dtype)
    norms = 4 * 2 * h
    inputs = h + q + h + i
    copies = SHARED_KEYS * 2 * (q if training.repeats_heads else k)
    saved_bytes = width * ((q + 2 * k) + (q + k) + copies + 3 * i + inputs)
    saved_bytes += 4 * model.num_attention_heads
    if model.family.head_norms:
        saved_bytes += (4 + (0 if training.lora_rank else width)) * (q + k)
    if training.lora_rank:
        return norms + saved_bytes + width * 7 * training.lora_rank
    return 2 * norms + saved_bytes


def _workspace(model: ModelConfig, rows: int, context: int, width: int) -> int:
    """Bytes of a prefill's widest layer, of a step's log-probs and float64 sums over the
    vocabulary, and of a prefill's keys and values before they are in the cache (as much as the keys
    of all rows: an upper bound)."""
    prefill = PREFILL_TOKENS * (3 * model.intermediate_size + 4 * model.hidden_size) * width
    step = rows * model.vocab_size * (width + 4 + 4 + 8)
    keys = rows * context * model.num_hidden_layers * model.key_value_size * width
    return prefill + step + keys


def _trained_count(model: ModelConfig, lora_rank: int) -> int:
    return adapter_count(model, lora_rank) or model.weight_count


def _moment_bytes(model: ModelConfig, lora_rank: int, *, eight_bit: bool) -> int:
    """Bytes of both moments. Those of the embedding and the output layer stay float32."""
    count = _trained_count(model, lora_rank)
    if not eight_bit:
        return _MOMENTS * count
    tables = 0
    if not lora_rank:
        tables = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    return _MOMENTS_8BIT * (count - tables) + _MOMENTS * tables


def _size(precision: Precision) -> int:
    return 4 if precision == "float32" else 2
