"""Attention over spans is attention under the mask, and keeps no square of the tokens."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.attention import (
    Attend,
    Masked,
    Spans,
    _groups_heads,
    _visible,
    causal,
    within,
)
from swarm_node.policy.models.hub import ALIASES
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.shapes import known_shape
from swarm_node.policy.placement import repeats_heads, torch_version

CPU = torch.device("cpu")


def segments(*rows: tuple[int, tuple[int, ...], int, int]) -> Tensor:
    """Each row: tokens of padding, tokens of each answer, of the prompt, of padding before it."""
    parts = [
        np.repeat([-1, 0, *range(1, len(answers) + 1), -1], [left, prompt, *answers, right])
        for prompt, answers, right, left in rows
    ]
    return torch.from_numpy(np.stack(parts).astype(np.int64))


CASES = {
    "answers and rows alone": segments((9, (4, 1, 7), 2, 0), (20, (), 3, 0), (3, (20,), 0, 0)),
    "padding on the left": segments((5, (), 0, 0), (2, (), 0, 3), (1, (), 0, 4)),
    "a prompt of one token": segments((1, (3, 3, 3), 0, 0)),
}


def heads(shape: tuple[int, int], query: int, key: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, parts of larger tensors as they are in a layer."""
    generator = torch.Generator().manual_seed(0)
    rotated = torch.randn(*shape, query + key, size, generator=generator)
    value = torch.randn(*shape, query + 2 * key, size, generator=generator)[:, :, query + key :]
    return rotated[:, :, :query], rotated[:, :, query:], value


def result_and_gradients(attend: Attend, *inputs: Tensor) -> list[Tensor]:
    leaves = [part.detach().clone().requires_grad_() for part in inputs]
    attended = attend(*leaves)
    weights = torch.linspace(-1, 1, attended.numel(), device=attended.device).view(attended.shape)
    (attended.float() * weights).sum().backward()
    return [attended, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def without_padding(attend: Attend, numbers: Tensor) -> Attend:
    """`attend` with nothing for tokens of padding, which nobody reads: to what they attend is left
    open, and so are the gradients that come through them."""
    return lambda *parts: attend(*parts) * (numbers >= 0)[..., None].to(parts[0].device)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("query", "key"), [(4, 2), (4, 1), (3, 3)])
