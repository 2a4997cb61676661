"""Tasks and groups as a program gets them from a member (`swarm_node.member`)."""

from __future__ import annotations

from typing import Literal

import msgspec


class MemberTask(msgspec.Struct, frozen=True):
    """A task for the program to sample. `prompt` is its text, and `prompt_ids` are that text in
    the model's chat template, up to where a completion begins."""

    family: str
    seed: int
    prompt: str
    prompt_ids: tuple[int, ...]


class DrawnCompletion(msgspec.Struct, frozen=True):
    """One completion of a peer. This node computed `reward` (0 to 1). `token_ids` spell `text` in
    this node's tokens; an end token follows if the completion was `finished`. `logprobs` are those
    that a peer with the same model states for its tokens: nobody can check them. None for other
    models."""

    text: str
    token_ids: tuple[int, ...]
    reward: float
    finished: bool
    logprobs: tuple[float, ...] | None


class DrawnGroup(msgspec.Struct, frozen=True):
    """Completions of a peer for one task, with what this node derived from the task. `provenance`
    is "same_model" for a peer that trains the same model, else "cross_model". `age` counts the
    versions of this program's policy since the group arrived, `author` is a peer id."""

    family: str
    seed: int
    prompt: str
    prompt_ids: tuple[int, ...]
    completions: tuple[DrawnCompletion, ...]
    provenance: Literal["same_model", "cross_model"]
    age: int
    author: str


class PublishedGroup(msgspec.Struct, frozen=True):
    """A group that was signed and stored. `rewards` are the scoring worker's. It is `announced` to
    peers unless they could not learn from it: `reason` says why, and is "" otherwise."""

    texts: tuple[str, ...]
    rewards: tuple[float, ...]
    announced: bool
    reason: str
