"""Recognise that memory ran out, in every form in which torch reports it."""

from __future__ import annotations

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
