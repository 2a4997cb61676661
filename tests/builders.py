"""Small verified groups, for every test that needs some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swarm_node.rollout import (
    Completion,
    Finish,
    PolicyRef,
    Provenance,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
    VersionSpan,
)


def completion(
    ids: Sequence[int], text: str = "x", finish: Finish = Finish.STOP, versions: Sequence[int] = ()
) -> Completion:
    """`versions` are those that sampled each token, 0 if none are given; log-probs −1, −2, …"""
    return Completion(
        text=text,
        token_ids=np.array(ids, np.uint32),
        logprobs=-np.arange(1, len(ids) + 1, dtype=np.float32),
        spans=tuple(VersionSpan(v, i, i + 1) for i, v in enumerate(versions or [0] * len(ids))),
        finish=finish,
    )


def verified(
    name: str | bytes = "g",
    author: str = "me",
    *,
    provenance: Provenance | None = None,
    rewards: Sequence[float] = (0.0, 1.0),
    completions: Sequence[Completion] | None = None,
    claimed: Sequence[float] | None = None,
    family: str = "f",
    seed: int = 0,
    arrived: int = 0,
    prompt: str = "q",
    policy: PolicyRef | None = None,
) -> VerifiedGroup:
    """A group of "me" is an own one, others' are kin. Its policy is the newest of its tokens."""
    if completions is None:
        completions = [completion([0])] * len(rewards)
    newest = max((span.version for each in completions for span in each.spans), default=0)
    if provenance is None:
        provenance = Provenance.OWN if author == "me" else Provenance.KIN
    return VerifiedGroup(
        id=name.encode() if isinstance(name, str) else name,
        author=author,
        provenance=provenance,
        group=RolloutGroup(
            task=TaskRef("e", "1", family, seed),
            policy=policy or PolicyRef(b"m" * 32, b"t" * 32, newest),
            completions=tuple(completions),
            claimed=tuple(rewards if claimed is None else claimed),
        ),
        prompt=prompt,
        rewards=tuple(rewards),
        arrived=arrived,
    )
