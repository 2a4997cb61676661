"""Running out of memory is recognised by what torch, Python and a GPU's libraries raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from swarm_node.policy.memory.out_of_memory import out_of_memory


@pytest.mark.parametrize("allocate", [lambda: torch.empty(1 << 60), lambda: bytearray(1 << 60)])
def test_an_allocation_that_fails_is_recognised(allocate: Callable[[], object]) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as raised:
        allocate()
    assert out_of_memory(raised.value)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA driver error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_what_a_driver_and_its_libraries_report_is_recognised(message: str) -> None:
    assert out_of_memory(RuntimeError(message))
    assert not out_of_memory(ValueError(message))


def test_other_errors_are_not() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.ones(2) @ torch.ones(3)
    assert not out_of_memory(raised.value)
    illegal = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert not out_of_memory(illegal)
