"""Replay buffer: the choice of the verified groups for the next update. Pure: no clock, no I/O.

SAPO (arXiv 2509.08721) trains each update on I own and J external groups. External groups whose
rewards are all equal carry no gradient and are never admitted; own groups are not filtered. Ages
count this node's own updates. A draw never waits for peers. A batch also has own groups of the
last updates once more (`ReplaySettings.past`). The mixture of I and J can be changed at any time
(`ReplayBuffer.aim`), within the limits of the settings. `slots.py` derives from the
buffer how many more groups may be under way.
"""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarm_node.errors import ConfigError, Rejected
from swarm_node.policy.experience.mixture import Mixture
from swarm_node.policy.experience.peer_weights import MOST_AUTHORS, PeerWeights
from swarm_node.recent import Recent
from swarm_node.rollout import Provenance, VerifiedGroup

#: Number of ids of departed groups that the buffer keeps, as a multiple of both capacities, so that
#: it refuses a group that arrives again. The stored replay windows stop older ones.
_MEMORY = 8
#: Updates after which an external group is too old. Weights by age were measured, and lost
#: (docs/research/appendix.md); this bounds only what a slow node has missed. Own groups are trained
#: on once more until they are as many versions old.
MAX_AGE = 32


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Batch composition and limits. All counts are groups, all ages own updates.

    An own group expires when its oldest tokens are more than `max_staleness` policy versions old,
    and an external group `max_age` updates after its arrival. Every group leaves when it is drawn.

    The buffer holds own groups for `own_batches` batches and external groups for `external_batches`
    batches at most. One author holds at most max(`peer_minimum`, `peer_share` of the external
    capacity). `local` and `external` (I and J) are the first mixture, and they bound the
    capacities.

    A batch has up to `past` informative groups besides that the node made and trained on before, in
    versions of the last `max_age`. They are marked as a peer's of the same model, so that
    `build_batch` treats them as it treats old groups of others.

    Raises:
        ConfigError: a value is impossible; the message names it.
    """

    local: int
    external: int
    max_staleness: int
    max_age: int = MAX_AGE
    own_batches: int = 4
    external_batches: int = 8
    peer_share: float = 0.25
    peer_minimum: int = 8
    past: int = 0

    def __post_init__(self) -> None:
        for name in ("local", "external", "max_staleness", "past"):
            if getattr(self, name) < 0:
                raise ConfigError(f"experience.{name} must be 0 or more")
        if self.max_age < 0:
            raise ConfigError("max_age must be 0 or more")
        for name in ("own_batches", "external_batches", "peer_minimum"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more")
        if self.local + self.external < 1:
            raise ConfigError(
                "experience.local and experience.external are both 0: nothing to train on"
            )
        if not 0.0 <= self.peer_share <= 1.0:
            raise ConfigError("peer_share must be within 0 and 1")

    @property
    def capacity_own(self) -> int:
        """Most own groups held; a batch without external groups fits."""
        return self.own_batches * (self.local + self.external)

    @property
    def capacity_external(self) -> int:
        """Most external groups held."""
        return self.external_batches * self.external

    @property
    def peer_quota(self) -> int:
        """Most external groups held of one author."""
        share = int(self.peer_share * self.capacity_external)
        return min(self.capacity_external, max(self.peer_minimum, share))


@dataclass(frozen=True, slots=True)
class Drawn:
    """One training batch: `own_count` own groups, `external_count` external ones, and own ones that
    were trained on before."""

    groups: tuple[VerifiedGroup, ...]
    own_count: int
    external_count: int

    @property
    def fresh(self) -> tuple[VerifiedGroup, ...]:
        """The groups that are trained on for the first time."""
        return self.groups[: self.own_count + self.external_count]


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """Groups held now, and totals since the start. `local_mixed_rewards / local_admitted`
    estimates p, the fraction of local groups with mixed rewards. The gain of sharing depends on
    p."""

    local: int
    external: int
    authors: int
    local_admitted: int
    local_mixed_rewards: int
    external_admitted: int
    local_drawn: int
    external_drawn: int
    expired: int
    evicted: int
    rejected: dict[str, int]


@dataclass(slots=True, eq=False)
class _Held:
    group: VerifiedGroup
    oldest_version: int


class ReplayBuffer:
    """Holds groups from their admission to their last use. Deterministic given `rng`."""

    def __init__(self, settings: ReplaySettings) -> None:
        self.settings = settings
        self.mixture = Mixture(settings.local, settings.external)
        #: External groups that the last draw left, of those for which authors had credit.
        self.left = 0
        #: What peers' groups teach, which limits their places in batches.
        self.worth = PeerWeights()
        #: Places that each author may have in the next batch.
        self._credits: Recent[str, float] = Recent(MOST_AUTHORS)
        self._local_groups: dict[bytes, _Held] = {}
        #: Informative own groups that were drawn, the last ones.
        self._past: deque[VerifiedGroup] = deque(
            maxlen=settings.max_age * (settings.local + settings.external) if settings.past else 0
        )
        self._external_groups: dict[bytes, _Held] = {}
        self._holdings: Counter[str] = Counter()
        self._expired_at: int | None = None
        self._memory = _MEMORY * (settings.capacity_own + settings.capacity_external)
        self._departed_ids: OrderedDict[bytes, None] = OrderedDict()
        self._uncollected: deque[bytes] = deque(maxlen=self._memory)
        self._totals: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()

    def admit(self, group: VerifiedGroup, version: int) -> Rejected | None:
        """Admit `group` at policy `version`, or return the reason for refusing it: "duplicate",
        "stale", "zero_advantage" (external only), "quota" or "capacity".

        Where the author's quota is full, a strictly younger group displaces the author's oldest
        one. Where the buffer is full, it displaces the oldest group of the author that holds most.
        So a peer that floods displaces only its own groups.
        """
        self._expired_at = None
        verdict = self._admit(_Held(group, group.group.oldest_version), version)
        if verdict is not None:
            self._rejected[verdict.reason] += 1
        return verdict

    def keeps(self, group: VerifiedGroup) -> bool:
        """Check that an own group is trained on; a hook, for studies of other buffers."""
        return True

    def aim(self, mixture: Mixture) -> None:
        """Set the mixture of the next batches.

        Raises:
            ValueError: `mixture` has more external groups, or more groups, than the settings.
        """
        settings = self.settings
        if not (mixture.own >= 0 and 0 <= mixture.external <= settings.external):
            raise ValueError(f"external must be within 0 and {settings.external}, own 0 or more")
        if not 1 <= mixture.size <= settings.local + settings.external:
            raise ValueError(f"a batch holds 1 to {settings.local + settings.external} groups")
        self.mixture = mixture

    def ready(self, version: int) -> bool:
        """Check that `draw` would return a batch now."""
        self.expire(version)
        return len(self._local_groups) >= self.mixture.own and bool(
            self._local_groups or self._external_groups
        )

    def draw(self, version: int, rng: random.Random) -> Drawn | None:
        """The next batch at policy `version`; None while fewer own groups than the mixture's are
        ready.

        External groups are drawn uniformly among those for which their authors have credit
        (`peer_weights.py`), or among all if the mixture has no own groups. Own groups are drawn in
        the order of their arrival. Where fewer external groups are left, own groups take their
        places."""
        if not self.ready(version):
            return None
        external_entries = self._draw_external(rng)
        local_count = self.mixture.size - len(external_entries)
        local_entries = list(self._local_groups.values())[:local_count]
        for entry in (*local_entries, *external_entries):
            self._depart(entry)
        self._credit(len(local_entries), external_entries)
        self._totals["local_drawn"] += len(local_entries)
        self._totals["external_drawn"] += len(external_entries)
        groups = [entry.group for entry in (*local_entries, *external_entries)]
        replays = self._draw_past(version, rng)
        self._past.extend(entry.group for entry in local_entries if entry.group.informative)
        return Drawn((*groups, *replays), len(local_entries), len(external_entries))

    def expire(self, version: int) -> None:
        """Drop the groups that are too stale to be drawn at policy `version`."""
        if version == self._expired_at:
            return  # callers that wait for a slot call it often
        self._expired_at = version
        settings = self.settings
        stale_entries = [
            h
            for h in self._local_groups.values()
            if version - h.oldest_version > settings.max_staleness
        ]
        stale_entries += [
            h
            for h in self._external_groups.values()
            if version - h.group.arrival_version > settings.max_age
        ]
        for entry in stale_entries:
            self._depart(entry)
        self._totals["expired"] += len(stale_entries)

    def forget(self, author: str) -> None:
        """Drop the external groups of an author that is no member any more."""
        for entry in [h for h in self._external_groups.values() if h.group.author == author]:
            self._evict(entry)

    def quota(self, author: str) -> int:
        """Most external groups held of `author`."""
        return math.ceil(self.worth.share(author) * self.settings.peer_quota)

    def held_own(self) -> int:
        """Own groups held."""
        return len(self._local_groups)

    def held_external(self, author: str | None = None) -> int:
        """External groups held, of `author` or of anybody."""
        return len(self._external_groups) if author is None else self._holdings[author]

    def collect_departed(self) -> list[bytes]:
        """Ids of the groups that left since this was last asked: used up, expired or displaced."""
        group_ids = list(self._uncollected)
        self._uncollected.clear()
        return group_ids

    def stats(self) -> ReplayStats:
        """A snapshot."""
        totals = self._totals
        return ReplayStats(
            local=len(self._local_groups),
            external=len(self._external_groups),
            authors=len(self._holdings),
            local_admitted=totals["local_admitted"],
            local_mixed_rewards=totals["local_mixed_rewards"],
            external_admitted=totals["external_admitted"],
            local_drawn=totals["local_drawn"],
            external_drawn=totals["external_drawn"],
            expired=totals["expired"],
            evicted=totals["evicted"],
            rejected=dict(self._rejected),
        )

    def _draw_external(self, rng: random.Random) -> list[_Held]:
        """Draw among the groups for which their authors have credit."""
        by_author: dict[str, list[_Held]] = {}
        for entry in self._external_groups.values():
            by_author.setdefault(entry.group.author, []).append(entry)
        candidates: list[_Held] = []
        for author, groups in by_author.items():
            if author not in self._credits:
                self._credits[author] = max(1.0, self.mixture.own)
            limit = int(self._credits[author]) if self.mixture.own else len(groups)
            candidates += groups if len(groups) <= limit else rng.sample(groups, limit)
        selection = rng.sample(candidates, min(self.mixture.external, len(candidates)))
        self.left = len(candidates) - len(selection)
        return selection

    def _draw_past(self, version: int, rng: random.Random) -> list[VerifiedGroup]:
        """Draw among the own groups that were drawn before."""
        # A trainer that restarted has an older version than groups of before.
        ages = range(self.settings.max_age + 1)
        past = [group for group in self._past if version - group.group.oldest_version in ages]
        selection = rng.sample(past, min(self.settings.past, len(past)))
        return [replace(group, provenance=Provenance.SAME_MODEL) for group in selection]

    def _credit(self, local_count: int, entries: Sequence[_Held]) -> None:
        """Credit each author with its share of the own groups' places, or of an equal part of the
        external places if that is more. Subtract the places that it took."""
        places = max(local_count, self.mixture.external / max(1, len(self._credits)))
        had = Counter(entry.group.author for entry in entries)
        for author, credit in list(self._credits.items()):
            left = credit + self.worth.share(author) * places - had[author]
            self._credits[author] = max(0.0, min(left, float(self.mixture.size)))

    def _admit(self, entry: _Held, version: int) -> Rejected | None:
        group = entry.group
        if (
            group.id in self._local_groups
            or group.id in self._external_groups
            or group.id in self._departed_ids
        ):
            return Rejected("duplicate", "this group was here before")
        if group.provenance is Provenance.LOCAL:
            return self._admit_own(entry, version)
        return self._admit_external(entry, version)

    def _admit_own(self, entry: _Held, version: int) -> Rejected | None:
        staleness = version - entry.oldest_version
        if staleness > self.settings.max_staleness:
            return Rejected("stale", f"{staleness} versions behind")
        self._totals["local_admitted"] += 1
        if not self.keeps(entry.group):
            self._remember(entry.group.id)
            return None
        self._totals["local_mixed_rewards"] += entry.group.informative
        if len(self._local_groups) >= self.settings.capacity_own:
            self._evict(
                min(self._local_groups.values(), key=lambda candidate: candidate.oldest_version)
            )
        self._local_groups[entry.group.id] = entry
        return None

    def _admit_external(self, entry: _Held, version: int) -> Rejected | None:
        settings, group = self.settings, entry.group
        if not group.informative:
            return Rejected("zero_advantage", "all rewards are equal")
        age = version - group.arrival_version
        if age > settings.max_age:
            return Rejected("stale", f"arrived {age} updates ago")
        if settings.external == 0:
            return Rejected("capacity", "no external groups are wanted")
        holdings = self._holdings
        rejection = None
        if holdings[group.author] >= self.quota(group.author):
            rejection = self._displace(group, group.author, "quota")
        elif len(self._external_groups) >= settings.capacity_external:
            top_author = max(holdings, key=lambda author: (holdings[author], author))
            rejection = self._displace(group, top_author, "capacity")
        if rejection is not None:
            return rejection
        self._external_groups[group.id] = entry
        holdings[group.author] += 1
        self._totals["external_admitted"] += 1
        return None

    def _displace(self, group: VerifiedGroup, author: str, reason: str) -> Rejected | None:
        """Evict the oldest group of `author` for `group`, or refuse `group`."""
        oldest_entry = min(
            (entry for entry in self._external_groups.values() if entry.group.author == author),
            key=lambda entry: entry.group.arrival_version,
        )
        if group.arrival_version <= oldest_entry.group.arrival_version:
            return Rejected(reason, "the groups held are as young")
        self._evict(oldest_entry)
        return None

    def _evict(self, entry: _Held) -> None:
        self._depart(entry)
        self._totals["evicted"] += 1

    def _depart(self, entry: _Held) -> None:
        identifier, author = entry.group.id, entry.group.author
        if entry.group.provenance is Provenance.LOCAL:
            del self._local_groups[identifier]
        else:
            del self._external_groups[identifier]
            self._holdings[author] -= 1
            if not self._holdings[author]:
                del self._holdings[author]
        self._remember(identifier)

    def _remember(self, identifier: bytes) -> None:
        self._departed_ids[identifier] = None
        while len(self._departed_ids) > self._memory:
            self._departed_ids.popitem(last=False)
        self._uncollected.append(identifier)
