"""Every loss against NumPy, token by token and case by case, and the gradients that are claimed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from swarm_node.policy.choices import ADVANTAGE_CHOICES, LOSS_CHOICES, AdvantageName, LossName
from swarm_node.policy.experience.advantage import ADVANTAGES
from swarm_node.policy.training.objective.losses import (
    LOSSES,
    TBA_BETA,
    BatchSize,
    ClipBounds,
    Tokens,
)

BOUNDS = ClipBounds(low=0.2, high=0.28, cap=5.0)
SIZE = BatchSize(tokens=97, rows=13, max_new_tokens=19)
CAP = math.log(5.0)
Floats = NDArray[np.float64]


@dataclass
class Case:
    """A few rows: token vectors, and for each row the slice of its tokens."""

    logp: Floats
    behaviour: Floats
    measured: NDArray[np.bool_]
    advantage: Floats
    behind: NDArray[np.int64]
    reference: Floats
    drift: Floats
    rows: list[slice]

    def tokens(self) -> Tokens:
        row = np.concatenate(
            [np.full(part.stop - part.start, n) for n, part in enumerate(self.rows)]
        )
        return Tokens(
            logp=torch.tensor(self.logp, requires_grad=True),
            behaviour=torch.tensor(self.behaviour),
            is_measured=torch.tensor(self.measured),
            advantage=torch.tensor(self.advantage),
            row=torch.tensor(row),
            staleness=torch.tensor(self.behind),
            reference=torch.tensor(self.reference),
            drift=torch.tensor(self.drift),
        )

    def deltas(self) -> Floats:
        """log ρ, truncated above."""
        return np.where(self.measured, np.minimum(self.logp - self.behaviour, CAP), 0.0)


def random_case(seed: int, spread: float = 0.8) -> Case:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, 8)
    ends = np.cumsum(lengths)
    rows = [slice(int(e - n), int(e)) for e, n in zip(ends, lengths, strict=True)]
    n = int(ends[-1])
    logp = -rng.exponential(1.5, n)

    def per_row(values: Floats) -> Floats:
        return np.repeat(values, lengths)

    return Case(
        logp=logp,
        behaviour=logp + rng.normal(0, spread, n),
        measured=np.repeat(rng.random(8) < 0.8, lengths),
        advantage=per_row(rng.normal(0, 1.5, 8)),
        behind=rng.integers(-1, 9, n),
        reference=logp + rng.normal(0, 0.5, n),
        drift=per_row(rng.normal(0, 0.5, 8)),
        rows=rows,
    )


def clipped_token(a: float, ratio: float, low: float, high: float) -> float:
    """max(−A·r, −A·clip(r)): with A > 0 the clip binds above, else below."""
    return -a * min(ratio, 1 + high) if a > 0 else -a * max(ratio, 1 - low)


def np_reinforce(case: Case) -> float:
    return -sum(a * lp for lp, a in zip(case.logp, case.advantage, strict=True)) / 97


def np_dapo(case: Case) -> float:
    pairs = zip(case.advantage, np.exp(case.deltas()), strict=True)
    return sum(clipped_token(a, r, 0.2, 0.28) for a, r in pairs) / 97


def np_dr_grpo(case: Case) -> float:
    return np_dapo(case) * 97 / (13 * 19)


def np_decoupled(case: Case) -> float:
    total = 0.0
    for a, delta, behind in zip(case.advantage, case.deltas(), case.behind, strict=True):
        if behind < 0:
            alpha = 1.0
        elif behind == 0:
            alpha = 0.0
        else:
            alpha = (behind - 1) / behind
        proximal_over_sampler = math.exp(alpha * delta)
        now_over_proximal = math.exp(delta) / proximal_over_sampler
        total += proximal_over_sampler * clipped_token(a, now_over_proximal, 0.2, 0.2)
    return total / 97


def weighted(case: Case, weigh: Callable[[float], float]) -> float:
    triples = zip(case.logp, case.advantage, np.exp(case.deltas()), strict=True)
    return -sum(weigh(float(r)) * a * lp for lp, a, r in triples) / 97


def np_tis(case: Case) -> float:
    return weighted(case, lambda ratio: min(ratio, 2.0))


def np_icepop(case: Case) -> float:
    # The cap of 5 is IcePop's own bound: what was truncated to it was above it.
    return weighted(case, lambda ratio: ratio if 0.5 <= ratio < 5.0 - 1e-9 else 0.0)


def np_cispo(case: Case) -> float:
    return weighted(case, lambda ratio: min(ratio, 5.0))


def np_gspo(case: Case) -> float:
    total = 0.0
    for part in case.rows:
        ratio = float(np.exp(case.deltas()[part].mean()))
        total += clipped_token(case.advantage[part][0], ratio, 3e-4, 4e-4)
    return total / 13


def np_dppo(case: Case) -> float:
    total = 0.0
    for lp, mu, known, a, delta in zip(
        case.logp, case.behaviour, case.measured, case.advantage, case.deltas(), strict=True
    ):
        moved = math.exp(lp) - math.exp(min(mu, 0.0)) if known else 0.0
        keep = moved <= 0.2 if a > 0 else moved >= -0.2
        total += -a * math.exp(delta) * keep + 1e-3 * max(delta, -CAP) ** 2
    return total / 97


def np_tba(case: Case) -> float:
    beta, total = 0.012, 0.0
    for part in case.rows:
        distance = (case.logp - case.reference)[part].sum()
        total += (distance - case.drift[part][0] - case.advantage[part][0] / beta) ** 2
    return beta / 2 * total / 97


REFERENCES = {
    "reinforce": np_reinforce,
    "dapo": np_dapo,
    "dr_grpo": np_dr_grpo,
    "decoupled": np_decoupled,
    "tis": np_tis,
    "icepop": np_icepop,
    "cispo": np_cispo,
    "gspo": np_gspo,
    "dppo": np_dppo,
    "tba": np_tba,
}
#: Where the value's own slope is the gradient: no weight in it is held constant.
PLAIN = ("reinforce", "dapo", "dr_grpo", "gspo", "dppo", "tba")


def run(name: str, case: Case) -> tuple[float, Floats]:
    """Loss and its gradient in log π."""
    tokens = case.tokens()
    loss, _ = LOSSES[name](tokens, BOUNDS, SIZE)
    (gradient,) = torch.autograd.grad(loss, tokens.logp)
    return float(loss.detach()), gradient.numpy()


def test_every_loss_has_a_reference_here_and_a_line_in_the_list() -> None:
    assert set(LOSSES) == set(REFERENCES) == set(LOSS_CHOICES) == set(get_args(LossName))
    assert set(ADVANTAGES) == set(ADVANTAGE_CHOICES) == set(get_args(AdvantageName))
    for choice in (*LOSS_CHOICES.values(), *ADVANTAGE_CHOICES.values()):
        assert choice.source
        assert "\n" not in choice.summary


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [0.001, 0.8, 3.0])
@pytest.mark.parametrize("name", REFERENCES)
def test_value_against_an_independent_reference(name: str, seed: int, spread: float) -> None:
    case = random_case(seed, spread)
    assert run(name, case)[0] == pytest.approx(REFERENCES[name](case), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("spread", [0.0005, 0.8])
@pytest.mark.parametrize("name", PLAIN)
def test_gradient_against_finite_differences(name: str, spread: float) -> None:
    case = random_case(11, spread)
    # An unmeasured ratio is 1 by value and not by slope: its gradient has a test of its own.
    case.measured[:] = True
    _, gradient = run(name, case)
    step = 1e-6
    for index in range(len(case.logp)):
        up, down = case.logp.copy(), case.logp.copy()
        up[index] += step
        down[index] -= step
        values = [REFERENCES[name](replace(case, logp=logp)) for logp in (up, down)]
        slope = (values[0] - values[1]) / (2 * step)
        assert gradient[index] == pytest.approx(slope, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("name", [name for name in REFERENCES if name != "tba"])
def test_where_nobody_measured_the_gradient_is_minus_the_advantage(name: str) -> None:
    case = random_case(3)
    case.measured[:] = False
    _, gradient = run(name, case)
    expected = -case.advantage / 97
    if name == "dr_grpo":
        expected = -case.advantage / (13 * 19)
    if name == "gspo":
        lengths = np.concatenate([np.full(p.stop - p.start, p.stop - p.start) for p in case.rows])
        expected = -case.advantage / lengths / 13
    np.testing.assert_allclose(gradient, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "weigh"),
    [
        ("tis", lambda r: np.minimum(r, 2.0)),
        ("icepop", lambda r: np.where((r >= 0.5) & (r < 5.0 - 1e-9), r, 0.0)),
        ("cispo", lambda r: np.minimum(r, 5.0)),
    ],
)
def test_the_weight_is_held_constant(name: str, weigh: Callable[[Floats], Floats]) -> None:
    case = random_case(5, 2.0)
    _, gradient = run(name, case)
    np.testing.assert_allclose(
        gradient, -weigh(np.exp(case.deltas())) * case.advantage / 97, rtol=1e-9, atol=1e-15
    )


def test_cispo_keeps_a_gradient_where_clipping_the_update_would_not() -> None:
    case = random_case(5)
    case.measured[:] = True
    case.advantage = np.abs(case.advantage) + 0.1
    case.behaviour = case.logp - 1.0
    assert not run("dapo", case)[1].any()
    assert run("cispo", case)[1].all()


def test_decoupled_holds_the_proximal_weight_constant() -> None:
    case = random_case(6)
    case.measured[:] = True
    case.behind[:] = 4
    case.behaviour = case.logp - 0.4  # π_p is 0.3 above μ, and r = e^0.1 inside the clip
    _, gradient = run("decoupled", case)
    np.testing.assert_allclose(gradient, -case.advantage * math.exp(0.4) / 97, rtol=1e-9)
    case.behind[:] = 1  # π_p is μ: r = e^0.4 is outside of it where A > 0
    _, gradient = run("decoupled", case)
    np.testing.assert_array_equal(gradient != 0, case.advantage < 0)


def test_a_zero_lag_makes_decoupled_plain_ppo() -> None:
    case = random_case(7)
    for behind in (0, 1):
        case.behind[:] = behind
        plain = sum(
            clipped_token(a, math.exp(d), 0.2, 0.2)
            for a, d in zip(case.advantage, case.deltas(), strict=True)
        )
        assert run("decoupled", case)[0] == pytest.approx(plain / 97, rel=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("name", "low", "high"), [("dapo", 0.2, 0.28), ("decoupled", 0.2, 0.2), ("gspo", 3e-4, 4e-4)]
)
def test_a_token_counts_as_clipped_exactly_where_its_gradient_is_gone(
    name: str, low: float, high: float, sign: float
) -> None:
    """Around the bound in steps that `exp` hardly resolves, and at the bound itself."""
    bound = 1.0 + high if sign > 0 else 1.0 - low
    deltas = math.log(bound) + np.arange(-40, 41) * 2.0**-56
    n = len(deltas)
    tokens = Case(
        logp=np.zeros(n),
        behaviour=-deltas,
        measured=np.ones(n, np.bool_),
        advantage=np.full(n, sign),
        behind=np.ones(n, np.int64),
        reference=np.zeros(n),
        drift=np.zeros(n),
        rows=[slice(place, place + 1) for place in range(n)],
    ).tokens()
    assert (torch.tensor(deltas).exp() == bound).any()
    loss, sums = LOSSES[name](tokens, BOUNDS, SIZE)
    (gradient,) = torch.autograd.grad(loss, tokens.logp)
    assert sums.clipped_tokens == (gradient == 0).sum()
    assert 0 < sums.clipped_tokens < n


def test_gspo_moves_all_tokens_of_an_answer_alike() -> None:
    case = random_case(8, 1e-5)
    _, gradient = run("gspo", case)
    for part in case.rows:
        assert np.ptp(gradient[part]) < 1e-9
        assert gradient[part][0] * case.advantage[part][0] < 0


def test_trajectory_balance_has_the_gradient_of_its_published_form() -> None:
    """Written as in the paper, with log Z from a group of whole trajectories, against autograd."""
    case = random_case(9)
    rng = np.random.default_rng(9)
    rewards = rng.random(len(case.rows))
    distance = np.array([(case.logp - case.reference)[part].sum() for part in case.rows])
    log_z = np.mean(-distance + rewards / TBA_BETA)

    def published(logp: Floats) -> float:
        moved = np.array([(logp - case.reference)[part].sum() for part in case.rows])
        return float(np.mean((log_z + moved - rewards / TBA_BETA) ** 2))

    for part, reward in zip(case.rows, rewards, strict=True):
        case.advantage[part] = reward - rewards.mean()
        case.drift[part] = distance.mean()
    value, gradient = run("tba", case)
    scale = TBA_BETA / 2 * len(case.rows) / 97
    assert value == pytest.approx(published(case.logp) * scale, rel=1e-9)
    # −(2/β)·mean[(R̃ − mean R̃)·∇log π] with R̃ = R − β·log(π/π_ref)
    shaped = rewards - TBA_BETA * distance
    identity = np.concatenate(
        [
            np.full(part.stop - part.start, -(2 / TBA_BETA) * (s - shaped.mean()))
            for part, s in zip(case.rows, shaped, strict=True)
        ]
    ) / len(case.rows)
    np.testing.assert_allclose(gradient, identity * scale, rtol=1e-9)
    step = 1e-5
    for index in range(0, len(case.logp), 3):
        up, down = case.logp.copy(), case.logp.copy()
        up[index] += step
        down[index] -= step
        slope = (published(up) - published(down)) / (2 * step)
        assert identity[index] == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_add_up(name: str) -> None:
    case = random_case(12)
    whole, gradient = run(name, case)
    cut = case.rows[4].start
    halves = []
    for kept, rows in ((slice(0, cut), case.rows[:4]), (slice(cut, None), case.rows[4:])):
        tokens = [getattr(case, each.name)[kept] for each in fields(Case) if each.name != "rows"]
        start = rows[0].start
        moved = [slice(part.start - start, part.stop - start) for part in rows]
        halves.append(run(name, Case(*tokens, moved)))
    assert halves[0][0] + halves[1][0] == pytest.approx(whole)
    np.testing.assert_allclose(np.concatenate([half[1] for half in halves]), gradient)


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_left_is_a_loss_of_zero(name: str) -> None:
    tokens = random_case(1).tokens()
    none = tokens.select(torch.zeros_like(tokens.is_measured))
    loss, sums = LOSSES[name](none, BOUNDS, SIZE)
    (gradient,) = torch.autograd.grad(loss, tokens.logp)
    assert float(loss.detach()) == 0.0
    assert not gradient.any()
    assert sums.measured_tokens == 0
