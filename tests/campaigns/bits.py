"""Flips every single bit of every published vector, and of the published bodies under a signature.

    PYTHONPATH=tests python -m campaigns.bits

None may be accepted, unless the flip makes another published vector that is good.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from swarm_keys import verify_chain

from swarm_node.errors import Rejected, TicketError
from swarm_node.p2p.membership.membership import SwarmInfo
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.wire.envelope import Kind, open_sealed, seal
from swarm_node.p2p.wire.identity import Identity

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
#: Longer vectors are 64 KiB of one byte.
SHORT = 4096
_MOST = 1 << 17


def flips(data: bytes, step: int = 1) -> Iterator[bytes]:
    """`data` with bit 0, `step`, 2·`step`, … flipped, one at a time."""
    for bit in range(0, 8 * len(data), step):
        mutant = bytearray(data)
        mutant[bit // 8] ^= 1 << bit % 8
        yield bytes(mutant)


def statements() -> Iterator[tuple[str, bytes, Callable[[bytes], bool]]]:
    """(name, bytes, whether bytes are accepted as this statement)."""
    published, bodies, membership = (
        json.loads((VECTORS / f"{name}.json").read_text())
        for name in ("envelopes", "bodies", "membership")
    )
    swarm_id = bytes.fromhex(published["swarm_id"])
    cases = [(case, _joined(case["sealed"])) for case in published["cases"]]
    good = {data for case, data in cases if case["expect"] in ("ok", "author")}

    def opens(kind: Kind, others: set[bytes]) -> Callable[[bytes], bool]:
        return lambda data: (
            data not in others and not isinstance(open_sealed(data, swarm_id, kind), Rejected)
        )

    for case, data in cases:
        if len(data) < _MOST:
            yield case["name"], data, opens(Kind(case["kind"]), good - {data})
    author = Identity.from_seed(bytes.fromhex(published["golden"]["seed"]))
    of = {"head": bodies["head"], **bodies["groups"][1]}
    for name in ("rollout", "record", "head"):
        kind = Kind[name.upper()]
        sealed = seal(author, swarm_id, kind, bytes.fromhex(of[name]["body"]))
        yield f"sealed {name}", sealed, opens(kind, set())
    info = SwarmInfo(membership["name"], bytes.fromhex(membership["root_key"]), bytes(32))
    for case in membership["cases"]:
        if len(case["chain"]) == 2:
            yield from _chain(case, info)
    ticket = membership["ticket"]
    read = parse_ticket(ticket["text"], ticket["valid_at"])

    def reads(data: bytes) -> bool:
        try:
            found = parse_ticket(data.decode("latin-1"), ticket["valid_at"])
        except TicketError:
            return False
        # Base64 has bits that mean nothing in its last character.
        return data == ticket["text"].encode() or found != read

    yield "ticket", ticket["text"].encode(), reads


def _chain(
    case: dict[str, Any], info: SwarmInfo
) -> Iterator[tuple[str, bytes, Callable[[bytes], bool]]]:
    first, second = map(bytes.fromhex, case["chain"])
    subject, now = bytes.fromhex(case["subject_key"]), case["now"]

    def admits(data: bytes) -> bool:
        chain = (data[: len(first)], data[len(first) :])
        return not isinstance(verify_chain(chain, info, subject, now), Rejected)

    yield f"chain: {case['name']}", first + second, admits


def _joined(parts: list[dict[str, Any]]) -> bytes:
    return b"".join(bytes.fromhex(part["hex"]) * part.get("times", 1) for part in parts)


def run(step: int = 1, stride: int = 1) -> tuple[int, int, list[str]]:
    """(statements, mutants, names of those of which a mutant was accepted). Every `stride`-th bit
    is flipped, and every `step`-th of vectors longer than SHORT bytes."""
    names, mutants, broken = 0, 0, []
    for name, data, accepts in statements():
        names += 1
        for mutant in flips(data, step if len(data) > SHORT else stride):
            mutants += 1
            if accepts(mutant):
                broken.append(name)
    return names, mutants, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=1, help="of vectors of 64 KiB")
    started = time.process_time()
    names, mutants, broken = run(parser.parse_args().step)
    spent = time.process_time() - started
    print(f"{names} statements, {mutants:,} mutants, {len(broken)} accepted, {spent:.0f} s")
    for name in sorted(set(broken)):
        print(f"  DEFECT {name}: {broken.count(name)}")
    return min(1, len(broken))


if __name__ == "__main__":
    sys.exit(main())
