"""Copies tensors from files and devices to main memory, checks that they fit a model, and makes
modules without memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from swarm_node.errors import ModelError, words_of


def load_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, on the CPU.

    Raises:
        ModelError: the file is missing or not a safetensors file.
    """
    from safetensors.torch import load_file

    with _readable(path):
        tensors: dict[str, Tensor] = load_file(path)
    return tensors


def header(path: Path) -> dict[str, str]:
    """The metadata in the header of a safetensors file.

    Raises:
        ModelError: the file is missing or not a safetensors file.
    """
    from safetensors import safe_open

    with _readable(path), safe_open(path, "pt") as file:
        return dict(file.metadata() or {})


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, RuntimeError) as error:  # torch has no OSError of its own
        raise ModelError(f"cannot read {path}: {words_of(error)}") from error
    except SafetensorError as error:
        raise ModelError(f"{path} is not a safetensors file: {error}") from error


def on_host(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous copy in main memory, cast to `dtype` on the way."""
    # Cast on the device, so that a bfloat16 copy moves half as many bytes.
    cast = tensor.detach().to(dtype or tensor.dtype)
    return cast.to("cpu", copy=True, memory_format=torch.contiguous_format)


@contextmanager
def without_memory() -> Iterator[None]:
    """Make modules without memory, in a context that holds for the whole process. Matrices that
    become parameters of a module keep one element of memory, which is zero. They cannot be written
    before they are given memory."""

    def drop(module: nn.Module, name: str, parameter: Tensor) -> None:
        if parameter.ndim > 1:
            parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)

    hook = register_module_parameter_registration_hook(drop)
    try:
        yield
    finally:
        hook.remove()


def check_finite(state: Mapping[str, Tensor], path: Path) -> None:
    """Check that weights read from `path` are numbers. It reads all of them: a process that holds
    a part of a model leaves it to the sampler's.

    Raises:
        ModelError: one is not a number, or infinite.
    """
    for name, weight in state.items():
        is_float = weight.is_floating_point() and weight.itemsize > 1
        # A sum needs no memory, and no weights add up to more than float32 has.
        if is_float and not weight.sum(dtype=torch.float32).isfinite():
            raise ModelError(
                f"the weights in {path} are damaged: {name} has values that are no finite numbers; "
                "download or save the model again"
            )


def check_weights(
    model_weights: Mapping[str, Tensor], state: Mapping[str, Tensor], tied_names: AbstractSet[str]
) -> None:
    """Check that `state` has the names and shapes of `model_weights`, in floating point of
    16 bits or more: the integers of a quantised model would be other weights. Those in `tied_names`
    to others may be in it too.

    Raises:
        ModelError: a name is missing or unexpected, or a shape or type differs.
    """
    if mismatches := sorted(
        (state.keys() - (tied_names - model_weights.keys())) ^ model_weights.keys()
    ):
        raise ModelError(
            f"the weights do not fit the model: {mismatches[0]} and {len(mismatches) - 1} more"
        )
    for name, weight in model_weights.items():
        if weight.shape != state[name].shape:
            have, model_shape = tuple(state[name].shape), tuple(weight.shape)
            raise ModelError(
                f"the weights do not fit the model: {name} is {have}, not {model_shape}"
            )
        if not (state[name].is_floating_point() and state[name].itemsize > 1):
            raise ModelError(
                f"the weights are not supported: {name} is {state[name].dtype}",
                'choose the unquantised model, which training.base = "nf4" quantizes to 4 bits',
            )
