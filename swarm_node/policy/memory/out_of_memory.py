"""Shortage of memory: recognised in every form in which torch reports it, and memory given back."""

from __future__ import annotations

import ctypes

import torch

#: torch's CPU allocator, and C++; then what a GPU's driver and libraries report when they allocate
#: past torch, which raises `torch.OutOfMemoryError` for its own allocations only.
_MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "[CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUSPARSE_STATUS_ALLOC_FAILED",
)


def out_of_memory(error: BaseException) -> bool:
    """Check that `error` reports that memory of the computer or of a GPU ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MESSAGES)


def free_caches() -> None:
    """Give the memory that torch keeps for later back to the GPU. Call it outside of the exception
    handler: there the traceback keeps the tensors alive."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def trim_heap() -> None:
    """Give free memory of the heap back to the machine, where the C library is glibc. Blocks of the
    size of activations, each aligned, leave holes that the next micro-batch does not fill: without
    this, it took half as much again (docs/research/one-gpu.md)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
