"""A completion while it is being sampled: it may be interrupted and go on later. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from swarm_node.rollout import Completion, Finish, VersionSpan


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Tokens so far, u32[T] and their log-probs f32[T], by which versions; `finish` is None while
    there are more to come."""

    token_ids: NDArray[np.uint32]
    logprobs: NDArray[np.float32]
    spans: tuple[VersionSpan, ...]
    finish: Finish | None

    @classmethod
    def empty(cls) -> Self:
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.float32), (), None)


def extended(
    row: Row,
    token_ids: NDArray[np.uint32],
    logprobs: NDArray[np.float32],
    spans: Sequence[Sequence[int]],
    finish: str,
) -> Row:
    """`row` with what an engine sampled after it. `spans` are (version, start, end) from the first
    new token on; `finish` is the engine's word: stop, length or abort.

    Raises:
        ValueError: the parts do not fit each other.
    """
    before, count = len(row.token_ids), len(token_ids)
    if len(logprobs) != count:
        raise ValueError("an engine must give one log-prob per token")
    joined = list(row.spans)
    reached = 0
    for version, start, end in spans:
        if start != reached or end < start:
            raise ValueError("version spans must tile the tokens")
        reached = end
        if end == start:
            continue
        if joined and joined[-1].version == version and joined[-1].end == before + start:
            joined[-1] = VersionSpan(version, joined[-1].start, before + end)
        else:
            joined.append(VersionSpan(version, before + start, before + end))
    if reached != count:
        raise ValueError("version spans must tile the tokens")
    return Row(
        np.concatenate([row.token_ids, token_ids]),
        np.concatenate([row.logprobs, logprobs]),
        tuple(joined),
        Finish(finish) if finish in tuple(Finish) else None,
    )


def finished(row: Row, decode: Callable[[list[int]], str]) -> Completion:
    """The completion of a row that ended; the end token, if one was drawn, is not part of the text.

    Raises:
        ValueError: it has not ended.
    """
    if row.finish is None:
        raise ValueError("the row has not ended")
    ids = row.token_ids.tolist()
    text = decode(ids[:-1] if row.finish is Finish.STOP else ids)
    return Completion(text, row.token_ids, row.logprobs, row.spans, row.finish)
