"""Programs in the WebAssembly Python: what they cost, which hostile ones score, and who agrees.

    python benchmarks/programs.py [--programs 1000] [--load 8] [--python OTHER/bin/python ...]

Hostile programs are run as answers, with the usual steps; printed is the best of three takes in
milliseconds of processor time. Then programs of twelve kinds are run here, in each further
interpreter, which needs numpy, platformdirs and what the extra `programs` has, and once more beside
so many busy processes, each time with another hash seed. They agree if every output, end and number
of steps is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hostile_programs import CHEATS, HOSTILE, examples_only, honest, sums

from swarm_node.environments.programs.runtime import Runtime

STEPS = 500_000_000
#: N and M are replaced by numbers.
KINDS = (
    "print(sum(i * i % N for i in range(M)))",
    "s = [True] * M\nfor i in range(2, M):\n    if s[i]:\n        for j in range(i * i, M, i):\n"
    "            s[j] = False\nprint([i for i in range(2, M) if s[i]][-N:])",
    "def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(N % 17), M)",
    "import math\nprint(math.sin(N) ** 0.5, math.exp(-M / N), N / M, float('nan') * -N)",
    "words = ['w%d' % (i * N % 31) for i in range(M)]\nprint(set(words), hash(words[0]))",
    "import re\nprint(re.findall(r'(N)|([0-9]+?)7', str(3 ** M))[:N])",
    "import random\nrandom.shuffle(l := list(range(N)))\nprint(l, random.gauss(0, M))",
    "import collections\nprint(collections.Counter(str(N ** M)).most_common(3))",
    "l = sorted(range(M), key=lambda i: i * N % 101)\nprint(l[:9], id(l), object())",
    "import json\nprint(json.dumps({str(i): [i / N] * 3 for i in range(M % 90)}))",
    "x = [1, 2, 3]\nprint(x[N])",
    "n = N\nwhile n != 1: n = n // 2 if n % 2 == 0 else 3 * n + M % 2\nprint(n)",
)


def programs(count: int) -> Iterator[str]:
    rng = random.Random(7)
    for index in range(count):
        text = KINDS[index % len(KINDS)]
        yield text.replace("N", str(rng.randrange(2, 99))).replace(
            "M", str(rng.randrange(100, 2000))
        )


def hostile(runtime: Runtime) -> None:
    """Print what each hostile program costs, and count those that are right for a row of sums."""
    row = sums(68)[-1]
    stdin, expected_output = row["inputs"][0].encode(), row["outputs"][0].encode()
    others = {"honest": honest(row["question"]), "examples only": examples_only(row["question"])}
    right = []
    for name, text in {**others, **CHEATS, **HOSTILE}.items():
        takes = []
        for _ in range(3):
            begin = time.process_time()
            outcome = runtime.run(text, stdin, bytes(32), runtime.start_steps + STEPS)
            takes.append(1000 * (time.process_time() - begin))
        steps = max(outcome.steps - runtime.start_steps, 0)
        print(f"{name:36} {outcome.end:7} {steps:12,} steps {min(takes):7.1f} ms", flush=True)
        if outcome.end == "ok" and outcome.stdout.strip() == expected_output.strip():
            right.append(name)
    print(f"right: {', '.join(right)}; {len(CHEATS) + len(HOSTILE) + 1} programs should not be\n")


def digests(count: int) -> None:
    """Print a line for each program: kind, a digest of its outcome, steps and milliseconds."""
    runtime = Runtime()
    for index, text in enumerate(programs(count)):
        begin = time.process_time()
        outcome = runtime.run(text, b"", bytes(32), runtime.start_steps + STEPS)
        took = 1000 * (time.process_time() - begin)
        digest = hashlib.sha256(repr(tuple(outcome)).encode()).hexdigest()
        line = [index % len(KINDS), digest, outcome.end, outcome.steps - runtime.start_steps, took]
        print(json.dumps(line), flush=True)


def run_in(python: str, count: int, **variables: str) -> list[list[object]]:
    """Lines of `digests` in another process."""
    child_process = subprocess.run(
        [python, __file__, "--child", "--programs", str(count)],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in child_process.stdout.splitlines()]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processes busy within the block. They end with this one, however it ends."""
    work = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    running = [subprocess.Popen([sys.executable, "-c", work]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def agreement(count: int, load: int, pythons: Sequence[str]) -> None:
    first = run_in(sys.executable, count, PYTHONHASHSEED="1", TZ="UTC")
    took = [float(str(line[4])) for line in first]
    steps = [int(str(line[3])) for line in first]
    print(
        f"{count} programs: p50 {statistics.median(took):.1f} ms, p95 "
        f"{statistics.quantiles(took, n=20)[-1]:.1f} ms, {statistics.median(steps):,.0f} and "
        f"{max(steps):,} steps (median, most), {len({line[1] for line in first})} different"
    )
    for python, seed, zone, processes in (
        *((python, "random", "UTC", 0) for python in pythons),
        (sys.executable, "2", "Asia/Tokyo", load),
    ):
        began = time.monotonic()
        with busy(processes):
            other = run_in(python, count, PYTHONHASHSEED=seed, TZ=zone)
            loaded = os.getloadavg()[0]
        unlike = sum(one[:4] != two[:4] for one, two in zip(first, other, strict=True))
        how = f"hash seed {seed}, load {loaded:.1f}, {time.monotonic() - began:.0f} s"
        print(f"{python}, {how}: {unlike} unlike", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--load", type=int, default=8, help="busy processes beside one of the runs")
    parser.add_argument("--python", action="append", default=[], help="another interpreter")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        digests(options.programs)
        return
    runtime = Runtime()
    print(f"starting Python: {runtime.start_steps:,} steps")
    hostile(runtime)
    agreement(options.programs, options.load, options.python)


if __name__ == "__main__":
    main()
