"""The curve of a node's measurements, parted by the ground that they stand on. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from swarm_node.node.snapshot import EvalPoint

#: The split of the points from before texts were held out.
BY_SEED = 0
OLD_GROUND = "old ground: held out by seed, texts occur in training"


def parted(evals: Sequence[EvalPoint]) -> tuple[list[EvalPoint], list[EvalPoint]]:
    """The points before, and the newest ones, which share one split. Rewards of two splits do not
    compare."""
    newest = len(evals)
    while newest > 0 and evals[newest - 1].split == evals[-1].split:
        newest -= 1
    return list(evals[:newest]), list(evals[newest:])


def current(evals: Sequence[EvalPoint]) -> EvalPoint | None:
    """The newest point, None where it stands on the old ground."""
    return evals[-1] if evals and evals[-1].split != BY_SEED else None
