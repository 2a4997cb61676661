"""Feeds altered bytes to every reader of bytes of others, and looks for defects.

    PYTHONPATH=tests python -m campaigns.fuzz --inputs 10000000

A defect is an exception other than the reader's refusal, a signed statement that is accepted though
it was altered, over 50 ms of processor time, or over 32 MiB of memory for one input.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from campaigns.mutator import Mutator
from campaigns.targets import FuzzTarget, targets

MOST_SECONDS = 0.05
MOST_BYTES = 32 << 20
_BATCH = 500
#: Inputs for each large one.
_LARGE = 4000


@dataclass
class FuzzScore:
    """Figures of one target."""

    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    most_bytes: int = 0
    defects: Counter[str] = field(default_factory=Counter)
    examples: dict[str, bytes] = field(default_factory=dict)

    def defect(self, what: str, data: bytes) -> None:
        self.defects[what] += 1
        self.examples.setdefault(what, data)


def fuzz(target: FuzzTarget, count: int, seed: int) -> FuzzScore:
    """Give `target` `count` inputs."""
    mutator, score = Mutator(seed), FuzzScore()
    started = time.process_time()
    while score.inputs < count:
        batch = [_input(target, mutator) for _ in range(min(_BATCH, count - score.inputs))]
        peak = _peak()
        for data in batch:
            _feed(target, data, score)
        score.inputs += len(batch)
        grown = _peak() - peak > MOST_BYTES
        _weigh(target, [data for data in batch if grown or len(data) > 1 << 16], score)
    _weigh(target, batch[:20], score)
    score.seconds = time.process_time() - started
    return score


def _input(target: FuzzTarget, mutator: Mutator) -> bytes:
    rng = mutator.rng
    seed, other = rng.choice(target.seeds), rng.choice(target.seeds)
    if rng.random() < 1 / _LARGE:
        unit = rng.choice((b"\x91", b"\xc0", b"\x90", b"[", b"\x81\x01", b"\xa1a", bytes(8), seed))
        data = (seed[: int(rng.random() * 12)] + unit * ((1 << 22) // len(unit)))[: 1 << 22]
        return b"\xdd\x00\x3f\x00\x00" + data if rng.random() < 0.3 else data
    if target.structured and rng.random() < 0.6:
        data = mutator.structure(seed)
        return mutator.bytes(data, other) if rng.random() < 0.1 else data
    return mutator.bytes(seed, other)


def _feed(target: FuzzTarget, data: bytes, score: FuzzScore) -> None:
    sent = target.wrap(data)
    before = time.thread_time()
    try:
        accepted = target.run(sent)
    except Exception as error:  # noqa: BLE001 - every one is what this program looks for
        score.defect(f"{type(error).__name__}: {error}"[:120], data)
        return
    spent = time.thread_time() - before
    if spent > MOST_SECONDS:
        spent = min(spent, _again(target, sent))
        if spent > MOST_SECONDS:
            score.defect("slow", data)
    score.slowest = max(score.slowest, spent)
    if accepted:
        score.accepted += 1
        if target.signed and data not in target.seeds:
            score.defect("an altered statement is accepted", data)


def _again(target: FuzzTarget, data: bytes) -> float:
    """The least of three more times: a busy machine and a collection of garbage cost time, too."""
    times = []
    gc.disable()
    for _ in range(3):
        before = time.thread_time()
        target.run(data)
        times.append(time.thread_time() - before)
    gc.enable()
    return min(times)


def _weigh(target: FuzzTarget, batch: list[bytes], score: FuzzScore) -> None:
    """Measure the memory of each input, which takes ten times as long."""
    for data in batch:
        sent = target.wrap(data)
        tracemalloc.start()
        try:
            target.run(sent)
        except Exception:  # noqa: BLE001 - counted when it was fed
            continue
        finally:
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        score.most_bytes = max(score.most_bytes, most)
        if most > MOST_BYTES:
            score.defect("memory", data)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(inputs: int, seed: int, only: str = "") -> Iterator[tuple[str, FuzzScore]]:
    """Divide `inputs` among the targets; each has a seed of its own."""
    chosen = [target for target in targets() if only in target.name]
    total = sum(target.weight for target in chosen)
    for index, target in enumerate(chosen):
        count = max(1, round(inputs * target.weight / total))
        yield target.name, fuzz(target, count, seed + index)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    inputs = defects = 0
    print(f"{'target':28}{'inputs':>10}{'accepted':>10}{'in/s':>9}{'slowest':>10}{'memory':>9}")
    for name, score in run(options.inputs, options.seed, options.only):
        inputs, defects = inputs + score.inputs, defects + score.defects.total()
        print(
            f"{name:28}{score.inputs:>10,}{score.accepted:>10,}"
            f"{score.inputs / score.seconds:>9,.0f}{1000 * score.slowest:>7.1f} ms"
            f"{score.most_bytes / (1 << 20):>5.1f} MiB",
            flush=True,
        )
        for what, number in score.defects.most_common(5):
            print(f"  DEFECT {number} times: {what}\n    {score.examples[what][:80].hex()}")
    print(f"{inputs:,} inputs, {defects} defects, {time.process_time():.0f} s")
    return min(1, defects)


if __name__ == "__main__":
    sys.exit(main())
