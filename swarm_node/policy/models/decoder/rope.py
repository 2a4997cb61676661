"""Scaled rotary positions (RoPE, arXiv 2104.09864): what a `config.json` says of them. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from swarm_node.errors import ModelError

#: Fields of each type of scaling, by transformers' names.
_LINEAR = ("factor",)
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
SCALINGS: Mapping[str, tuple[str, ...]] = {"linear": _LINEAR, "llama3": _LLAMA3}
_SHOWN = 80
_MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Divides the angles of long wavelengths, so that a model reads texts longer than those of its
    first training. `linear` divides all by `factor` (arXiv 2306.15595). `llama3` (Llama 3.1,
    arXiv 2407.21783) keeps wavelengths below `original_max_position_embeddings` /
    `high_freq_factor`, divides those above … / `low_freq_factor`, and blends in between."""

    rope_type: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: float = 1.0

    def __post_init__(self) -> None:
        if self.rope_type == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ModelError("config.json: rope's high_freq_factor must exceed its low_freq_factor")

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> RopeScaling | None:
        """The scaling in the fields of a `config.json`, None for plain positions.

        Raises:
            ModelError: a type that is not computed here, or a value that is no positive number.
        """
        tables = [rope_table(raw, name) for name in ("rope_parameters", "rope_scaling")]
        scalings = {cls._from_table(table, raw) for table in tables if table}
        if len(scalings) > 1:
            raise ModelError("config.json: rope_parameters and rope_scaling differ")
        return next(iter(scalings), None)

    @classmethod
    def _from_table(cls, table: Mapping[str, Any], raw: Mapping[str, Any]) -> RopeScaling | None:
        kind = table.get("rope_type", table.get("type", "default"))
        if kind == "default":
            return None
        if not isinstance(kind, str) or kind not in SCALINGS:
            raise ModelError(
                f"config.json: rope scaling {repr(kind)[:_SHOWN]} is not supported",
                f"use a model with plain positions or {' or '.join(SCALINGS)}",
            )
        return cls(kind, **{name: _number(table, name, raw) for name in SCALINGS[kind]})

    def parameters(self) -> dict[str, Any]:
        """The fields of its type, by transformers' names."""
        fields = asdict(self)
        return {name: fields[name] for name in ("rope_type", *SCALINGS[self.rope_type])}

    def scale(self, frequency: float) -> float:
        """The angle by which a position turns a pair of dimensions, from that of plain positions;
        transformers' `_compute_llama3_parameters`."""
        if self.rope_type == "linear":
            return frequency / self.factor
        turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
        if turns > self.high_freq_factor:
            return frequency
        if turns < self.low_freq_factor:
            return frequency / self.factor
        smooth_factor = (turns - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        return (1 - smooth_factor) * frequency / self.factor + smooth_factor * frequency


def rope_table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object `name` of a `config.json`, empty if it has none.

    Raises:
        ModelError: it is no object, or says what no scaling here computes.
    """
    table = raw.get(name) or {}
    if not isinstance(table, dict):
        raise ModelError(f"config.json: {name} must be an object")
    if any(isinstance(value, dict) for value in table.values()):
        raise ModelError(f"config.json: {name} for each kind of layer is not supported")
    if table.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError("config.json: partial_rotary_factor is not supported")
    return table


def _number(parameters: Mapping[str, Any], name: str, raw: Mapping[str, Any]) -> float:
    value = parameters.get(name)
    if value is None and name == "original_max_position_embeddings":
        value = raw.get(name, raw.get("max_position_embeddings"))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
        raise ModelError(f"config.json: rope's {name} is {repr(value)[:_SHOWN]}")
    return float(value)
