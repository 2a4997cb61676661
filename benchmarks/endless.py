"""A model for benchmarks of engines, whose answers have the lengths that are asked for."""

from __future__ import annotations

from pathlib import Path

from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.text.codec import Codec, load_tokenizer


def endless(path: Path) -> tuple[CausalLM, Codec]:
    """The model in a directory, and a codec whose end token no answer holds: the one that starts a
    text, or, without, padding."""
    model, tokenizer = CausalLM.from_directory(path), load_tokenizer(path)
    never = tokenizer.pad_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return model, Codec(tokenizer, model.config.vocab_size, [never])
