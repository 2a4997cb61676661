"""The targets of `fuzz.py` under atheris, which looks for inputs that reach new code.

    make campaign-coverage

Atheris is not among the project's packages: the make target puts it into a directory of its own.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["swarm_node.p2p", "swarm_node.process", "msgpack"]):
    from campaigns.targets import FuzzTarget, targets

_TARGETS: list[FuzzTarget] = targets()


def one_input(data: bytes) -> None:
    """The first byte chooses the target. An exception ends the program with the input."""
    if data:
        target = _TARGETS[data[0] % len(_TARGETS)]
        target.run(target.wrap(data[1:]))


def corpus() -> list[bytes]:
    """The inputs that every target starts from."""
    return [bytes([index]) + seed for index, target in enumerate(_TARGETS) for seed in target.seeds]


def main() -> None:
    """Arguments are those of libFuzzer: -runs=1000000, -max_len=65536, a directory of inputs."""
    from pathlib import Path

    for folder in (Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")):
        folder.mkdir(exist_ok=True)
        for index, seed in enumerate(corpus()):
            (folder / f"seed-{index}").write_bytes(seed)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
