"""From verified groups to training rows. Pure.

Provenance decides the off-policy correction of a row. An own row carries the log-probs of our
sampler. A peer's row is treated as `Correction` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from swarm_node.policy.choices import AdvantageName
from swarm_node.policy.experience.advantage import ADVANTAGES, EQUAL_WITHIN
from swarm_node.rollout import Completion, Finish, Provenance, VerifiedGroup

#: Correction of peers' rows. "positive_only": rows with an advantage above zero, as if our policy
#: had sampled them (ratio 1). "none": all rows, as if our policy had sampled them, as in SAPO
#: (arXiv 2509.08721). "importance_sampling": all rows; same-model rows have importance weights from
#: the log-probs that their author states, which the trainer checks and the loss truncates.
#: Lowering the probability of answers that our policy hardly gives has no bound: it makes "none"
#: forget (docs/research/benchmarks.md).
Correction = Literal["positive_only", "none", "importance_sampling"]
Encode = Callable[[str], Sequence[int]]
#: Token ids that were not sampled, and the number of sampled tokens before them.
Given = tuple[int, tuple[int, ...]]

_OWN = Provenance.LOCAL
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_UINT32 = 1 << 32


def _reject_observation(observation: str) -> Sequence[int]:
    raise ValueError("a multi-turn rollout needs a bridge: see Codec.bridge")


@dataclass(frozen=True, slots=True, eq=False)
class TrainRow:
    """One completion to train on: `prompt_ids` u32[P] and `completion_ids` u32[T] with P, T ≥ 1.

    `completion_ids` are what a policy sampled, in all turns of a multi-turn rollout. What stands
    between two turns is in `observations`: the model reads it, and it is never trained on. So
    everything that counts or weighs tokens takes `completion_ids`, and only the model's input is
    `ids_after_prompt`.

    `logprobs` f32[T] are those of the policy that sampled the tokens. None stands for the current
    policy: the ratio is 1. `versions` i64[T] are the versions of our policy that sampled each
    token. They are None where a peer's policy did, because two nodes' versions do not compare. Rows
    of one task share the number `group`.

    Raises:
        ValueError: a shape or type is wrong, or a number is not finite.
    """

    prompt_ids: NDArray[np.uint32]
    completion_ids: NDArray[np.uint32]
    logprobs: NDArray[np.float32] | None
    advantage: float
    provenance: Provenance
    versions: NDArray[np.int64] | None = None
    group: int = 0
    observations: tuple[Given, ...] = ()

    def __post_init__(self) -> None:
        for name in ("prompt_ids", "completion_ids"):
            ids = getattr(self, name)
            if ids.ndim != 1 or ids.dtype != np.uint32 or ids.size == 0:
                raise ValueError(f"{name} must be a non-empty uint32 vector")
        if self.logprobs is not None:
            if self.logprobs.shape != self.completion_ids.shape:
                raise ValueError("logprobs must have one value per completion token")
            if self.logprobs.dtype != np.float32 or not np.isfinite(self.logprobs).all():
                raise ValueError("logprobs must be finite float32 values")
        if self.versions is not None and (
            self.versions.shape != self.completion_ids.shape or self.versions.dtype != np.int64
        ):
            raise ValueError("versions must have one int64 value per completion token")
        if not abs(self.advantage) <= _FLOAT32_MAX:  # written so that NaN fails it
            raise ValueError("the advantage must be finite, also as a float32")
        if self.observations:
            self._check_between()

    def _check_between(self) -> None:
        places = [0, *(at for at, _ in self.observations), self.completion_ids.size]
        if any(next_place <= at for at, next_place in pairwise(places)):
            raise ValueError("what is given between turns must stand between sampled tokens")
        if any(not 0 <= token < _UINT32 for _, ids in self.observations for token in ids):
            raise ValueError("what is given between turns must be uint32 values")

    def __len__(self) -> int:
        """Tokens of prompt and completion together, and of what stands between turns."""
        return int(self.prompt_ids.size) + self.answer_size

    @property
    def answer_size(self) -> int:
        """Tokens after the prompt, sampled and given."""
        return int(self.completion_ids.size) + sum(len(ids) for _, ids in self.observations)

    def ids_after_prompt(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """All ids after the prompt, and the place of each sampled one among them."""
        if not self.observations:
            return self.completion_ids, np.arange(self.completion_ids.size)
        parts: list[NDArray[np.uint32]] = []
        places: list[NDArray[np.int64]] = []
        start = offset = 0
        for at, ids in (*self.observations, (int(self.completion_ids.size), ())):
            parts += [self.completion_ids[start:at], np.asarray(ids, np.uint32)]
            places.append(np.arange(start, at) + offset)
            start, offset = at, offset + len(ids)
        return np.concatenate(parts), np.concatenate(places)

    @property
    def informative(self) -> bool:
        """Check that the row has a gradient."""
        return abs(self.advantage) > EQUAL_WITHIN


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The rows of one update. Rows without advantage are included. They cost no forward pass, but
    their tokens count in the normaliser, so that the step does not grow when most groups have no
    gradient."""

    rows: tuple[TrainRow, ...]


