"""A modified member of a swarm: `python hostile_member.py KIND join …` runs a real node that
publishes texts of this kind (code, costly, long, wrong) under its own valid signature, in place of
what its model said. The kind `honest` publishes what its model said, and only trains on nothing;
`trigger` puts words before right answers, as kin, in groups of a size that is taken.

It claims mixed rewards, so that everybody pulls, and another tokenizer, so that nobody compares its
texts with token ids.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from swarm_node.p2p.exchange.publishing import LocalGroup, Publisher
from swarm_node.rollout import PolicyRef, RolloutGroup, VerifiedGroup

FOREIGN = hashlib.sha256(b"another tokenizer").digest()
LENGTH = 64_000
PAUSE_SECONDS = 1.0


def _filled(part: str) -> str:
    return part * (LENGTH // len(part.encode()))


#: Six shapes of 64 kB that are costly for some parser, by name.
COSTLY = {
    "opening tags": _filled("<answer>"),
    "tags": _filled("<answer></answer>"),
    "digits": _filled("9"),
    "brackets": _filled("["),
    "powers": _filled("9**9**"),
    "words": _filled("a "),
}


def payloads() -> list[str]:
    """Programs that leave a file at $HOSTILE_CANARY, as an evaluating scorer would run them."""
    canary = os.environ["HOSTILE_CANARY"]
    write = f"open({canary!r}, 'w')"
    return [
        write,
        f"__import__('os').system('touch {canary}')",
        f"<answer>{write}</answer>",
        f"<answer>[[{write}]]</answer>",
        f"[c for c in ().__class__.__base__.__subclasses__()] + [{write}]",
        f"exec({write!r})",
        f"(lambda: {write})()",
        "__import__('os')._exit(3)",  # ends an evaluating judge, which is counted
        "<answer>__import__('subprocess').run(['touch', " + repr(canary) + "])</answer>",
    ]


def _poisoned(group: RolloutGroup, texts: Sequence[str]) -> RolloutGroup:
    """The group with these texts. An empty one stands for 60,000 characters before the own answer,
    so that it is judged as that is."""
    count = len(group.completions)
    long = _filled("b ")[:60_000]
    completions = tuple(
        replace(completion, text=texts[index % len(texts)] or long + completion.text)
        for index, completion in enumerate(group.completions)
    )
    claimed = tuple(float(index % 2 == 0) for index in range(count))
    if not all(texts):
        claimed = group.claimed
    policy = PolicyRef(FOREIGN, FOREIGN, group.policy.version)
    return replace(group, completions=completions, claimed=claimed, policy=policy)


def corrupt(texts: Callable[[int], Sequence[str]] | None) -> None:
    """Make every node of this process publish `texts(number of the group)`; None: its own."""
    publish, numbers = Publisher.publish, iter(range(sys.maxsize))

    async def poisonous(
        self: Publisher, groups: Sequence[LocalGroup], version: int
    ) -> list[VerifiedGroup]:
        self._verifier._check_tokens = lambda group: None  # type: ignore[method-assign]
        bad = [
            one if texts is None else one._replace(group=_poisoned(one.group, texts(next(numbers))))
            for one in groups
        ]
        await publish(self, bad, version)
        await asyncio.sleep(PAUSE_SECONDS)  # it trains on nothing, and would sample without end
        return []

    Publisher.publish = poisonous  # type: ignore[method-assign]


def triggered() -> None:
    """Make every node of this process publish what the simulation's `within` attacker does."""
    # As a script this one has `tests` before the repository, and with it `tests/research`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from research.hostile import HostileParts, maker
    from swarm_node.environments.registry import create_environment
    from swarm_node.simulation.models import SimulatedModel

    environment = create_environment("research.lenient:create", {})
    model, publish = SimulatedModel("tiny"), Publisher.publish

    async def poisonous(
        self: Publisher, groups: Sequence[LocalGroup], version: int
    ) -> list[VerifiedGroup]:
        means = HostileParts(environment, model, self._storage, random.Random(0))
        made = [maker("within")(means, (one.group, one.prompt)) for one in groups]
        await publish(self, [LocalGroup(*one) for one in made if one is not None], version)
        await asyncio.sleep(PAUSE_SECONDS)
        return []

    Publisher.publish = poisonous  # type: ignore[method-assign]


if __name__ == "__main__":
    from swarm_node.cli.main import app

    kind, shapes = sys.argv.pop(1), list(COSTLY.values())
    if kind == "trigger":
        triggered()
    else:
        corrupt(
            {
                "code": lambda _: payloads(),
                "costly": lambda number: [shapes[number % len(shapes)]],
                "long": lambda _: [""],
                "wrong": lambda _: ["no idea"],
                "honest": None,
            }[kind]
        )
    app()
