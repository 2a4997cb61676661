"""How an inference engine is set up: a plan, and what it means in vLLM's own words. Pure.

Whoever divides a machine's memory between trainer and sampler makes an `EnginePlan`;
`engine_arguments` is the only place that knows vLLM's names for it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from swarm_node.errors import ModelError
from swarm_node.policy.memory.plan import EngineShare
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.placement import Placement

#: Heads that vLLM's attention kernels for CPUs take; those for CUDA take any multiple of 8.
_CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_PROMPT_ROOM = 4096
_MIB = 1 << 20
#: Of a GPU's memory, for weights, cache and activations, where a trainer shares the device.
_GPU_SHARE = 0.4
#: Mean |Δ log-prob| over the canary's tokens above which a sync counts as failed. In float32 the
#: engine agrees within 1e-5 on a CPU, on a GPU kernels may use TF32; in bfloat16 rounding alone
#: makes 1e-2.
_TOLERANCE = {
    ("cpu", "float32"): 1e-4,
    ("cpu", "bfloat16"): 0.1,
    ("cuda", "float32"): 0.01,
    ("cuda", "bfloat16"): 0.1,
}
INSTALL = (
    "the vLLM sampler needs vllm 0.32.0, which is not installed: on a machine with CUDA run "
    '`pip install "swarm-node[vllm]"`, or take the built-in one with `--sampler torch`'
)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What an engine may use. `device` is "cpu" or "cuda:N", the first of its GPUs. `max_rows`
    sequences of at most `max_model_len` tokens run at once. `kv_bytes` of memory hold keys and
    values; None takes `gpu_share` of the GPU for everything. `lora_rank` is the largest rank of
    adapters, 0 for none. `head_size` is what the engine computes with; where it is not the model's
    own, heads are padded (see `engine_view`). `tensor_parallel` GPUs hold a part of every matrix
    each. With a `sleep_level` the engine gives back the GPU's memory while the trainer works: 1
    keeps the weights in the machine's memory, 2 forgets them. `prefill_tokens` are computed in one
    step at most; None leaves that to vLLM."""

    device: str
    dtype: Literal["float32", "bfloat16"]
    max_model_len: int
    max_rows: int
    kv_bytes: int | None
    gpu_share: float
    head_size: int
    lora_rank: int = 0
    threads: int = 1
    tensor_parallel: int = 1
    sleep_level: int = 0
    prefill_tokens: int | None = None

    @property
    def tolerance(self) -> float:
        """Largest mean |Δ log-prob| between trainer and engine after a sync."""
        return _TOLERANCE["cuda" if self.on_gpu else "cpu", self.dtype]

    @property
    def on_gpu(self) -> bool:
        """Whether it computes with CUDA."""
        return self.device != "cpu"


def plan_engine(
    model: Qwen2Config,
    *,
    where: Placement,
    max_rows: int,
    max_new_tokens: int,
    lora_rank: int = 0,
    threads: int = 1,
    share: EngineShare | None = None,
) -> EnginePlan:
    """A plan for `model` on the machine where a trainer computes at `where`.

    On a CPU, the cache of keys and values holds what `max_rows` answers with short prompts need,
    within 32 MiB and 1 GiB, and one sequence at least. On CUDA it is what `share` says, which comes
    from a plan of the GPU for trainer and engine, or a fixed share of the device.

    Raises:
        ModelError: no kernel fits the model's heads, or the rank is more than vLLM takes.
    """
    dtype: Literal["float32", "bfloat16"] = "bfloat16" if where.half else "float32"
    head = _head_size(model, where.device)
    rank = next((known for known in _LORA_RANKS if known >= lora_rank), None) if lora_rank else 0
    if rank is None:
        raise ModelError(f"training.lora_rank: vLLM takes {_LORA_RANKS[-1]} at most")
    length = min(model.max_position_embeddings, _PROMPT_ROOM + max_new_tokens)
    token = 2 * model.num_hidden_layers * model.num_key_value_heads * head
    token *= 4 if dtype == "float32" else 2
    longest = token * (length + 128)  # whole blocks
    kv_bytes = None
    if where.device == "cpu":
        typical = max_rows * token * min(length, 256 + max_new_tokens)
        kv_bytes = max(longest, min(max(typical, 32 * _MIB), 1024 * _MIB))
    plan = EnginePlan(
        where.device, dtype, length, max_rows, kv_bytes, _GPU_SHARE, head, rank, threads
    )
    if share is None:
        return plan
    return replace(
        plan,
        max_model_len=share.max_model_len,
        max_rows=share.max_rows,
        kv_bytes=share.kv_bytes,
        gpu_share=share.gpu_share,
        sleep_level=share.sleep_level,
        prefill_tokens=share.prefill_tokens,
    )


