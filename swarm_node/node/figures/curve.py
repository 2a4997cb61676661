"""The curve of a node's evaluations, divided by the rule that holds texts out (the split). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from swarm_node.node.figures.snapshot import EvalPoint

#: The split of the points from before texts were held out.
BY_SEED = 0
OLD_GROUND = "old ground: held out by seed, texts occur in training"


def parted(evals: Sequence[EvalPoint]) -> tuple[list[EvalPoint], list[EvalPoint]]:
    """Return the points of earlier splits, and the newest points, which share one split. Rewards of
    different splits cannot be compared."""
    newest = len(evals)
    while newest > 0 and evals[newest - 1].split == evals[-1].split:
        newest -= 1
    return list(evals[:newest]), list(evals[newest:])


def current(evals: Sequence[EvalPoint]) -> EvalPoint | None:
    """Return the newest point, None if its tasks were held out by seed."""
    return evals[-1] if evals and evals[-1].split != BY_SEED else None