def build_batch(
    groups: Sequence[VerifiedGroup],
    encode_prompt: Encode,
    encode_answer: Encode,
    eos_id: int,
    correction: Correction = "positive_only",
    advantage: AdvantageName = "grpo",
    group_size: int = 64,
    bridge: Encode = _reject_observation,
) -> Batch:
    """The training rows of `groups`. `advantage` is computed from rewards found here, and never
    from claimed ones. An advantage in a peer's group is at most √(G − 1), the most that a group of
    `group_size` can give. The advantages of a larger group are scaled down, so that the group
    weighs as much as one of `group_size`.

    `encode_answer` tokenises foreign text; `eos_id` follows a turn that stopped by itself. `bridge`
    encodes an observation with what the model's template puts around it. A completion without
    tokens is left out, but its reward counts in its group.

    Raises:
        ValueError: a prompt has no tokens, a log-prob or reward is not finite, or a multi-turn
            rollout has not one observation between every two turns. Peers' groups of that kind were
            refused at verification.
    """
    rows: list[TrainRow] = []
    for number, group in enumerate(groups):
        prompt_ids = np.asarray(encode_prompt(group.prompt), dtype=np.uint32)
        limit = math.inf if group.provenance is _OWN else math.sqrt(group_size - 1)
        advantages = _advantages(advantage, group.rewards).clip(-limit, limit)
        if group.provenance is not _OWN:  # however many its answers, it weighs as an own group
            advantages *= min(1.0, group_size / len(group.rewards))
        completions = group.group.completions
        all_observations = group.observations or ((),) * len(completions)
        for completion, observations, value in zip(
            completions, all_observations, advantages.tolist(), strict=True
        ):
            if value < 0 and correction == "positive_only" and group.provenance is not _OWN:
                continue
            if group.provenance is Provenance.CROSS_MODEL:
                ids, ends = _retokenize(completion, encode_answer, eos_id)
            else:
                ids = np.ascontiguousarray(completion.token_ids, dtype=np.uint32)
                ends = completion.ends
            if ids.size == 0:
                continue
            insertions = _between(ends, observations, bridge)
            logprobs = _behaviour(completion, group.provenance, correction)
            is_local = group.provenance is _OWN
            versions = _versions(completion, group.group.policy.version) if is_local else None
            origin = group.provenance
            rows.append(
                TrainRow(prompt_ids, ids, logprobs, value, origin, versions, number, insertions)
            )
    return Batch(tuple(rows))


def _advantages(name: AdvantageName, rewards: Sequence[float]) -> NDArray[np.float32]:
    """The advantages of a group. One that nothing is learnt from is spared numpy's many calls."""
    if max(rewards) - min(rewards) <= EQUAL_WITHIN and math.isfinite(sum(rewards)):
        return np.zeros(len(rewards), np.float32)
    return ADVANTAGES[name](rewards)


def _between(ends: Sequence[int], observations: Sequence[str], bridge: Encode) -> tuple[Given, ...]:
    """The encoded observations. An observation that no token follows is left out: a foreign last
    turn that was cut may be an empty text."""
    return tuple(
        (end, tuple(bridge(observation)))
        for end, observation in zip(ends[:-1], observations, strict=True)
        if end < ends[-1]
    )


