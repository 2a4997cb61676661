"""The moments of one parameter in the two layouts that checkpoints hold, and the way from one to
the other. Pure.

In float32, as torch.optim.AdamW names them: "step" (f32 scalar), "exp_avg" and "exp_avg_sq" (of the
parameter's shape). In eight bits, as bitsandbytes names them: "step" (i64 scalar), "state1" and
"state2" (u8, of the parameter's shape); "qmap1" and "qmap2" (f32[256], ascending), the number that
each code stands for; "absmax1" and "absmax2", the factor of each block of 256 codes. Parameters
with fewer than 4096 weights have "state1" and "state2" in float32 and none of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK = 256
_LEAST_WEIGHTS = 4096
_NAMES = (("exp_avg", "1"), ("exp_avg_sq", "2"))


def are_usable(moments: Mapping[str, Tensor], shape: torch.Size) -> bool:
    """Check that `moments`, in either layout, are complete, finite and of a parameter of
    `shape`."""
    eight = "state1" in moments
    coded = eight and moments["state1"].dtype == torch.uint8
    blocks = -(-shape.numel() // _BLOCK)
    specs: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    specs["step"] = (), torch.int64 if eight else torch.float32
    for name, number in _NAMES:
        kind = torch.uint8 if coded else torch.float32
        specs[f"state{number}" if eight else name] = tuple(shape), kind
        if coded:
            specs[f"qmap{number}"] = (_BLOCK,), torch.float32
            specs[f"absmax{number}"] = (blocks,), torch.float32
    actual_specs = {name: (tuple(value.shape), value.dtype) for name, value in moments.items()}
    return actual_specs == specs and all(bool(value.isfinite().all()) for value in moments.values())


def in_float32(moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`moments` in float32, from either layout. A first moment whose second was rounded to zero
    counts as zero: AdamW would divide it by next to nothing."""
    if "state1" not in moments:
        return dict(moments)
    result = {"step": moments["step"].float()}
    for name, number in _NAMES:
        value = moments[f"state{number}"]
        if value.dtype == torch.uint8:
            table, factors = moments[f"qmap{number}"], moments[f"absmax{number}"]
            scale = factors.repeat_interleave(_BLOCK)[: value.numel()].view(value.shape)
            value = table[value.int()] * scale
        result[name] = value
    if moments["state1"].dtype == torch.uint8:
        first, second = result["exp_avg"], result["exp_avg_sq"]
        result["exp_avg"] = first.where(second > 0, 0.0)
    return result


def in_eight_bits(
    moments: Mapping[str, Tensor], tables: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """`moments` in eight bits, from either layout; those in float32 get the codes of `tables`, for
    the first moment and the second."""
    if "state1" in moments:
        return dict(moments)
    result = {"step": moments["step"].long()}
    for (name, number), table in zip(_NAMES, tables, strict=True):
        value = moments[name]
        if value.numel() < _LEAST_WEIGHTS:
            result[f"state{number}"] = value
            continue
        blocks = F.pad(value.flatten(), (0, -value.numel() % _BLOCK)).view(-1, _BLOCK)
        factors = blocks.abs().amax(1)
        ratios = blocks / factors.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        codes = torch.bucketize(ratios, (table[1:] + table[:-1]) / 2, out_int32=True)
        codes = codes.to(torch.uint8).flatten()[: value.numel()].view(value.shape)
        result |= {f"state{number}": codes, f"qmap{number}": table, f"absmax{number}": factors}
    return result