def test_spans_equal_the_mask(case: str, query: int, key: int) -> None:
    numbers = CASES[case]
    mask, spans = _visible(numbers), Spans(numbers.numpy(), CPU)
    real = numbers >= 0
    assert torch.equal(spans.positions[real], (mask[:, 0].sum(-1) - 1)[real])
    inputs = heads((numbers.shape[0], numbers.shape[1]), query, key, 8)

    expected = result_and_gradients(without_padding(Masked(mask), numbers), *inputs)
    found = result_and_gradients(without_padding(spans, numbers), *inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_offsets_for_the_varlen_kernel_cut_queries_and_keys_into_the_same_spans(
    case: str,
) -> None:
    """The kernel runs on CUDA only. What it computes is written out here: causal attention of each
    piece, aligned with the last key."""
    numbers = CASES[case]
    spans, real = Spans(numbers.numpy(), CPU), numbers >= 0
    inputs = heads((numbers.shape[0], numbers.shape[1]), 4, 2, 8)
    query, key, value = inputs[0].flatten(0, 1), *map(spans._copy_spans, inputs[1:])
    pieces = [
        Masked(
            torch.ones(1, 1, end - begin, last - first, dtype=torch.bool).tril(
                (last - first) - (end - begin)
            )
        )(query[None, begin:end], key[None, first:last], value[None, first:last])[0]
        for (begin, end), (first, last) in zip(
            pairwise(spans._query_ends.tolist()), pairwise(spans._key_ends.tolist()), strict=True
        )
    ]
    attended = torch.cat(pieces).view(*numbers.shape, -1)
    expected = Masked(_visible(numbers))(*inputs)
    torch.testing.assert_close(attended[real], expected[real], atol=1e-5, rtol=1e-5)


def test_long_sequences_take_no_mask() -> None:
    short, long = segments((200, (100, 100), 0, 0)), segments((400, (100, 100), 0, 0))
    attend, positions = within(short, CPU)
    assert not isinstance(attend, Spans)
    assert positions[0, [0, 199, 299, 300, 399]].tolist() == [0, 199, 299, 200, 299]
    attend, positions = within(long, CPU)
    assert isinstance(attend, Spans)
    assert positions[0, [0, 399, 499, 500, 599]].tolist() == [0, 399, 499, 400, 499]


def test_under_autocast_attention_is_of_one_type() -> None:
    query, key, value = heads((1, 600), 4, 2, 16)
    numbers = segments((300, (150, 150), 0, 0))
    with torch.autocast("cpu", torch.bfloat16):
        for attend in (causal, within(numbers, CPU)[0], within(numbers[:, :400], CPU)[0]):
            length = 400 if isinstance(attend, Masked) else 600
            parts = query[:, :length], key[:, :length], value[:, :length].bfloat16()
            assert attend(*parts).dtype == torch.bfloat16


def test_the_varlen_kernel_is_called_as_torch_declares_it() -> None:
    """It runs on CUDA only. Its declaration checks what it is given, backwards too."""
    numbers = CASES["answers and rows alone"].numpy()
    batch, length = numbers.shape
    with FakeTensorMode():
        spans = Spans(numbers, CPU)
        leaves = [
            part.to(torch.bfloat16).requires_grad_() for part in heads((batch, length), 4, 2, 64)
        ]
        query, key, value = leaves
        attended = spans._at_once(
            query.flatten(0, 1), spans._copy_spans(key), spans._copy_spans(value)
        )
        assert attended.shape == (batch * length, 4, 64)
        attended.sum().backward()  # type: ignore[no-untyped-call]
        assert [leaf.grad.shape for leaf in leaves if leaf.grad is not None] == [
            leaf.shape for leaf in leaves
        ]


def test_a_plan_knows_whether_this_torch_repeats_heads() -> None:
    from torch.nn.attention.varlen import varlen_attn  # takes a second

    assert repeats_heads(torch_version()) is not _groups_heads(varlen_attn)
    assert torch_version() == torch.__version__


@pytest.mark.parametrize(
    ("version", "capability", "repeats"),
    [
        ("2.11.0+cu130", (9, 0), True),
        ("2.12.0+cu130", (9, 0), False),
        ("2.13.1", None, False),
        ("3.0.0", (8, 0), False),
        ("2.13.0", (7, 5), True),
        ("", None, True),
        ("unknown", None, True),
    ],
)
def test_heads_are_repeated_before_torch_2_12_and_before_ampere(
    version: str, capability: tuple[int, int] | None, repeats: bool
) -> None:
    assert repeats_heads(version, capability) is repeats


@pytest.mark.parametrize(("query", "key"), [(4, 2), (4, 1), (3, 3)])
def test_on_a_gpu_each_query_head_gets_a_key_where_a_kernel_shares_none(
    query: int, key: int
) -> None:
    """The declarations of torch's kernels check the shapes; nothing is computed."""
    with FakeTensorMode():
        parts = (torch.empty(2, 8, count, 16, device="cuda") for count in (query, key, key))
        attended = causal(*parts)
        assert (attended.shape, attended.device.type) == ((2, 8, query * 16), "cuda")


def shipped_shapes() -> dict[str, ModelConfig]:
    shapes = {name: known_shape(name) for name in ALIASES}
    return {
        "tiny": ModelConfig.from_directory(resolve("tiny")),
        **{name: shape for name, shape in shapes.items() if shape is not None},
    }


@pytest.mark.gpu
@pytest.mark.parametrize("name", shipped_shapes())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_gpu_no_shipped_shape_takes_the_kernel_that_holds_all_scores(
    name: str, dtype: torch.dtype
) -> None:
    config, device = shipped_shapes()[name], torch.device("cuda")
    numbers = segments((300, (40, 57, 8), 5, 0), (200, (70, 7, 90), 43, 0))
    attend, _ = within(numbers, device)
    inputs = heads(
        (2, 410), config.num_attention_heads, config.num_key_value_heads, config.head_dim
    )
    fused = [
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
    ]
    by_mask, by_span = (
        without_padding(one, numbers) for one in (Masked(_visible(numbers)), attend)
    )
    for one, reference in ((causal, causal), (by_span, by_mask)):
        expected = result_and_gradients(reference, *inputs)
        with ExitStack() as stack:
            stack.enter_context(sdpa_kernel(fused))  # without another kernel, torch raises
            found = result_and_gradients(one, *(part.to(device, dtype) for part in inputs))
        limit = 1e-3 if dtype == torch.float32 else 5e-2
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.float().cpu(), theirs, atol=limit, rtol=limit)
