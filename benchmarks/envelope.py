"""Cost of sealing and opening rollouts, next to the bare cryptography of the same bytes.

    python benchmarks/envelope.py [--seconds 3]

The baseline is one Ed25519 signature (or verification) over the bytes plus one sha256 of them, with
no encoding at all. Ours and the baseline take turns in short batches in the same run, so that a
busy machine slows both; printed are the medians over all turns, of the times and of the ratios
within a turn. "with body" adds building, or decoding and checking, the rollout itself.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from swarm_node.errors import Rejected
from swarm_node.p2p.wire.envelope import Kind, Opened, content_id, open_sealed, seal
from swarm_node.p2p.wire.groups import pack_group, unpack_group
from swarm_node.p2p.wire.identity import Identity
from swarm_node.rollout import (
    Completion,
    Finish,
    PolicyRef,
    RolloutGroup,
    TaskRef,
    VersionSpan,
)

SWARM = hashlib.sha256(b"benchmark").digest()
GOAL = 2.0
BATCH_SECONDS = 0.02


def group_of(size: int, rng: np.random.Generator) -> RolloutGroup:
    """Eight completions (two in a small group) whose body has about `size` bytes."""
    count = 8 if size > 4000 else 2
    # A token costs 8 bytes of ids and log-probs and about 4 characters of text.
    tokens = max(1, (size - 170 - 30 * count) // count // 12)
    completions = tuple(
        Completion(
            text="".join(rng.choice(list("abcdefgh 0123456789"), 4 * tokens)),
            token_ids=rng.integers(0, 150_000, tokens, dtype=np.uint32),
            logprobs=-rng.random(tokens, dtype=np.float32),
            spans=(VersionSpan(3, 0, tokens),),
            finish=Finish.STOP,
        )
        for _ in range(count)
    )
    task = TaskRef("drills", "1-2f8a", "alphabet", 7)
    policy = PolicyRef(bytes(32), bytes(32), 3)
    return RolloutGroup(task, policy, completions, (0.0,) * (count - 1) + (1.0,))


def compare(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Seconds per call of each of `runs`, one value per turn, for `seconds` in all."""
    batch: dict[str, int] = {}
    for name, run in runs.items():
        run()
        start = time.perf_counter()
        run()
        batch[name] = max(1, int(BATCH_SECONDS / (time.perf_counter() - start)))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(batch[name]):
                run()
            samples[name].append((time.perf_counter() - start) / batch[name])
    return samples


def measure(size: int, seconds: float) -> bool:
    """Print one size; whether both directions are within the goal."""
    identity = Identity.from_seed(bytes(32))
    public = Ed25519PublicKey.from_public_bytes(identity.public_key)
    group = group_of(size, np.random.default_rng(size))
    body = pack_group(group, epoch=1, seq=1, created_ms=0)
    sealed = seal(identity, SWARM, Kind.ROLLOUT, body)
    signature = identity.sign(sealed)

    def raw_sign() -> None:
        identity.sign(body)
        hashlib.sha256(body).digest()

    def raw_verify() -> None:
        public.verify(signature, sealed)
        hashlib.sha256(sealed).digest()

    def open_only() -> Opened:
        opened = open_sealed(sealed, SWARM, Kind.ROLLOUT)
        assert isinstance(opened, Opened)
        return opened

    def open_whole() -> None:
        assert not isinstance(unpack_group(open_only().body), Rejected)

    def seal_whole() -> None:
        packed = pack_group(group, epoch=1, seq=1, created_ms=0)
        content_id(seal(identity, SWARM, Kind.ROLLOUT, packed))

    took = compare(
        {
            "raw sign": raw_sign,
            "seal": lambda: content_id(seal(identity, SWARM, Kind.ROLLOUT, body)),
            "seal with body": seal_whole,
            "raw verify": raw_verify,
            "open": open_only,
            "open with body": open_whole,
        },
        seconds,
    )
    ratios = {
        name: statistics.median(a / b for a, b in zip(took[name], took[raw], strict=True))
        for name, raw in (("seal", "raw sign"), ("open", "raw verify"))
    }
    print(f"\nbody of {len(body):,} bytes, {len(group.completions)} completions")
    for name, values in took.items():
        value = statistics.median(values)
        ratio = f"   {ratios[name]:.2f} x raw" if name in ratios else ""
        print(f"  {name:<15}{value * 1e6:9.1f} us {1 / value:9,.0f}/s{ratio}")
    return all(ratio <= GOAL for ratio in ratios.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3.0, help="per size")
    seconds = parser.parse_args().seconds
    within = [measure(size, seconds) for size in (1_000, 20_000, 200_000)]
    print(f"\nwithin {GOAL:g} x of raw Ed25519 and sha256: {'yes' if all(within) else 'NO'}")


if __name__ == "__main__":
    main()
