"""The domain types that all other modules share. No I/O, no torch.

Nodes exchange a task as a reference, never as text: each node derives the prompt and the verifier
from it. The rewards that an author claims (`RolloutGroup.claimed`) and those that this node
computes (`VerifiedGroup.rewards`) are in different types on purpose: the trainer sees the latter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not at run time: every scoring worker and every command imports this module
    import numpy as np
    from numpy.typing import NDArray

#: Smaller seeds are for training, all others are held out for evaluation. A node refuses peers'
#: groups with a held-out seed, so that nobody can train the swarm on its evaluation tasks.
HELD_OUT_SEED = 1 << 61
#: Exclusive upper bound of every seed, so that it fits the signed 64-bit integer of any codec.
SEED_LIMIT = 1 << 62
#: Most turns of the policy in one multi-turn rollout.
MAX_TURNS = 16


class Finish(StrEnum):
    """Reason why sampling stopped: the end token was drawn, or the token budget ran out."""

    STOP = "stop"
    LENGTH = "length"


class Provenance(StrEnum):
    """The origin of a group, which decides how it is corrected for being off-policy."""

    LOCAL = "local"
    #: Another node, with the same base model and tokenizer: token ids and log-probs mean the same.
    SAME_MODEL = "same_model"
    #: Another tokenizer or model: only text and reward carry over.
    CROSS_MODEL = "cross_model"


@dataclass(frozen=True, slots=True, order=True)
class TaskRef:
    """Names one task: environment, its version (code and settings), family and seed."""

    environment: str
    version: str
    family: str
    seed: int

    @property
    def held_out(self) -> bool:
        return self.seed >= HELD_OUT_SEED


@dataclass(frozen=True, slots=True, order=True)
class PolicyRef:
    """Names the policy that wrote tokens. `model` and `tokenizer` are sha256 digests (32 bytes) of
    the base weights and of the tokenizer; `version` counts this node's updates."""

    model: bytes
    tokenizer: bytes
    version: int


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Policy `version` sampled the tokens [start, end) of a completion."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """A turn of the policy before its last one: its text, and the place among the completion's
    tokens where the turn ends. Its last token is an end token, or no observation could follow."""

    text: str
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Log-probs of the policy itself, at temperature 1 and over all tokens: `sampled_logprobs`
    f32[T] of the completion's tokens. At each of their places, `ids` u32[T, K] and `logprobs`
    f32[T, K] are the K likeliest tokens, the likeliest first."""

    sampled_logprobs: NDArray[np.float32]
    ids: NDArray[np.uint32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One answer, or all that the policy said in a multi-turn rollout. `token_ids` u32[T] are those
    that it sampled, and no other's; they include the end token when `finish` is STOP. `logprobs`
    f32[T] are natural logs under the sampling distribution (after temperature). `text` and `finish`
    are those of the last turn, and `earlier_turns` has the turns before it: none in an answer to
    one question. `ranking` is there if it was requested."""

    text: str
    token_ids: NDArray[np.uint32]
    logprobs: NDArray[np.float32]
    spans: tuple[VersionSpan, ...]
    finish: Finish
    earlier_turns: tuple[EarlierTurn, ...] = ()
    ranking: Ranking | None = None

    def __post_init__(self) -> None:
        if self.token_ids.shape != self.logprobs.shape or self.token_ids.ndim != 1:
            raise ValueError("token_ids and logprobs must be one-dimensional and of equal length")
        ends = self.ends
        if self.earlier_turns and any(b <= a for a, b in zip((0, *ends), ends, strict=False)):
            raise ValueError("every turn of a multi-turn rollout needs a token")
        if len(ends) > MAX_TURNS:
            raise ValueError(f"a rollout has at most {MAX_TURNS} turns")

    @property
    def turn_texts(self) -> tuple[str, ...]:
        """The texts of all turns."""
        return (*(turn.text for turn in self.earlier_turns), self.text)

    @property
    def ends(self) -> tuple[int, ...]:
        """The place where each turn ends among the tokens."""
        return (*(turn.end for turn in self.earlier_turns), self.token_ids.size)


@dataclass(frozen=True, slots=True, eq=False)
class RolloutGroup:
    """G completions of one task by one policy, as its author states it.

    `claimed` f32[G] are the author's rewards: a hint for statistics, never for training."""

    task: TaskRef
    policy: PolicyRef
    completions: tuple[Completion, ...]
    claimed: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.completions) != len(self.claimed) or not self.completions:
            raise ValueError("a group needs completions and as many claimed rewards")

    @property
    def oldest_version(self) -> int:
        """The oldest policy version that sampled a token; `policy.version` without tokens."""
        versions = (span.version for completion in self.completions for span in completion.spans)
        return min(versions, default=self.policy.version)

    @property
    def cut(self) -> int:
        """The number of completions whose last turn ran out of tokens."""
        return sum(completion.finish is Finish.LENGTH for completion in self.completions)


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedGroup:
    """A group after this node derived the task and scored every completion itself.

    `id` is the content id of the sealed bytes (34 bytes), `author` the peer id, and
    `arrival_version` this node's policy version when the group was admitted. Age is counted in this
    node's updates, so that no wall clock decides. `observations` are what the environment said in a
    multi-turn rollout, derived here: for each completion, one observation between every two turns.
    Answers to one question have none."""

    id: bytes
    author: str
    provenance: Provenance
    group: RolloutGroup
    prompt: str
    rewards: tuple[float, ...]
    arrival_version: int
    observations: tuple[tuple[str, ...], ...] = ()

    @property
    def informative(self) -> bool:
        """Check that its rewards differ, i.e. that its advantages are not all zero."""
        return max(self.rewards) - min(self.rewards) > 1e-6
