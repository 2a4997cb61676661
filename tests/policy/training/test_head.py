"""Log-probs under the head in pieces: the same numbers and gradients as all logits at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from swarm_node.policy.training.head import head_logprobs

TOKENS, HIDDEN, VOCABULARY = 13, 16, 97


def made(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a head, wanted ids, and what the loss gives back for each log-prob."""
    torch.manual_seed(3)
    hidden = torch.randn(TOKENS, HIDDEN).to(dtype).requires_grad_()
    head = (torch.randn(VOCABULARY, HIDDEN) / 4).to(dtype)
    return hidden, head, torch.randint(VOCABULARY, (TOKENS,)), torch.randn(TOKENS)


def reference(
    hidden: Tensor, head: Tensor, wanted: Tensor, given: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probs and the hidden states' gradient, in float64."""
    exact = hidden.detach().double().requires_grad_()
    logits = exact @ head.double().T / temperature
    found = logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0]
    (gradient,) = torch.autograd.grad((found * given.double()).sum(), exact)
    return found.detach(), gradient


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("piece", [1, 5, 13, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_pieces_have_the_log_probs_and_the_gradient_of_the_whole(
    trained: bool, piece: int, temperature: float
) -> None:
    hidden, head, wanted, given = made(torch.float32)
    expected = reference(hidden, head, wanted, given, temperature)
    head.requires_grad_(trained)
    found = head_logprobs(head, hidden, wanted, temperature, piece)
    (found * given).sum().backward()
    torch.testing.assert_close(found.detach().double(), expected[0], rtol=1e-5, atol=1e-5)
    assert hidden.grad is not None
    torch.testing.assert_close(hidden.grad.double(), expected[1], rtol=1e-4, atol=1e-5)
    assert (head.grad is not None) == trained


def test_a_frozen_head_in_bfloat16_is_as_exact_as_products_in_it() -> None:
    hidden, head, wanted, given = made(torch.bfloat16)
    expected = reference(hidden, head, wanted, given, 1.0)
    found = head_logprobs(head, hidden, wanted, 1.0, 4)
    assert found.dtype == torch.float32
    (found * given).sum().backward()
    torch.testing.assert_close(found.detach().double(), expected[0], rtol=0.02, atol=0.02)
    assert hidden.grad is not None
    torch.testing.assert_close(hidden.grad.double(), expected[1], rtol=0.05, atol=0.02)


def test_without_a_gradient_only_log_probs_are_made() -> None:
    hidden, head, wanted, _ = made(torch.float32)
    with torch.no_grad():
        found = head_logprobs(head, hidden, wanted, 1.0, 4)
    assert not found.requires_grad
    torch.testing.assert_close(found, head_logprobs(head, hidden, wanted, 1.0, 99).detach())
