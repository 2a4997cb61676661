"""A canary: the trainer's log-probs of fixed tokens, stored in the file with the weights.

An engine may accept new weights and still compute with old ones, because of a packed copy, a stale
cache or a forgotten tied matrix. An engine that loaded a file proves it by computing the same
log-probs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from swarm_node.errors import ModelError

LENGTH = 32
_KEY = "canary"


@dataclass(frozen=True, slots=True)
class Canary:
    """`logprobs[i]` is log π(token_ids[i + 1] | token_ids[: i + 1]) at temperature 1."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.token_ids) - 1 or not self.logprobs:
            raise ValueError("a canary has one log-prob for each token but the first")
        if not all(map(math.isfinite, self.logprobs)):
            raise ValueError("a canary's log-probs are finite")

    def difference(self, measured: Sequence[float]) -> float:
        """Mean |Δ log-prob| to an engine's log-probs in nats; infinite if their number differs."""
        if len(measured) != len(self.logprobs):
            return math.inf
        delta = np.abs(np.asarray(measured) - np.asarray(self.logprobs)).mean()
        return float(delta) if np.isfinite(delta) else math.inf

    def to_metadata(self) -> dict[str, str]:
        """The canary as an entry of a safetensors header."""
        return {_KEY: json.dumps({"ids": self.token_ids, "logprobs": self.logprobs})}


def canary_ids(vocab_size: int, positions: int) -> tuple[int, ...]:
    """The fixed tokens: up to LENGTH of them, spread over the vocabulary."""
    digest = b"".join(hashlib.sha256(f"canary {n}".encode()).digest() for n in range(LENGTH // 8))
    drawn = np.frombuffer(digest, np.uint32)[: min(LENGTH, positions)]
    return tuple(int(value) % vocab_size for value in drawn)


def read_canary(weights: Path) -> Canary:
    """The canary of a safetensors file.

    Raises:
        ModelError: the file cannot be read or carries none.
    """
    try:
        with safe_open(weights, framework="np") as file:
            metadata = file.metadata() or {}
        stored = json.loads(metadata[_KEY])
        return Canary(tuple(map(int, stored["ids"])), tuple(map(float, stored["logprobs"])))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the weights in {weights}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{weights} carries no canary to check the engine by: publish it with one"
        ) from error
