"""Hashes the parts that name a task to its seed, so that no two streams of tasks overlap.

reasoning-gym draws item i of a dataset from Random(seed + i). Nodes that used seeds 1, 2, 3 … would
sample shifted copies of one stream. Hashed 61-bit seeds collide only by chance.
"""

from __future__ import annotations

import hashlib

from swarm_node.rollout import HELD_OUT_SEED, SEED_LIMIT


def task_seed(*parts: str | int | bytes) -> int:
    """A training seed in [0, HELD_OUT_SEED) that depends on every part and on their order."""
    return _hash_parts(b"swarm-node/task-seed/1", parts) % HELD_OUT_SEED


def held_out_seed(*parts: str | int | bytes) -> int:
    """An evaluation seed in [HELD_OUT_SEED, SEED_LIMIT), where no training seed lies."""
    return HELD_OUT_SEED + _hash_parts(b"swarm-node/held-out-seed/1", parts) % (
        SEED_LIMIT - HELD_OUT_SEED
    )


def _hash_parts(domain: bytes, parts: tuple[str | int | bytes, ...]) -> int:
    digest = hashlib.sha256(domain)
    for part in parts:
        tag, raw = _encode_part(part)
        # Tag and length keep ("ab", "c"), ("a", "bc") and ("1", 1) apart.
        digest.update(tag + len(raw).to_bytes(8, "big") + raw)
    return int.from_bytes(digest.digest()[:16], "big")


def _encode_part(part: str | int | bytes) -> tuple[bytes, bytes]:
    match part:
        case bytes():
            return b"b", part
        case str():
            return b"s", part.encode()
        case int():
            return b"i", str(int(part)).encode()
