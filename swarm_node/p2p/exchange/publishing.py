"""Publishes own groups: sealed, stored and announced in this node's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from swarm_node.p2p.exchange.verify import GroupVerifier, stored_group
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, content_id, seal
from swarm_node.p2p.wire.groups import OversizeGroupError, pack_group
from swarm_node.rollout import Provenance, RolloutGroup, VerifiedGroup
from swarm_node.storage import Storage, StoredGroup

_log = structlog.get_logger(__name__)


class LocalGroup(NamedTuple):
    """A group that this node made, with its prompt and, of multi-turn rollouts, what the
    environment said in each. `is_sound` is false if the environment failed in one of them, so that
    peers cannot re-run it."""

    group: RolloutGroup
    prompt: str
    observations: tuple[tuple[str, ...], ...] = ()
    is_sound: bool = True


class Publisher:
    """Writes this node's log."""

    def __init__(
        self,
        local: LocalNode,
        *,
        storage: Storage,
        verifier: GroupVerifier,
    ) -> None:
        self._identity = local.identity
        self._swarm_id = local.swarm_id
        self._storage = storage
        self._verifier = verifier
        self._clock = local.clock
        #: Groups announced since the start, and groups dropped because they are too large.
        self.announced = self.oversize = 0

    async def publish(self, groups: Sequence[LocalGroup], version: int) -> list[VerifiedGroup]:
        """Seal and store own groups; on return they survive a crash. Groups that are larger than a
        peer takes are dropped and counted.

        Groups that peers can learn from are announced: their rewards differ, peers can re-run them,
        and peers accept their tokens (a model may sample special tokens inside an answer). This
        node computed the `claimed` rewards of its own groups, so they are the verified rewards as
        well.

        Raises:
            HomeError: the database is damaged. StorageError: it failed for now.
        """
        created_ms = int(self._clock.wall() * 1000)
        epoch = self._storage.epoch
        verified_groups: list[VerifiedGroup] = []
        entries: list[tuple[StoredGroup, bytes | None]] = []
        first = self._storage.next_seq()
        for group, prompt, observations, can_be_rerun in groups:
            seq = first + len(entries)
            try:
                body = pack_group(group, epoch=epoch, seq=seq, created_ms=created_ms)
            except OversizeGroupError as error:
                self._drop(group, error)
                continue
            blob = seal(self._identity, self._swarm_id, Kind.ROLLOUT, body)
            verified_group = VerifiedGroup(
                id=content_id(blob),
                author=self._identity.peer_id,
                provenance=Provenance.LOCAL,
                group=group,
                prompt=prompt,
                rewards=group.claimed,
                arrival_version=version,
                observations=observations,
            )
            verified_groups.append(verified_group)
            is_useful = (
                verified_group.informative and can_be_rerun and self._verifier.accepts_tokens(group)
            )
            announcement = self._announce(verified_group, seq, blob) if is_useful else None
            self.announced += is_useful
            entries.append((stored_group(verified_group, epoch, seq, blob), announcement))
        await self._storage.run(self._storage.publish, entries)
        return verified_groups

    def _drop(self, group: RolloutGroup, error: OversizeGroupError) -> None:
        if not self.oversize:
            _log.warning(
                "a local group is larger than peers accept, and was not announced: lower "
                "sampling.max_new_tokens or sampling.group_size (logged once, counted)",
                family=group.task.family,
                error=str(error),
            )
        self.oversize += 1

    def _announce(self, verified_group: VerifiedGroup, seq: int, blob: bytes) -> bytes:
        group = verified_group.group
        entry = wire.Announcement(
            v=1,
            epoch=self._storage.epoch,
            seq=seq,
            id=verified_group.id,
            size=len(blob),
            environment=group.task.environment,
            version=group.task.version,
            family=group.task.family,
            model=group.policy.model,
            tokenizer=group.policy.tokenizer,
            policy_version=group.policy.version,
            completions=len(group.completions),
            mixed=True,
            turns=self._verifier.turns,
        )
        return seal(self._identity, self._swarm_id, Kind.RECORD, wire.pack(entry))
