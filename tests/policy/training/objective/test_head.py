"""Log-probs and entropy under the head in pieces: the numbers and gradients of all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import train_rows, trainer_settings
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.memory import footprint
from swarm_node.policy.training.objective import logprobs
from swarm_node.policy.training.objective.head import head_logprobs
from swarm_node.policy.training.objective.packing import arrange
from swarm_node.policy.training.update.trainer import TrainerCore

TOKENS, HIDDEN, VOCABULARY = 13, 16, 97


def made(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a head, wanted ids, and what the loss gives back for each log-prob."""
    torch.manual_seed(3)
    hidden = torch.randn(TOKENS, HIDDEN).to(dtype).requires_grad_()
    head = (torch.randn(VOCABULARY, HIDDEN) / 4).to(dtype)
    return hidden, head, torch.randint(VOCABULARY, (TOKENS,)), torch.randn(TOKENS)


def reference(
    hidden: Tensor, head: Tensor, wanted: Tensor, given: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs, entropies and the gradients of hidden states and head, in float64."""
    exact, matrix = (part.detach().double().requires_grad_() for part in (hidden, head))
    logps = (exact @ matrix.T / temperature).log_softmax(-1)
    found = logps.gather(1, wanted[:, None])[:, 0]
    gradients = torch.autograd.grad((found * given.double()).sum(), (exact, matrix))
    return found.detach(), -(logps.exp() * logps).sum(-1).detach(), *gradients


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("piece", [1, 5, 13, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_pieces_have_the_log_probs_and_the_gradient_of_the_whole(
    trained: bool, piece: int, temperature: float
) -> None:
    hidden, head, wanted, given = made(torch.float32)
    expected = reference(hidden, head, wanted, given, temperature)
    head.requires_grad_(trained)
    found, entropy = head_logprobs(head, hidden, wanted, temperature, piece)
    (found * given).sum().backward()
    assert not entropy.requires_grad
    results = [found.detach(), entropy, hidden.grad, head.grad]
    assert (results[-1] is not None) == trained
    for result, exact in zip(results[: 3 + trained], expected, strict=False):
        torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trained", [False, True])
def test_in_bfloat16_it_is_as_exact_as_products_in_it(trained: bool) -> None:
    hidden, head, wanted, given = made(torch.bfloat16)
    expected = reference(hidden, head, wanted, given, 1.0)
    found, entropy = head_logprobs(head.requires_grad_(trained), hidden, wanted, 1.0, 4)
    assert found.dtype == torch.float32
    (found * given).sum().backward()
    assert entropy is not None
    for result, exact in zip(
        [found.detach(), entropy, hidden.grad, head.grad][: 3 + trained], expected, strict=False
    ):
        torch.testing.assert_close(result.double(), exact, rtol=0.05, atol=0.03)


@pytest.mark.parametrize("piece", [4, 99])
def test_under_autocast_products_are_cast_and_gradients_are_not(piece: int) -> None:
    hidden, head, wanted, given = made(torch.float32)
    expected = reference(hidden, head, wanted, given, 1.0)
    head.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = head_logprobs(head, hidden, wanted, 1.0, piece)
    (found * given).sum().backward()
    for result, exact in zip([hidden.grad, head.grad], expected[2:], strict=True):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), exact, rtol=0.05, atol=0.03)


def test_the_entropy_under_autocast_is_that_of_the_same_numbers_without_it() -> None:
    """It is the difference of two numbers, of up to 28 here, which bfloat16 has to an eighth."""
    hidden, head, wanted, _ = made(torch.bfloat16)
    hidden = (6 * hidden.detach()).requires_grad_()
    _, exact = head_logprobs(head, hidden, wanted, 1.0, 4)
    with torch.autocast("cpu", torch.bfloat16):
        _, entropy = head_logprobs(head, hidden, wanted, 1.0, 4)
    assert exact is not None
    assert entropy is not None
    torch.testing.assert_close(entropy, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trained", [False, True])
def test_all_logits_are_never_there_at_once(trained: bool) -> None:
    """In the backward pass neither."""
    hidden, head, wanted, given = made(torch.float32)
    head.requires_grad_(trained)
    with Largest() as made_here:
        found, _ = head_logprobs(head, hidden, wanted, 0.7, 4)
        (found * given).sum().backward()
    assert made_here.logits == 4


@pytest.mark.parametrize(("piece", "times"), [(1000, 1), (TOKENS, 1), (7, 4), (4, 8)])
def test_the_probabilities_of_a_single_piece_are_computed_once_and_of_several_again(
    piece: int, times: int
) -> None:
    hidden, head, wanted, given = made(torch.float32)
    with Exponentials() as made_here:
        found, _ = head_logprobs(head.requires_grad_(), hidden, wanted, 0.7, piece)
        (found * given).sum().backward()
    assert made_here.count == times


def test_a_trainers_pieces_are_those_of_the_plan(
    random_qwen2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = []

    def noted(*given: Any) -> tuple[Tensor, Tensor | None]:
        pieces.append(given[-1])
        return head_logprobs(*given)

    monkeypatch.setattr(logprobs, "head_logprobs", noted)
    monkeypatch.setattr(footprint, "LEAST_LOGITS", 1)  # else all of a small batch
    core = TrainerCore(random_qwen2, trainer_settings())
    rows = tuple(train_rows())
    config, tokens = core.model.config, arrange(rows).ids.size
    expected = []
    for again in (False, True):
        core.model.recompute = again
        assert core.update(Batch(rows)).skipped is None
        way = footprint.TrainingMethod(checkpointing=again, micro_batch_tokens=tokens)
        most = footprint.logit_elements(config, way, longest_row=0)
        expected.append(most // config.vocab_size)
    assert pieces == expected
    assert pieces[0] < pieces[1]


class Largest(TorchDispatchMode):
    """Notes the most rows of any result as wide as the vocabulary, but the head itself."""

    logits = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        shape = result.shape if isinstance(result, Tensor) else ()
        if shape[-1:] == (VOCABULARY,) and shape[0] != HIDDEN:
            self.logits = max(self.logits, shape[0])
        return result


class Exponentials(TorchDispatchMode):
    """Counts how often a matrix of logits becomes one of probabilities."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.count += func is torch.ops.aten.exp_.default
        return func(*args, **(kwargs or {}))


def test_without_a_gradient_only_log_probs_are_made() -> None:
    hidden, head, wanted, _ = made(torch.float32)
    with torch.no_grad():  # hidden states are made without a gradient then
        found, entropy = head_logprobs(head.requires_grad_(), hidden * 1, wanted, 1.0, 4)
    assert not found.requires_grad
    assert entropy is None
    torch.testing.assert_close(found, head_logprobs(head, hidden, wanted, 1.0, 99)[0].detach())
