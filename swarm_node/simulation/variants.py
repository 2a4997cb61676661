"""Ways to compose a batch that no setting has: candidates that experiments compare with the nodes'
own way."""

from __future__ import annotations

import random
from collections.abc import Callable

from swarm_node.errors import Rejected
from swarm_node.policy.experience.replay import Drawn, ReplayBuffer, ReplaySettings, _Held
from swarm_node.rollout import Provenance, VerifiedGroup


class VariantBuffer(ReplayBuffer):
    """A buffer whose batches have more than the mixture: peers' groups until `rows` rows of the
    batch have a gradient. From a `filtered` buffer own groups of equal rewards leave at once: every
    batch is full of informative groups (DAPO's dynamic sampling, arXiv 2503.14476), at the price of
    more sampling. `on_draw` is called with each batch.
    """

    def __init__(
        self,
        settings: ReplaySettings,
        rows: int = 0,
        *,
        filtered: bool = False,
        on_draw: Callable[[Drawn], None] = lambda drawn: None,
    ) -> None:
        super().__init__(settings)
        self._on_draw = on_draw
        self._filtered = filtered
        self._rows = rows

    def draw(self, version: int, rng: random.Random) -> Drawn | None:
        drawn = super().draw(version, rng)
        if drawn is not None:
            drawn = self._filled(drawn, version, rng) if self._rows else drawn
            self._on_draw(drawn)
        return drawn

    def _filled(self, drawn: Drawn, version: int, rng: random.Random) -> Drawn:
        further = self._until_enough_rows(drawn, rng)
        others = tuple(
            self._baselines.others(group, version, self.settings.max_age) for group in further
        )
        count = len(drawn.fresh)
        return Drawn(
            groups=(*drawn.fresh, *further, *drawn.groups[count:]),
            own_count=drawn.own_count,
            external_count=drawn.external_count + len(further),
            other_rewards=(*drawn.other_rewards[:count], *others, *drawn.other_rewards[count:]),
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


def gradient_rows(group: VerifiedGroup) -> int:
    """Rows of a group that have a gradient: all of an own informative one, and those of a peer's
    with a reward above the mean."""
    if not group.informative:
        return 0
    if group.provenance is Provenance.OWN:
        return len(group.rewards)
    mean = sum(group.rewards) / len(group.rewards)
    return sum(reward > mean for reward in group.rewards)
