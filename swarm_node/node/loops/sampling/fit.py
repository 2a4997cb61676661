"""What fits: groups that peers take, and multi-turn rollouts that the model can hold."""

from __future__ import annotations

from typing import Protocol

from swarm_node.config import Sampling
from swarm_node.errors import ConfigError
from swarm_node.p2p.limits.gates import longest_turn
from swarm_node.policy.experience.batch import build_batch
from swarm_node.policy.models.text.codec import Codec
from swarm_node.rollout import VerifiedGroup


class Talk(Protocol):
    """A part that knows the name of an environment, and the most turns of its multi-turn
    rollouts."""

    @property
    def name(self) -> str: ...

    @property
    def turns(self) -> int: ...


def check_groups(info: Talk, codec: Codec, sampling: Sampling) -> None:
    """Refuse groups that peers do not take, and multi-turn rollouts that the model cannot hold.

    Raises:
        ModelError: its chat template cannot be continued with a reply.
        ConfigError: all turns do not fit its positions, or a group that peers take.
    """
    turn_limit = longest_turn(sampling.group_size, info.turns)
    if sampling.max_new_tokens > turn_limit:
        of = "completions" if info.turns == 1 else f"rollouts of {info.turns} turns"
        raise ConfigError(
            f"sampling.max_new_tokens is {sampling.max_new_tokens}: groups of "
            f"{sampling.group_size} {of} of {info.name} can be larger than peers accept: at most "
            f"{turn_limit}, or fewer in a group (sampling.group_size)"
        )
    if info.turns == 1:
        return
    around = (info.turns - 1) * len(codec.bridge("")) + 1
    if not codec.fits((), info.turns * sampling.max_new_tokens + around):
        max_tokens = (codec.positions - around) // info.turns
        remedy = (
            f"at most {max_tokens}" if max_tokens > 0 else "a model with a longer context is needed"
        )
        raise ConfigError(
            f"sampling.max_new_tokens is {sampling.max_new_tokens}: {info.turns} turns of "
            f"{info.name} exceed the model's context length of {codec.positions}: {remedy}"
        )


def turns_fit(codec: Codec, group: VerifiedGroup) -> bool:
    """Check that every row of a peer's multi-turn rollouts fits the model's positions: the prompt,
    all turns in this model's tokens, and the observations between them."""
    batch = build_batch(
        [group],
        codec.encode_prompt,
        codec.encode_answer,
        codec.eos_id,
        correction="none",  # every row, whatever its reward
        bridge=codec.bridge,
    )
    return all(codec.fits((), len(row)) for row in batch.rows)
