"""Group-relative advantages. Pure.

A completion is compared with the other completions of the same task, so that no value model is
needed. `choices.py` describes each advantage in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from swarm_node.policy.choices import AdvantageName

#: Added to the standard deviation, so that nearly equal rewards do not give huge advantages.
STD_EPSILON = 1e-4
#: Rewards closer than this are equal; the same bound as `VerifiedGroup.informative`.
EQUAL_WITHIN = 1e-6

AdvantageFn = Callable[[ArrayLike], NDArray[np.float32]]


def grpo(rewards: ArrayLike) -> NDArray[np.float32]:
    """Advantages f32[G] of rewards f32[G]: (r − mean) / (std + 1e-4), population std (Shao et al.,
    "DeepSeekMath", arXiv 2402.03300, section 4.1).

    This and the other advantages are all zero when the rewards are equal within 1e-6: such a group
    has no gradient.

    Raises:
        ValueError: not one-dimensional, empty, or not finite.
    """
    values = _check_rewards(rewards)
    return _unless_equal(values, (values - values.mean()) / (values.std() + STD_EPSILON))


def dr_grpo(rewards: ArrayLike) -> NDArray[np.float32]:
    """Advantages f32[G] of rewards f32[G]: r − mean (Liu et al., arXiv 2503.20783). Dividing by the
    deviation would favour tasks that nearly always or hardly ever succeed.

    Raises:
        ValueError: not one-dimensional, empty, or not finite.
    """
    values = _check_rewards(rewards)
    return _unless_equal(values, values - values.mean())


def rloo(rewards: ArrayLike) -> NDArray[np.float32]:
    """Advantages f32[G] of rewards f32[G]: r − mean of the other rewards (Ahmadian et al., arXiv
    2402.14740), an unbiased baseline.

    Raises:
        ValueError: not one-dimensional, empty, or not finite.
    """
    values = _check_rewards(rewards)
    baseline = (values.sum() - values) / max(values.size - 1, 1)
    return _unless_equal(values, values - baseline)


def _check_rewards(rewards: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"rewards must be a non-empty vector, not of shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("rewards must be finite numbers")
    return values


def _unless_equal(
    values: NDArray[np.float64], advantages: NDArray[np.float64]
) -> NDArray[np.float32]:
    if values.max() - values.min() <= EQUAL_WITHIN:
        return np.zeros(values.shape, dtype=np.float32)
    return np.asarray(advantages, dtype=np.float32)


#: Every advantage by the name the settings use.
ADVANTAGES: Mapping[AdvantageName, AdvantageFn] = MappingProxyType(
    {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}
)
