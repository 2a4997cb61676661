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
from typing import Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from swarm_node.errors import ModelError, words_of

LENGTH = 32
#: A model gives ordinary text log-probs near zero, where rounding errors are small.
TEXT = (
    "The children walked along the river until they came to a small bridge. It was late in the "
    "afternoon, and the water below them was clear and cold after the long rain."
)
#: Measurements in a row that must be wrong before an engine is given up.
FAILURES = 2
#: From this |log-prob| on, rounding errors are taken to grow with it.
_PLAIN = 10.0
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

    def to_metadata(self) -> dict[str, str]:
        """The canary as an entry of a safetensors header."""
        return {_KEY: json.dumps({"ids": self.token_ids, "logprobs": self.logprobs})}


def difference(trainer_logps: Sequence[float], engine_logps: Sequence[float]) -> float:
    """Mean |Δ log-prob| in nats between the trainer's log-probs and an engine's. A token whose
    log-prob is below -10 counts in proportion less, because a half-precision engine rounds such
    log-probs more coarsely. Infinite if there are none, or their number differs."""
    if not trainer_logps or len(engine_logps) != len(trainer_logps):
        return math.inf
    references = np.asarray(trainer_logps)
    delta = np.abs(np.asarray(engine_logps) - references) / np.maximum(
        1.0, np.abs(references) / _PLAIN
    )
    return float(delta.mean()) if np.isfinite(delta).all() else math.inf


def verdict(
    differences: Sequence[float], tolerance: float
) -> Literal["taken", "load again", "restart"]:
    """Check a version by its measurements, of which the last is the newest: the engine has the
    weights, should load them again, or must be replaced."""
    if differences[-1] <= tolerance:
        return "taken"
    return "load again" if len(differences) < FAILURES else "restart"


def canary_ids(vocab_size: int, positions: int, text: Sequence[int] = ()) -> tuple[int, ...]:
    """The fixed tokens, LENGTH of them or `positions` if that is less: the start of `text`, or
    tokens spread over the vocabulary if there is not enough of it."""
    count = min(LENGTH, positions)
    if len(text) >= count and max(text) < vocab_size:
        return tuple(text[:count])
    values = np.frombuffer(hashlib.shake_256(b"canary").digest(4 * count), np.uint32)
    return tuple(int(value) % vocab_size for value in values)


def text_ids(model_dir: Path) -> tuple[int, ...]:
    """TEXT in the tokens of a model's directory; none without a tokenizer that can be read, because
    any tokens make a canary."""
    try:
        # Not transformers' tokenizer: importing it would cost the trainer seconds and memory.
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    except Exception:  # noqa: BLE001 - the Rust library raises no narrower type
        return ()
    return tuple(tokenizer.encode(TEXT, add_special_tokens=False).ids)


def read_canary(weights: Path) -> Canary:
    """The canary of a safetensors file.

    Raises:
        ModelError: the file cannot be read or carries none.
    """
    try:
        with safe_open(weights, framework="np") as file:
            metadata = file.metadata() or {}
        entry = json.loads(metadata[_KEY])
        return Canary(tuple(map(int, entry["ids"])), tuple(map(float, entry["logprobs"])))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the weights in {weights}: {words_of(error)}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{weights} carries no canary to check the engine by: publish it with one"
        ) from error
