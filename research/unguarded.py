"""Takes guards out of all nodes of a simulation, to measure the worth of each. No setting does
this."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from swarm_node.node.loops.learning import learner
from swarm_node.p2p.exchange import verify
from swarm_node.p2p.limits import gates
from swarm_node.policy.experience.batch import Batch, build_batch
from swarm_node.policy.training.update import gradient

GUARDS = ("likelihood", "size", "content")


@contextlib.contextmanager
def without(guards: Sequence[str]) -> Iterator[None]:
    """Run a context in which no node has these of GUARDS."""
    original_values: list[tuple[Any, str, Any]] = []
    try:
        for guard in guards:
            for place, name, substitute in _SUBSTITUTES[guard]:
                original_values.append((place, name, getattr(place, name)))
                setattr(place, name, substitute)
        yield
    finally:
        for place, name, original in reversed(original_values):
            setattr(place, name, original)


def _all_likely(logp: Any, *_: object) -> tuple[torch.Tensor, list[int]]:
    return torch.ones(len(logp), dtype=torch.bool), []


def _unclipped(*arguments: Any) -> Batch:
    build: Any = build_batch
    return build(*arguments[:-1], 64)  # type: ignore[no-any-return]


def _nothing(*_: object) -> Any:
    return None


_SUBSTITUTES: dict[str, Sequence[tuple[Any, str, Any]]] = {
    "likelihood": [(gradient, "likely_tokens", _all_likely)],
    "size": [
        (gates, "LARGER", 64),
        (gates, "LONGER", 1 << 20),
        (learner, "build_batch", _unclipped),
    ],
    "content": [
        (verify.GroupVerifier, "refuse_known", _nothing),
        (verify, "digests", lambda *_: ()),
    ],
}
