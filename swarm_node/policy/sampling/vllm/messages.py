"""Messages between the sampler and the engine's process; imports nothing of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from swarm_node.policy.sampling.sampler import Row, SampleRequest, continued_seed
from swarm_node.rollout import Ranking


class StartEngine(msgspec.Struct, frozen=True, tag="Start"):
    """Start the engine with these arguments and arbitrary weights. `heads` are the head sizes of
    the trainer's model and of the engine's; a row ends with one of `stop_ids`."""

    arguments: dict[str, Any]
    heads: tuple[int, int]
    scratch: str
    stop_ids: list[int]


class Load(msgspec.Struct, frozen=True, tag=True):
    """Take the weights in the file `path`, or the LoRA adapter in the directory `path` on top of
    the newest weights. Then measure the log-probs of the tokens `canary`.

    No sample is answered until a measurement came within `tolerance` of `expected`. Without a
    canary the next load must prove these weights too."""

    path: str
    is_adapter: bool
    version: int
    canary: list[int]
    expected: list[float]
    tolerance: float


class Rest(msgspec.Struct, frozen=True, tag=True):
    """Give back the device's memory until the next load; `level` is vLLM's sleep level."""

    level: int


class RowStart(msgspec.Struct, frozen=True):
    """A row to complete, with at most `room` tokens after those in `begun` (u32 bytes)."""

    seed: int
    room: int
    begun: bytes


class Sample(msgspec.Struct, frozen=True, tag=True):
    """Complete every row of one prompt. If cut, the answer has the tokens so far. Rows of a higher
    `priority` come later. The rest is as in `SampleRequest`."""

    prompt: list[int]
    temperature: float
    rows: list[RowStart]
    priority: int = 0
    top_p: float = 1.0
    ranked: int | None = None


class Count(msgspec.Struct, frozen=True, tag=True):
    """Read the counters."""


class EngineStarted(msgspec.Struct, frozen=True, tag="Started"):
    """The reply to `StartEngine`. For an engine that shares the trainer's base: bytes of weights
    that are the trainer's memory, and of those that the engine has copies of."""

    shared: int
    copied: int


class Rested(msgspec.Struct, frozen=True, tag="Done"):
    """The reply to `Rest`."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The measured log-probs of the canary's tokens after the first; none where old keys and values
    may remain. `paused` are the seconds without generation."""

    measured: list[float]
    paused: float


class RowEnd(msgspec.Struct, frozen=True):
    """The new tokens of a row (u32 bytes) and their log-probs (f32 bytes), spans of them as
    (version, start, end), and vLLM's reason for the end. `ranking` has the bytes of a `Ranking`, if
    it was requested."""

    ids: bytes
    logprobs: bytes
    spans: list[tuple[int, int, int]]
    finish: str
    ranking: tuple[bytes, bytes, bytes] | None = None


class SampledRows(msgspec.Struct, frozen=True, tag="Sampled"):
    """The rows, in the order of the request."""

    rows: list[RowEnd]


class Counted(msgspec.Struct, frozen=True, tag=True):
    """Tokens so far, rows that are `unfinished` now, and `core`, the process that computes."""

    core: int
    unfinished: int
    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int


Request = StartEngine | Load | Rest | Sample | Count
Reply = EngineStarted | Rested | Loaded | SampledRows | Counted


def remaining_request(request: SampleRequest, rows: Sequence[Row]) -> tuple[Sample, list[int]]:
    """The request for the rest of those `rows` that have not ended, and their places among all."""
    places = [place for place, row in enumerate(rows) if row.finish is None]
    starts = [
        RowStart(
            seed=continued_seed(request.seed, place, len(rows[place].token_ids)),
            room=request.max_new_tokens - len(rows[place].token_ids),
            begun=rows[place].token_ids.tobytes(),
        )
        for place in places
    ]
    message = Sample(
        *(list(request.prompt_ids), request.temperature, starts, int(request.guest)),
        top_p=request.top_p,
        ranked=request.top_logprobs,
    )
    return message, places


def ranking_of(end: RowEnd) -> Ranking | None:
    """The row's `Ranking`."""
    if end.ranking is None:
        return None
    sampled_bytes, ids, logprobs = end.ranking
    shape = (len(sampled_bytes) // 4, -1) if sampled_bytes else (0, 0)
    return Ranking(
        np.frombuffer(sampled_bytes, np.float32),
        np.frombuffer(ids, np.uint32).reshape(shape),
        np.frombuffer(logprobs, np.float32).reshape(shape),
    )
