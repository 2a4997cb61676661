"""Backpressure: how many groups may be under way at once, as slots. Pure.

A group holds its slots from the moment its sampling begins (own groups) or its admission (peers'
groups) until it is trained on or dropped.

| slot      | how many                    | taken by      | given back by      | awaited by |
| --------- | --------------------------- | ------------- | ------------------ | ---------- |
| staleness | (max_staleness + 1) · I     | sample: begin | train: update done | sample     |
| queue     | twice what an update takes  | sample: begin | train: last draw   | sample     |
| external  | external_batches · J        | pull: admit   | train: last draw   | list, pull |
| author    | `peer_quota` of each author | pull: admit   | train: last draw   | pull       |

I own and J external groups make a training batch of B. An own group takes a staleness slot and a
queue slot together. An interrupted group keeps its slots until a later sampling batch completes it.
A pull in flight reserves an external slot (`Exchange.on_offer`). A drop gives every slot back: the
group expired, was displaced, filtered or refused, or its sampling or scoring failed.

Staleness slots are AReaL's admission control (arXiv 2505.24298): a group that begins behind n
others is trained on about n / I updates later, so its lag stays within `max_staleness`. With a
`max_staleness` of 0, sampling and training take turns. Queue slots keep the trainer busy: the own
groups of one update wait while those of the next are sampled. More would only be older when they
are trained on. An update takes I own groups, and one more for each that peers did not send: between
I and B. Queue slots follow the mean of what the last updates took, from B on, because nothing of
peers is here at the start. The other slots are counted from what is held now, so a restart needs no
reset."""

from __future__ import annotations

import math

from swarm_node.policy.experience.replay import ReplayBuffer

#: Groups begun per group awaited, by an engine that interleaves groups: the best measured value
#: (docs/engines.md).
OVER_PROVISION = 1.5
#: Weight of the newest update in the mean of the own groups that an update takes.
_NEWEST = 0.25


def smallest_batch(local_count: int, batch: int, max_staleness: int, max_groups: int) -> int:
    """Available slots that a sampling batch of at most `max_groups` groups waits for: as many as an
    update takes, `local_count` of its `batch` groups.

    Where a sampling batch may be larger than a training batch, it waits for up to twice as
    many, because a larger batch costs the sampler less per answer. With a `max_staleness` the slots
    suffice for this number while an update still lacks a group; otherwise both loops would wait.
    Without one, `Slots.sampling_batch` waits for no more than the update lacks.
    """
    is_larger = max_groups > batch and max_staleness > 1
    return min(max_groups, 2 * local_count) if is_larger else local_count


def provision(target: int, factor: float, waiting: int) -> int:
    """Return the number of new groups to begin. With the `waiting` interrupted ones, `factor` times
    `target` groups are then sampled. `factor` counts as 1 at least."""
    return max(0, math.ceil(target * max(factor, 1.0)) - waiting)


def most_at_once(local_count: int, batch: int, max_staleness: int, max_groups: int) -> int:
    """The most own groups that are ever under way: those that may begin while none is held. An
    update takes `local_count` of its `batch` groups, and the last updates took no more of peers
    than that leaves."""
    staleness = (max_staleness + 1) * max(local_count, 1)
    return min(
        staleness,
        max(2 * batch, local_count + smallest_batch(local_count, batch, max_staleness, max_groups)),
    )


class Slots:
    """The slots of one node. The replay buffer counts the groups that are ready; the groups being
    sampled and trained on are counted here."""

    def __init__(self, buffer: ReplayBuffer, max_groups: int) -> None:
        """A sampling batch completes at most `max_groups` groups."""
        self._buffer = buffer
        self._max_groups = max_groups
        self._sampling = 0
        self._training = 0
        self._mean_batch = float(buffer.mixture.size)

    @property
    def sampling(self) -> int:
        """Own groups that have begun and are neither ready nor dropped; interrupted ones count."""
        return self._sampling

    def begin(self, count: int) -> None:
        """Count `count` own groups that begin. Each takes a staleness slot and a queue slot."""
        self._sampling += count

    def end(self, count: int) -> None:
        """Count `count` own groups that are no longer sampled: the buffer has counted or dropped
        them.

        Raises:
            ValueError: fewer groups have begun.
        """
        if not 0 <= count <= self._sampling:
            raise ValueError(f"{count} groups cannot end: {self._sampling} are being sampled")
        self._sampling -= count

    def train(self, count: int) -> None:
        """Begin an update on `count` own groups. They keep their staleness slots."""
        self._training = count
        self._mean_batch += _NEWEST * (count - self._mean_batch)

    def end_update(self) -> None:
        """End the update: the sampler has its weights."""
        self._training = 0

    def free(self, version: int) -> int:
        """Own groups that may begin now, at policy `version`."""
        return max(0, self._not_ready(version) - self._sampling)

    def sampling_batch(self, version: int) -> int:
        """Own groups that the next sampling batch completes; 0 while it must wait for slots.

        The next batch resumes the interrupted groups, so their slots count as available to it.
        """
        available, minimum = max(0, self._not_ready(version)), self.smallest_batch
        shortfall = self._buffer.mixture.own - self._buffer.held_own()
        if not self._training and shortfall > 0:
            # With no lag, what is ready leaves no more slots than the update still lacks.
            minimum = min(minimum, shortfall)
        return min(available, self._max_groups) if available >= minimum else 0

    @property
    def smallest_batch(self) -> int:
        """Available slots that a sampling batch waits for."""
        mixture, max_staleness = self._buffer.mixture, self._buffer.settings.max_staleness
        return smallest_batch(mixture.own, mixture.size, max_staleness, self._max_groups)

    def free_external(self, version: int, author: str | None = None) -> int:
        """Peers' groups that may be admitted at policy `version`: of `author`, or of anybody."""
        buffer, settings = self._buffer, self._buffer.settings
        if settings.external == 0:
            return 0
        buffer.expire(version)
        free = settings.capacity_external - buffer.held_external()
        if author is not None:
            free = min(free, buffer.quota(author) - buffer.held_external(author))
        return max(0, free)

    def _not_ready(self, version: int) -> int:
        """Slots for own groups that no ready group holds. Negative after the mixture shrank."""
        buffer, mixture = self._buffer, self._buffer.mixture
        buffer.expire(version)
        staleness = (buffer.settings.max_staleness + 1) * max(mixture.own, 1) - self._training
        # The mean can be below I for a while, where the mixture has just changed.
        queue = max(round(2 * self._mean_batch), mixture.own + self.smallest_batch)
        return min(staleness, queue) - buffer.held_own()