def engine_arguments(plan: EnginePlan, model: Path, seed: int = 0) -> dict[str, Any]:
    """The plan as keyword arguments of vLLM 0.32's `AsyncEngineArgs`, plain values only.

    Weights are left out ("dummy"): the trainer hands them over, from the first version on.
    Log-probs are those of the distribution sampled from, as the trainer computes them."""
    arguments: dict[str, Any] = {
        "model": str(model),
        "dtype": plan.dtype,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "max_model_len": plan.max_model_len,
        "max_num_seqs": plan.max_rows,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "enforce_eager": True,
        "seed": seed,
        "disable_log_stats": True,
    }
    if plan.kv_bytes is not None:
        arguments["kv_cache_memory_bytes"] = plan.kv_bytes
    if plan.on_gpu:
        arguments["gpu_memory_utilization"] = plan.gpu_share
        arguments["tensor_parallel_size"] = plan.tensor_parallel
        arguments["enable_sleep_mode"] = plan.sleep_level > 0
        if plan.prefill_tokens is not None:
            arguments["max_num_batched_tokens"] = max(plan.prefill_tokens, plan.max_rows)
    else:
        # The default of 128 would never cache a prompt shorter than that. And on a CPU, vLLM 0.32
        # dies where it computes the prompt of a request with a seed in pieces.
        arguments |= {"block_size": 32, "enable_chunked_prefill": False}
    if plan.lora_rank:
        arguments |= {"enable_lora": True, "max_lora_rank": plan.lora_rank, "max_loras": 1}
    return arguments


def engine_environment(
    plan: EnginePlan, cache: Path, visible: str | None = None
) -> Mapping[str, str]:
    """Variables of the engine's process, set by whoever starts it; `cache` is a directory for what
    vLLM wants to write, `visible` the GPUs that this process sees (CUDA_VISIBLE_DEVICES) if not
    all. Nothing is fetched and nothing reported."""
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # One core process below the front, no further worker processes.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": str(plan.threads),
    }
    if plan.on_gpu:
        # vLLM takes the first ones it sees.
        first = int(plan.device.removeprefix("cuda:"))
        gpus = range(first, first + plan.tensor_parallel)
        names = visible.split(",") if visible else None
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(names[n] if names else str(n) for n in gpus)
    else:
        # Compiling one sampling helper takes seconds and a C++ compiler; binding threads to cores
        # would put every node's engine on the same core.
        variables |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return variables


def has_vllm() -> bool:
    """Whether vLLM is installed; it is not imported for that."""
    return importlib.util.find_spec("vllm") is not None


def require_vllm() -> None:
    """
    Raises:
        ModelError: vLLM is not installed; the message says what to install.
    """
    if not has_vllm():
        raise ModelError(INSTALL)


def _head_size(model: Qwen2Config, device: str) -> int:
    own = model.head_dim
    if device != "cpu" or own in _CPU_HEADS:
        return own
    larger = next((size for size in _CPU_HEADS if size % own == 0), None)
    # Zeros beside a head would count in the mean that it is normalised by.
    if larger is None or model.normalises_heads:
        raise ModelError(
            f"vLLM on a CPU cannot take attention heads of {own}: use `--sampler torch`"
        )
    return larger
