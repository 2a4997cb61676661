"""Group-relative advantages. Pure.

Shao et al., "DeepSeekMath" (arXiv 2402.03300), section 4.1: a completion is judged against the
other completions of the same task, so that no value model is needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Added to the standard deviation, so that a group of nearly equal rewards is not blown up.
STD_EPSILON = 1e-4
#: Rewards closer than this are equal; the same bound as `VerifiedGroup.informative`.
EQUAL_WITHIN = 1e-6


def group_advantages(rewards: ArrayLike) -> NDArray[np.float32]:
    """Advantages f32[G] of rewards f32[G]: (r − mean) / (std + 1e-4), population std.

    All zero when the rewards are equal within 1e-6: such a group says nothing about its policy.

    Raises:
        ValueError: not one-dimensional, empty, or not finite.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"rewards must be a non-empty vector, not of shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("rewards must be finite numbers")
    if values.max() - values.min() <= EQUAL_WITHIN:
        return np.zeros(values.shape, dtype=np.float32)
    scaled = (values - values.mean()) / (values.std() + STD_EPSILON)
    return np.asarray(scaled, dtype=np.float32)
