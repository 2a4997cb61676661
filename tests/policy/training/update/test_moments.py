"""Moments in float32 and in eight bits, and the way between them."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor

from swarm_node.policy.training.update.moments import are_usable, in_eight_bits, in_float32

#: Codes as fine near zero as bitsandbytes': signed for the first moment, unsigned for the second.
FINE = torch.logspace(-6, 0, 127)
TABLES = (
    torch.cat([-FINE.flip(0), torch.zeros(1), FINE, torch.ones(1)]),
    torch.cat([torch.zeros(1), torch.logspace(-7, 0, 255)]),
)


def moments(*shape: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    scale = torch.logspace(-9, -2, shape[0])[:, None]
    first = torch.randn(shape, generator=draw) * scale
    return {"step": torch.tensor(7.0), "exp_avg": first, "exp_avg_sq": first.square()}


@pytest.mark.parametrize("shape", [(64, 64), (37, 123), (4097, 1)])
def test_there_and_back_they_are_the_same_but_for_the_steps_of_the_codes(
    shape: tuple[int, int],
) -> None:
    given = moments(*shape)
    eight = in_eight_bits(given, TABLES)
    assert eight["state1"].dtype == eight["state2"].dtype == torch.uint8
    assert eight["state1"].shape == shape
    assert (int(eight["step"]), eight["step"].dtype) == (7, torch.int64)
    assert len(eight["absmax1"]) == -(-given["exp_avg"].numel() // 256)
    back = in_float32(eight)
    assert back.keys() == given.keys()
    assert back["step"].dtype == torch.float32
    assert float(back["step"]) == 7
    for name, table in zip(("exp_avg", "exp_avg_sq"), TABLES, strict=True):
        # No code is farther than half of the widest gap, in units of a block's largest moment.
        widest = float((table[1:] - table[:-1]).max()) / 2
        largest = (
            torch.nn.functional.pad(given[name].flatten().abs(), (0, -given[name].numel() % 256))
            .view(-1, 256)
            .amax(1)
            .repeat_interleave(256)[: given[name].numel()]
            .view(shape)
        )
        assert bool(((back[name] - given[name]).abs() <= widest * largest * 1.001).all())
        again = in_float32(in_eight_bits(back, TABLES))
        torch.testing.assert_close(again[name], back[name])


@pytest.mark.parametrize("shape", [(64, 64), (37, 123), (63, 65)])
def test_damaged_moments_are_not_usable(shape: tuple[int, int]) -> None:
    given = moments(*shape)
    for layout in (given, in_eight_bits(given, TABLES)):
        assert are_usable(layout, torch.Size(shape))
        assert not are_usable(layout, torch.Size(shape[::-1] if shape[0] != shape[1] else (8, 512)))
        assert not are_usable({**layout, "more": torch.zeros(1)}, torch.Size(shape))
        for name, value in layout.items():
            rest = {other: kept for other, kept in layout.items() if other != name}
            assert not are_usable(rest, torch.Size(shape)), name
            wrong = torch.zeros(3)
            assert not are_usable({**rest, name: wrong}, torch.Size(shape)), name
            assert not are_usable({**rest, name: value.to(torch.int16)}, torch.Size(shape)), name
            if value.is_floating_point():
                broken = value * float("nan")
                assert not are_usable({**rest, name: broken}, torch.Size(shape)), name


def test_moments_of_small_parameters_stay_exact() -> None:
    given = moments(63, 65)
    eight = in_eight_bits(given, TABLES)
    assert eight.keys() == {"step", "state1", "state2"}
    back = in_float32(eight)
    assert all(torch.equal(back[name], value) for name, value in given.items())


def test_a_first_moment_without_a_second_is_nothing() -> None:
    """A block of a frequent token and a rare one: AdamW would divide what is left of the rare one's
    first moment by next to nothing."""
    first = torch.tensor([1.0, 1e-4]).repeat(2048)[:, None]
    given = {"step": torch.tensor(7.0), "exp_avg": first, "exp_avg_sq": first.square()}
    eight = in_eight_bits(given, TABLES)
    assert int(eight["state1"][1]) != int(torch.searchsorted(TABLES[0], 0.0)), "it is kept"
    back = in_float32(eight)
    assert float(back["exp_avg"][0]) == float(back["exp_avg_sq"][0]) == 1.0
    assert float(back["exp_avg"][1]) == float(back["exp_avg_sq"][1]) == 0.0


def test_zeros_stay_zeros() -> None:
    nothing = {name: torch.zeros_like(value) for name, value in moments(64, 64).items()}
    back = in_float32(in_eight_bits(nothing, TABLES))
    assert not any(value.any() for value in back.values())


def test_what_is_in_the_layout_already_is_left_as_it_is() -> None:
    given = moments(64, 64)
    assert in_float32(given) == given
    eight = in_eight_bits(given, TABLES)
    assert in_eight_bits(eight, TABLES) == eight


@pytest.mark.skipif(not importlib.util.find_spec("bitsandbytes"), reason="needs bitsandbytes")
def test_codes_are_those_of_bitsandbytes() -> None:
    from bitsandbytes import functional

    tables = (
        functional.create_dynamic_map(signed=True),
        functional.create_dynamic_map(signed=False),
    )
    given = moments(80, 100)
    eight = in_eight_bits(given, tables)
    back = in_float32(eight)
    kept = back["exp_avg_sq"] > 0
    assert 0.9 < float(kept.float().mean()) < 1
    for name, number, table in zip(("exp_avg", "exp_avg_sq"), "12", tables, strict=True):
        codes, state = functional.quantize_blockwise(given[name], code=table, blocksize=256)
        torch.testing.assert_close(eight[f"absmax{number}"], state.absmax)
        its = functional.dequantize_blockwise(codes, absmax=state.absmax, code=table, blocksize=256)
        # Its search on a CPU does not always find the nearest code; ours does.
        nearer = (back[name] - given[name]).abs() <= (its - given[name]).abs() + 1e-12
        assert bool(nearer[kept].all())
        assert float((codes != eight[f"state{number}"]).float().mean()) < 0.05
        theirs = functional.dequantize_blockwise(
            eight[f"state{number}"], absmax=state.absmax, code=table, blocksize=256
        )
        torch.testing.assert_close(back[name][kept], theirs[kept])
