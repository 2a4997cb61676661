"""The choices for `training.loss` and `training.advantage`, in one line each. No torch.

The formulas are in `losses.py` and `advantage.py`; tests check that the names agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

LossName = Literal[
    "reinforce",
    "dapo",
    "dr_grpo",
    "decoupled",
    "tis",
    "icepop",
    "cispo",
    "gspo",
    "dppo",
    "tba",
]
AdvantageName = Literal["grpo", "dr_grpo", "rloo"]


class Choice(NamedTuple):
    """A summary in one line, and the source."""

    summary: str
    source: str


LOSS_CHOICES: Mapping[LossName, Choice] = MappingProxyType(
    {
        "reinforce": Choice(
            "policy gradient without any correction for old samples",
            "Williams 1992, doi.org/10.1007/BF00992696",
        ),
        "dapo": Choice(
            "clipped ratio, more room upwards; mean over the batch's tokens",
            "arXiv 2503.14476 (GRPO: 2402.03300)",
        ),
        "dr_grpo": Choice(
            "as dapo, over rows x longest completion: no bias by length",
            "arXiv 2503.20783",
        ),
        "decoupled": Choice(
            "clips against a policy between the sampler's and now",
            "arXiv 2505.24298, proximal of 2512.06547",
        ),
        "tis": Choice(
            "policy gradient times the ratio, at most 2",
            "Yao et al. 2025, fengyao.notion.site/off-policy-rl",
        ),
        "icepop": Choice(
            "policy gradient times the ratio; nothing outside [0.5, 5]",
            "arXiv 2510.18855",
        ),
        "cispo": Choice(
            "policy gradient times the ratio, at most 5, on every token",
            "arXiv 2506.13585",
        ),
        "gspo": Choice(
            "one ratio per completion, a geometric mean, clipped tightly",
            "arXiv 2507.18071",
        ),
        "dppo": Choice(
            "drops tokens whose probability moved by more than 0.2",
            "arXiv 2602.04879, as in prime-rl",
        ),
        "tba": Choice(
            "trajectory balance: no sampler log-probs; near the base model",
            "arXiv 2503.18929",
        ),
    }
)

ADVANTAGE_CHOICES: Mapping[AdvantageName, Choice] = MappingProxyType(
    {
        "grpo": Choice("reward less the group's mean, over its deviation", "arXiv 2402.03300"),
        "dr_grpo": Choice(
            "reward less the group's mean",
            "arXiv 2503.20783",
        ),
        "rloo": Choice("reward less the mean of the group's other completions", "arXiv 2402.14740"),
    }
)
