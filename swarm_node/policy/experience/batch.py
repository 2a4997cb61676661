"""From verified groups to training rows. Pure.

Provenance decides the off-policy correction of a row. An own row carries the log-probs of our
sampler. A peer's row is treated as `Correction` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from swarm_node.policy.choices import AdvantageName
from swarm_node.policy.experience.advantage import ADVANTAGES, EQUAL_WITHIN, broad
from swarm_node.rollout import Completion, Finish, Provenance, VerifiedGroup

#: Correction of peers' rows. "positive": rows with an advantage above zero, as if our policy
#: had sampled them (ratio 1). "own": all rows, as if our policy had sampled them, as SAPO publishes
#: it (arXiv 2509.08721). "sampler": all rows; kin rows have importance weights from the log-probs
#: that their author states, which the trainer checks and the loss truncates. Lowering the
#: probability of answers that our policy hardly gives has no bound: it makes "own" forget
#: (docs/research/benchmarks.md).
Correction = Literal["positive", "own", "sampler"]
Encode = Callable[[str], Sequence[int]]

_OWN = Provenance.OWN
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class TrainRow:
    """One completion to train on: `prompt_ids` u32[P] and `completion_ids` u32[T] with P, T ≥ 1.

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

    def __len__(self) -> int:
        """Tokens of prompt and completion together."""
        return int(self.prompt_ids.size + self.completion_ids.size)

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
    correction: Correction = "positive",
    advantage: AdvantageName = "grpo",
    other_rewards: Sequence[Sequence[float]] = (),
    group_size: int = 64,
) -> Batch:
    """The training rows of `groups`. `advantage` is computed from rewards found here, and never
    from claimed ones. `other_rewards` has an entry for each group, the rewards of other groups of
    its task, which its baseline includes; when empty, every group is its own baseline. An advantage
    in a peer's group is at most what a group of `group_size` can give, √(G − 1). A larger group's
    are scaled down, so that it weighs as much as one of `group_size`.

    `encode_answer` tokenises foreign text; `eos_id` follows an answer that stopped by itself. A
    completion without tokens is left out, but its reward counts in its group.

    Raises:
        ValueError: a prompt has no tokens, or a log-prob or reward is not finite. Peers' groups of
            that kind were refused at verification.
    """
    rows: list[TrainRow] = []
    for number, verified in enumerate(groups):
        prompt_ids = np.asarray(encode_prompt(verified.prompt), dtype=np.uint32)
        others = other_rewards[number] if other_rewards else ()
        most = math.inf if verified.provenance is _OWN else math.sqrt(group_size - 1)
        advantages = broad(ADVANTAGES[advantage], verified.rewards, others).clip(-most, most)
        if verified.provenance is not _OWN:  # however many its answers, it weighs as an own group
            advantages *= min(1.0, group_size / len(verified.rewards))
        for completion, value in zip(verified.group.completions, advantages.tolist(), strict=True):
            if value < 0 and correction == "positive" and verified.provenance is not _OWN:
                continue
            if verified.provenance is Provenance.FOREIGN:
                ids = _retokenised(completion, encode_answer, eos_id)
            else:
                ids = np.ascontiguousarray(completion.token_ids, dtype=np.uint32)
            if ids.size == 0:
                continue
            logprobs = _behaviour(completion, verified.provenance, correction)
            own = verified.provenance is _OWN
            versions = _versions(completion, verified.group.policy.version) if own else None
            rows.append(
                TrainRow(prompt_ids, ids, logprobs, value, verified.provenance, versions, number)
            )
    return Batch(tuple(rows))


def _retokenised(completion: Completion, encode: Encode, eos_id: int) -> NDArray[np.uint32]:
    ids = list(encode(completion.text))
    if completion.finish is Finish.STOP:
        ids.append(eos_id)
    return np.asarray(ids, dtype=np.uint32)


def _behaviour(
    completion: Completion, provenance: Provenance, correction: Correction
) -> NDArray[np.float32] | None:
    measured = provenance is Provenance.OWN or (
        provenance is Provenance.KIN and correction == "sampler"
    )
    return np.ascontiguousarray(completion.logprobs, dtype=np.float32) if measured else None


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
            }
            for row in batch.rows
        ]
    }


def unpack_batch(packed: Mapping[str, Any]) -> Batch:
    """The inverse of `pack_batch`, bit for bit.

    Raises:
        ValueError: a key is missing or unknown, or a value has the wrong type or length.
    """
    rows = packed.get("rows")
    if set(packed) != {"rows"} or not isinstance(rows, list):
        raise ValueError("a packed batch holds exactly a list of rows")
    return Batch(tuple(_unpack_row(row) for row in rows))


def _unpack_row(packed: object) -> TrainRow:
    names = {"prompt", "completion", "logprobs", "advantage", "provenance", "versions", "group"}
    if not isinstance(packed, dict) or set(packed) != names:
        raise ValueError(f"a packed row holds exactly {sorted(names)}")
    advantage, group = packed["advantage"], packed["group"]
    if not isinstance(advantage, float) or not isinstance(group, int):
        raise ValueError("a packed advantage must be a float, a packed group an integer")
    logprobs, versions = packed["logprobs"], packed["versions"]
    return TrainRow(
        _array(packed["prompt"], "<u4").astype(np.uint32),
        _array(packed["completion"], "<u4").astype(np.uint32),
        None if logprobs is None else _array(logprobs, "<f4").astype(np.float32),
        advantage,
        Provenance(packed["provenance"]),
        None if versions is None else _array(versions, "<i8").astype(np.int64),
        group,
    )


def _array(raw: object, dtype: str) -> NDArray[Any]:
    size = np.dtype(dtype).itemsize
    if not isinstance(raw, bytes) or len(raw) % size:
        raise ValueError(f"a packed array must be bytes, a multiple of {size}")
    return np.frombuffer(raw, dtype=dtype)