def _retokenize(
    completion: Completion, encode: Encode, eos_id: int
) -> tuple[NDArray[np.uint32], tuple[int, ...]]:
    """The ids of all turns in other tokens, and where each turn ends among them."""
    ids: list[int] = []
    ends: list[int] = []
    for turn in completion.earlier_turns:
        ids += [*encode(turn.text), eos_id]
        ends.append(len(ids))
    ids += encode(completion.text)
    if completion.finish is Finish.STOP:
        ids.append(eos_id)
    return np.asarray(ids, dtype=np.uint32), (*ends, len(ids))


def _behaviour(
    completion: Completion, provenance: Provenance, correction: Correction
) -> NDArray[np.float32] | None:
    has_logprobs = provenance is Provenance.LOCAL or (
        provenance is Provenance.SAME_MODEL and correction == "importance_sampling"
    )
    return np.ascontiguousarray(completion.logprobs, dtype=np.float32) if has_logprobs else None


def _versions(completion: Completion, default: int) -> NDArray[np.int64]:
    """i64[T]: the policy version that sampled each token."""
    versions = np.full(completion.token_ids.size, default, np.int64)
    for span in completion.spans:
        versions[span.start : span.end] = span.version
    return versions


def pack_batch(batch: Batch) -> dict[str, Any]:
    """A map that MessagePack can carry; arrays become little-endian bytes."""
    return {
        "rows": [
            {
                "prompt": row.prompt_ids.astype("<u4").tobytes(),
                "completion": row.completion_ids.astype("<u4").tobytes(),
                "logprobs": None if row.logprobs is None else row.logprobs.astype("<f4").tobytes(),
                "advantage": row.advantage,
                "provenance": row.provenance.value,
                "versions": None if row.versions is None else row.versions.astype("<i8").tobytes(),
                "group": row.group,
                "between": [[at, np.asarray(ids, "<u4").tobytes()] for at, ids in row.observations],
            }
            for row in batch.rows
        ]
    }


def unpack_batch(payload: Mapping[str, Any]) -> Batch:
    """The inverse of `pack_batch`, bit for bit.

    Raises:
        ValueError: a key is missing or unknown, or a value has the wrong type or length.
    """
    rows = payload.get("rows")
    if set(payload) != {"rows"} or not isinstance(rows, list):
        raise ValueError("a packed batch holds exactly a list of rows")
    return Batch(tuple(_unpack_row(row) for row in rows))


def _unpack_row(payload: object) -> TrainRow:
    names = {"prompt", "completion", "logprobs", "advantage", "provenance", "versions", "group"}
    names |= {"between"}
    if not isinstance(payload, dict) or set(payload) != names:
        raise ValueError(f"a packed row holds exactly {sorted(names)}")
    advantage, group = payload["advantage"], payload["group"]
    if not isinstance(advantage, float) or not isinstance(group, int):
        raise ValueError("a packed advantage must be a float, a packed group an integer")
    logprobs, versions = payload["logprobs"], payload["versions"]
    return TrainRow(
        _array(payload["prompt"], "<u4").astype(np.uint32),
        _array(payload["completion"], "<u4").astype(np.uint32),
        None if logprobs is None else _array(logprobs, "<f4").astype(np.float32),
        advantage,
        Provenance(payload["provenance"]),
        None if versions is None else _array(versions, "<i8").astype(np.int64),
        group,
        _unpack_between(payload["between"]),
    )


def _unpack_between(payload: object) -> tuple[Given, ...]:
    if not isinstance(payload, list):
        raise ValueError("what is packed between turns must be a list")
    insertions: list[Given] = []
    for item in payload:
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], int):
            raise ValueError("what is packed between turns must be pairs of a place and ids")
        insertions.append((item[0], tuple(_array(item[1], "<u4").tolist())))
    return tuple(insertions)


def _array(raw: object, dtype: str) -> NDArray[Any]:
    size = np.dtype(dtype).itemsize
    if not isinstance(raw, bytes) or len(raw) % size:
        raise ValueError(f"a packed array must be bytes, a multiple of {size}")
    return np.frombuffer(raw, dtype=dtype)
