"""Weights in one piece of memory; the handle itself needs a GPU."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
import torch
from builders import printed_by

from swarm_node.errors import ModelError
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import resolve
from swarm_node.policy.placement import ON_CPU, Placement
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.vllm.engine import installed_vllm, plan_engine
from swarm_node.policy.sampling.vllm.sampler import VllmSampler
from swarm_node.policy.training.objective.logprobs import measure_canary
from swarm_node.policy.weights.canary import read_canary
from swarm_node.policy.weights.device import (
    GROWING,
    DeviceBuffers,
    fill,
    import_buffer,
    is_on_device,
    layout,
    views,
)
from swarm_node.policy.weights.store import WeightStore

TINY = resolve("tiny")
ON_GPU = Placement("cuda:0", "bfloat16")
VLLM = installed_vllm()
NEEDS_VLLM = pytest.mark.skipif(VLLM is None or VLLM.on_cpu, reason="needs vLLM built for CUDA")


def test_tensors_are_laid_side_by_side_and_found_again() -> None:
    state = CausalLM.from_directory(TINY).hf_state()
    table, total = layout({name: tuple(tensor.shape) for name, tensor in state.items()})
    assert total >= sum(tensor.numel() for tensor in state.values())
    assert all(start % 128 == 0 for start, _ in table.values())
    flat = torch.full((total,), torch.nan)
    fill(flat, state, table)
    found = dict(views(flat, table))
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    rounded = torch.zeros(total, dtype=torch.bfloat16)
    fill(rounded, state, table)
    name = "model.norm.weight"
    assert torch.equal(dict(views(rounded, table))[name], state[name].bfloat16())


def test_without_a_gpu_there_is_no_place_for_weights() -> None:
    with pytest.raises(ModelError, match="no GPU"):
        DeviceBuffers(ON_CPU)


#: Reads a published file in another process and says whether it holds what the file was made of.
READER = """
import sys, torch
from safetensors import safe_open
from swarm_node.policy.weights.device import read_device
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.decoder.causal_lm import CausalLM
state = CausalLM.from_directory(resolve("tiny")).hf_state()
with safe_open(sys.argv[1], "pt") as file:
    found = {name: tensor.cpu() for name, tensor in read_device(file.metadata())}
assert found.keys() == state.keys()
assert all(torch.equal(found[name], state[name].bfloat16()) for name in state)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it works")
def test_cuda_is_set_up_before_memory_is_mapped() -> None:
    """torch's function does not, and reads a table that is empty before: the process would die."""
    handle = [0, "00" * 64, 8, 0, b"/torch_1_1".hex(), 0, "00" * 64, True]
    told = "not compiled with CUDA|no NVIDIA driver|No CUDA GPUs"
    with pytest.raises((AssertionError, RuntimeError), match=told):
        import_buffer(handle, torch.uint8)


@pytest.mark.gpu
def test_another_process_reads_what_is_on_the_gpu(tmp_path: Path) -> None:
    state, buffers = CausalLM.from_directory(TINY).hf_state(), DeviceBuffers(ON_GPU)
    store = WeightStore(tmp_path)
    first = store.publish(0, {}, buffers.put(state))
    store.publish(1, {}, buffers.put({name: value + 1 for name, value in state.items()}))
    printed_by(READER, first)


#: Publishes weights after other memory was taken and freed, whose segments grow, and more of it
#: afterwards. The folder is the argument.
WRITER = """
import subprocess, sys, torch
from pathlib import Path
from test_device import ON_GPU, READER, TINY
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.weights.device import DeviceBuffers
from swarm_node.policy.weights.store import WeightStore
before = [torch.ones(size << 20, device="cuda") for size in (1, 8, 64)]
del before
state, buffers = CausalLM.from_directory(TINY).hf_state(), DeviceBuffers(ON_GPU)
path = WeightStore(Path(sys.argv[1])).publish(0, {}, buffers.put(state))
after = [torch.zeros(size << 20, device="cuda") for size in (1, 8, 64)]
torch.cuda.synchronize()
grows = [each["is_expandable"] for each in torch.cuda.memory_snapshot()]
assert any(grows) and not all(grows), grows
subprocess.run([sys.executable, "-c", READER, str(path)], check=True)
"""


@pytest.mark.gpu
def test_memory_is_shared_beside_segments_that_grow(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    printed_by(WRITER, tmp_path, PYTHONPATH=path, PYTORCH_CUDA_ALLOC_CONF=GROWING)


@pytest.mark.gpu
def test_memory_is_exported_once_however_often_it_is_filled(tmp_path: Path) -> None:
    """torch wraps the memory anew at each export, and frees none of the wrappers before it."""
    state, buffers = CausalLM.from_directory(TINY).hf_state(), DeviceBuffers(ON_GPU)
    store, headers = WeightStore(tmp_path), []
    for version in range(4):
        headers.append(buffers.put({name: value + (3 - version) for name, value in state.items()}))
        path = store.publish(version, {}, headers[-1])
    assert headers[0] == headers[2] != headers[1] == headers[3]
    printed_by(READER, path)


@pytest.mark.gpu
@NEEDS_VLLM
def test_vllm_takes_weights_from_the_trainers_memory(tmp_path: Path) -> None:
    model = CausalLM.from_directory(TINY)
    plan = plan_engine(model.config, placement=ON_GPU, max_rows=8, max_new_tokens=24)
    buffers, store = DeviceBuffers(ON_GPU), WeightStore(tmp_path)
    sampler = VllmSampler.from_directory(TINY, plan)

    async def run() -> None:
        try:
            for version in range(3):
                header = measure_canary(model).to_metadata() | buffers.put(model.hf_state())
                path = store.publish(version, {}, header)
                assert is_on_device(header)
                assert read_canary(path) == measure_canary(model)
                await sampler.load(path, version)
                ((one,),) = await sampler.sample([SampleRequest((5, 6, 7), 1, version, 8)])
                assert one.spans[0].version == version
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(1.01)
        finally:
            await sampler.close()

    asyncio.run(run())
    assert not sampler.faults
