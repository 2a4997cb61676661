"""The check that this node's policy could have given a peer's answer itself.

An answer is scored by its end, so a peer can put any words before a right answer and have them
reinforced: after a hundred updates a node says them too, and its reward rises meanwhile (arXiv
2511.09780). The node's own policy tells such words apart, because it would hardly say them. So the
log-probs that the update computes anyway are compared with those of own answers: over the whole
answer, and over its least likely windows, since a few odd tokens vanish in a long mean.

An answer that is less likely than nearly all own ones may be a discovery. It is taken, as long as
it is not `MARGIN` nats a token below them. An honest peer may begin a right answer oddly now and
then: such a row is left out, and only a group most of whose good rows are odd counts against its
author (`mostly_unlikely`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from swarm_node.policy.experience.batch import TrainRow
from swarm_node.rollout import Provenance

#: Tokens of the windows that are compared, besides the whole answer.
WINDOWS = (1, 2, 4)
#: Nats a token below the quantile of own answers, at a temperature of 1. A temperature divides the
#: logits, and so their differences.
MARGIN = 2.0
QUANTILE = 0.01
#: Own answers that are remembered. Fewer than the least have no such quantile: then an answer may
#: also be as unlikely as the quantile of a fresh model at a temperature of 1
#: (docs/research/appendix.md, Attackers).
_MOST, _LEAST = 1024, 100
_FRESH = (-3.0, -7.5, -4.2, -3.2)


def least_likely(logp: NDArray[np.float32], starts: Sequence[int] = ()) -> tuple[float, ...]:
    """The mean log-prob of an answer f32[T], and those of its least likely windows, in nats a
    token. A window longer than the answer is the answer. The turns of a multi-turn rollout begin at
    `starts`; no window lies in two of them, or an odd end of one would hide in the likely start of
    the next."""
    sums = np.concatenate([[0.0], np.cumsum(logp, dtype=np.float64)])
    lows = [sums[-1] / logp.size]
    for window in WINDOWS:
        lows.append(
            min(_lowest(sums[a : b + 1], window) for a, b in pairwise([0, *starts, logp.size]))
        )
    return tuple(map(float, lows))


def _least_likely_of(answers: Sequence[NDArray[np.float32]]) -> list[tuple[float, ...]]:
    """`least_likely` of answers of one turn, to the last bit, in a third of the time."""
    sizes = np.array([answer.size for answer in answers])
    sums = np.zeros((sizes.size, sizes.max() + 1))
    for row, answer in zip(sums, answers, strict=True):
        np.cumsum(answer, dtype=np.float64, out=row[1 : answer.size + 1])
    lows = [sums[np.arange(sizes.size), sizes] / sizes]
    for window in WINDOWS:
        width = np.minimum(window, sizes)
        starts = np.arange(sums.shape[1])
        ends = np.minimum(starts + width[:, None], sizes[:, None])
        windows = np.take_along_axis(sums, ends, axis=1) - sums
        windows[starts + width[:, None] > sizes[:, None]] = np.inf
        lows.append(windows.min(axis=1) / width)
    return list(map(tuple, np.stack(lows, axis=1).tolist()))


def _lowest(sums: NDArray[np.float64], window: int) -> float:
    """The mean of the least likely window of a turn whose log-probs have these running sums."""
    size = min(window, sums.size - 1)
    return float((sums[size:] - sums[:-size]).min() / size)


def _cuts(row: TrainRow) -> list[int]:
    return [at for at, _ in row.observations]


class OwnAnswers:
    """Likelihoods of the last own answers when they were sampled."""

    def __init__(self, data: bytes = b"") -> None:
        """
        Raises:
            ValueError: not what `to_bytes` returned.
        """
        if len(data) % (8 * len(_FRESH)) or len(data) > 8 * len(_FRESH) * _MOST:
            raise ValueError("the checkpoint's log-probs of own answers are damaged")
        lows = np.frombuffer(data, dtype="<f8").reshape(-1, len(_FRESH))
        if not np.isfinite(lows).all():
            raise ValueError("the checkpoint's log-probs of own answers are damaged")
        self._lows = deque((tuple(row) for row in lows.tolist()), maxlen=_MOST)

    def to_bytes(self) -> bytes:
        """The values for a checkpoint. A restart without them would fall back to a fresh model's
        floors."""
        return np.array(self._lows, dtype="<f8").tobytes()

    def note(self, rows: Sequence[TrainRow]) -> None:
        """Remember the own rows among `rows`, good and bad: the sampler measured their log-probs,
        so they cost nothing here."""
        local_rows = [row for row in rows if row.provenance is Provenance.LOCAL]
        scored_rows = [(row, row.logprobs) for row in local_rows if row.logprobs is not None]
        if any(row.observations for row, _ in scored_rows):
            self._lows.extend(least_likely(logp, _cuts(row)) for row, logp in scored_rows)
        elif scored_rows:
            self._lows.extend(_least_likely_of([logp for _, logp in scored_rows]))

    def floors(self, temperature: float) -> tuple[float, ...]:
        """The least values of `least_likely` that an answer of a peer may have."""
        lows = np.array(_FRESH) / temperature
        if self._lows:
            quantiles = np.quantile(self._lows, QUANTILE, axis=0)
            lows = quantiles if len(self._lows) >= _LEAST else np.minimum(quantiles, lows)
        return tuple(map(float, lows - MARGIN / temperature))


def likely_tokens(
    logp: NDArray[np.float32], rows: Sequence[TrainRow], floors: Sequence[float]
) -> tuple[Tensor, list[int]]:
    """Select the tokens of `rows` that may be trained on: bool[N], and the group of each row that
    may not. Left out are rows of peers with a positive advantage that are below one of `floors`.
    Foreign rows are checked too, so a peer gains nothing by naming another model in its group.
    `logp` f32[N] are the tokens' log-probs under this node's policy, row after row."""
    mask = torch.ones(len(logp), dtype=torch.bool)
    groups: list[int] = []
    end = 0
    for row in rows:
        begin, end = end, end + row.completion_ids.size
        if not _is_compared(row):
            continue
        lows = least_likely(logp[begin:end], _cuts(row))
        if any(low < floor for low, floor in zip(lows, floors, strict=True)):
            mask[begin:end] = False
            groups.append(row.group)
    return mask, groups


def mostly_unlikely(rows: Sequence[TrainRow], left_out: Sequence[int]) -> tuple[int, ...]:
    """The groups of peers with more than half of their good rows left out. `left_out` has the
    number of such rows of each group."""
    row_counts = Counter(row.group for row in rows if _is_compared(row))
    return tuple(group for group, count in enumerate(left_out) if 2 * count > row_counts[group])


def _is_compared(row: TrainRow) -> bool:
    return row.provenance is not Provenance.LOCAL and row.advantage > 0


def learnt(
    logp: NDArray[np.float32], rows: Sequence[TrainRow], mask: NDArray[np.bool_]
) -> list[float]:
    """The amount that each row teaches: its advantage times the mean probability, over its tokens,
    that this policy says something else. That is the length of its gradient in the logits, within a
    factor of √2. Rows outside `mask`, and those with a negative advantage, count 0, because
    such rows of peers are not trained on. The other arguments are those of `likely_tokens`."""
    values: list[float] = []
    end = 0
    for row in rows:
        begin, end = end, end + row.completion_ids.size
        complement = 1.0 - np.exp(logp[begin:end], dtype=np.float64)
        values.append(max(0.0, row.advantage) * float(complement.mean()) * bool(mask[begin]))
    return values
