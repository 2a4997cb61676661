"""Frozen matrices in four bits a weight (nf4 of QLoRA, arXiv 2305.14314), through bitsandbytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch import Tensor

from swarm_node.errors import ConfigError, ModelError, extra_of

#: Weights that share a scale.
BLOCK = 64


class FourBit:
    """A frozen matrix [out, in] of n weights: `codes` u8[n / 2] have two a byte, and `absmax`
    f32[n / 64] the largest magnitude of each block. Products have the type of their input."""

    def __init__(
        self, codes: Tensor, absmax: Tensor, shape: Sequence[int], dtype: torch.dtype
    ) -> None:
        """The matrix in this memory; `dtype` is the type of what is dequantized.

        Raises:
            ConfigError: bitsandbytes is not installed.
        """
        self._library = bitsandbytes('training.base = "nf4"', 'training.base to "whole"')
        self._codes, self._absmax = codes[:, None], absmax
        self._state = self._library.functional.QuantState(
            absmax, torch.Size(shape), blocksize=BLOCK, quant_type="nf4", dtype=dtype
        )

    @staticmethod
    def sizes(shape: Sequence[int]) -> tuple[int, int]:
        """Elements of `codes` and `absmax` for a matrix of this shape."""
        return prod(shape) // 2, -(-prod(shape) // BLOCK)

    def fill(self, parts: Sequence[Tensor]) -> None:
        """Quantize the matrices joined in this one, each by itself, with scales rounded to eight
        bits. The numbers are those of vLLM and transformers, which join none.

        Raises:
            ModelError: a part has no whole number of blocks.
        """
        functional, start = self._library.functional, 0
        for part in parts:
            end = start + part.numel()
            if end % BLOCK:
                raise ModelError(
                    f"a matrix of {tuple(part.shape)} has no whole number of blocks of {BLOCK}: "
                    'set training.base to "whole"'
                )
            matrix = part.to(self._codes.device).contiguous()
            codes, state = functional.quantize_4bit(
                matrix, blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
            )
            absmax = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
            self._codes[start // 2 : end // 2] = codes
            self._absmax[start // BLOCK : end // BLOCK] = absmax
            start = end

    def whole(self) -> Tensor:
        """The matrix, dequantized."""
        return self._library.functional.dequantize_4bit(self._codes, self._state)  # type: ignore[no-any-return]

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., in] to [..., out]. Only the four bits are kept for the backward pass, which
        dequantizes them again."""
        return self._library.matmul_4bit(x, self._codes, self._state, bias=bias)  # type: ignore[no-any-return]


def bitsandbytes(setting: str, alternative: str) -> Any:
    """The library, which is imported where `setting` needs it.

    Raises:
        ConfigError: it is not installed; the message says to set `alternative`.
    """
    try:
        with without_kernels():
            return import_module("bitsandbytes")
    except ImportError as error:
        raise ConfigError(
            f"{setting} needs bitsandbytes", f"run {extra_of('gpu')}, or set {alternative}"
        ) from error


@contextmanager
def without_kernels() -> Iterator[None]:
    """Inside this context the package `kernels` cannot be imported, as if it were not installed.
    With it, bitsandbytes fetches code from the hub at its import, and runs it."""
    kernels = sys.modules.pop("kernels", None)
    sys.modules["kernels"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop("kernels", None)  # another thread may be in this context, too
        if kernels is not None:
            sys.modules["kernels"] = kernels
