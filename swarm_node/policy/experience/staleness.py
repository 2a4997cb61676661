"""How much a peer's group still counts as this node's policy moves on. Pure.

The author's version number means nothing here: two nodes' versions are not comparable, and nobody's
clock decides. So age is counted in this node's own updates since the group arrived. A weight that
falls with it is the smooth form of the bound on version lag in AReaL (arXiv 2505.24298); the bound
itself stays, as a hard end. Own groups are bounded by admission instead (`ReplayBuffer.own_room`).

The weight decides how likely a group is drawn, not how much it is learnt from once it is:
multiplied with the advantages it cost held-out reward (docs/mixture.md).
"""

from __future__ import annotations

import math


def staleness_weight(age: int, half_life: float, max_age: int) -> float:
    """2^(−age / half_life) in [0, 1]; 0 when `age` exceeds `max_age`. All in own updates.

    An age below 0 counts as 0: after a crash a node resumes from a checkpoint that is older than
    some groups it holds. A half-life of `math.inf` switches the fall off.

    Raises:
        ValueError: the half-life is not positive, or the greatest age is negative.
    """
    if not half_life > 0:  # written so that NaN fails it
        raise ValueError("half_life must be positive; use math.inf for no fall")
    if max_age < 0:
        raise ValueError("max_age must be 0 or more")
    if age > max_age:
        return 0.0
    return 1.0 if math.isinf(half_life) else math.exp2(-max(age, 0) / half_life)
