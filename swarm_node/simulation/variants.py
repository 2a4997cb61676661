"""Ways to compose a batch that no setting has: candidates that experiments compare with the nodes'
own way."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

from swarm_node.errors import Rejected
from swarm_node.policy.experience.replay import Drawn, ReplayBuffer, ReplaySettings, _Held
from swarm_node.rollout import Provenance, VerifiedGroup

#: A node's past is this many updates long.
PAST_UPDATES = 32


class VariantBuffer(ReplayBuffer):
    """A buffer whose batches have more than the mixture: up to `past` groups that the node made and
    trained on before, and peers' groups until `rows` rows of the batch have a gradient. Of a
    `filtered` one, own groups of equal rewards leave at once: every batch is full of informative
    groups (DAPO's dynamic sampling, arXiv 2503.14476), at the price of more sampling.

    Only informative groups come again, none older than PAST_UPDATES versions. They are marked as a
    peer's of the same model, so `experience.correction` decides how they are trained on.
    """

    def __init__(
        self, settings: ReplaySettings, past: int = 0, rows: int = 0, *, filtered: bool = False
    ) -> None:
        super().__init__(settings)
        self._filtered = filtered
        self._most_again = past
        self._rows = rows
        self._past: deque[VerifiedGroup] = deque()

    def draw(self, version: int, rng: random.Random) -> Drawn | None:
        drawn = super().draw(version, rng)
        if drawn is None or not (self._most_again or self._rows):
            return drawn
        further = self._until_enough_rows(drawn, rng)
        again = self._again(version, rng)
        self._past.extend(group for group in drawn.groups[: drawn.own_count] if group.informative)
        others = tuple(
            self._baselines.others(group, version, self.settings.max_age) for group in further
        )
        return Drawn(
            groups=(*drawn.groups, *further, *again),
            own_count=drawn.own_count,
            external_count=drawn.external_count + len(further) + len(again),
            other_rewards=(*drawn.other_rewards, *others, *[()] * len(again)),
        )

    def _admit_own(self, held: _Held, version: int) -> Rejected | None:
        fresh = version - held.oldest_version <= self.settings.max_lag
        if not self._filtered or held.group.informative or not fresh:
            return super()._admit_own(held, version)
        self._totals["own_admitted"] += 1
        self._remember(held.group.id)
        return None

    def _until_enough_rows(self, drawn: Drawn, rng: random.Random) -> list[VerifiedGroup]:
        """Further peers' groups, in any order; no more than the mixture has groups."""
        held = list(self._external.values())
        rows, further = sum(map(gradient_rows, drawn.groups)), []
        for one in rng.sample(held, min(len(held), self.mixture.size)):
            if rows >= self._rows:
                break
            self._depart(one)
            rows += gradient_rows(one.group)
            further.append(one.group)
        self.left = len(self._external)
        self._totals["external_drawn"] += len(further)
        return further

    def _again(self, version: int, rng: random.Random) -> list[VerifiedGroup]:
        past = self._past
        while past and version - past[0].group.oldest_version > PAST_UPDATES:
            past.popleft()
        chosen = rng.sample(list(past), min(self._most_again, len(past)))
        return [replace(group, provenance=Provenance.KIN) for group in chosen]


def gradient_rows(group: VerifiedGroup) -> int:
    """Rows of a group that have a gradient: all of an own informative one, and those of a peer's
    with a reward above the mean."""
    if not group.informative:
        return 0
    if group.provenance is Provenance.OWN:
        return len(group.rewards)
    mean = sum(group.rewards) / len(group.rewards)
    return sum(reward > mean for reward in group.rewards)
