"""What an update did. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Result of one update.

    `version` is the policy's version after the update. `tokens` and `rows` count the training rows,
    those without advantage included. Of the rows, `informative` have an advantage. `refused` do not
    fit the model or its memory: they are too long, or have token ids outside its vocabulary.
    `implausible` have stated log-probs that were not believed. `too_long` has the numbers of peers'
    groups with refused rows, `unlikely` those of peers' groups of whose good rows more than half
    were left out (`plausible.mostly_unlikely`). `learnt` has, for each group up to the last
    informative one, the sum of what its rows teach (`plausible.learnt`).

    `clipped_share`, `mean_ratio`, `kl` (k3) and `mean_abs_delta` (of log-probs, in nats) are means
    over the tokens with a measured behaviour log-prob, and 0, 1, 0, 0 without such tokens.
    `entropy` is the policy's mean over all tokens of informative rows, in nats at the sampler's
    temperature.
    `grad_norm` is the norm before clipping. `seconds` are wall time. `halvings` counts how often
    the micro-batches were halved for lack of memory; `micro_batch_tokens` is their size after that.
    `skipped` says why the update was not applied; None if it was.
    """

    version: int
    loss: float
    grad_norm: float
    tokens: int
    rows: int
    informative: int
    refused: int
    implausible: int
    too_long: tuple[int, ...]
    unlikely: tuple[int, ...]
    learnt: tuple[float, ...]
    clip_ratio: float
    mean_ratio: float
    mismatch_kl: float
    mean_abs_delta: float
    entropy: float
    seconds: float
    halvings: int
    micro_batch_tokens: int
    skipped: str | None
