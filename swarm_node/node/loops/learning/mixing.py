"""The mixture of own and peers' groups: fixed by the settings, or chosen by the controller.

The controller is pure (`policy/experience/mixture.py`). This module gives it the node's counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from swarm_node.environments.splits.split import SPLIT
from swarm_node.node.loops.node_parts import Tally
from swarm_node.node.metrics.snapshot import EvalPoint, MixtureRow
from swarm_node.p2p.peers.standing import BLAMELESS
from swarm_node.policy.experience.mixture import (
    Costs,
    MixtureSettings,
    MixtureState,
    Observation,
    observe,
    start,
)
from swarm_node.policy.experience.replay import ReplayBuffer, ReplayStats

#: A smaller fraction of an offer is forgotten.
_FORGOTTEN = 1e-3
#: Author of what was offered before a restart, of which only the sum is stored.
_NOBODY = ""


class Mixer:
    """Sets the mixture of the replay buffer, and shows it in the tally."""

    def __init__(
        self, settings: MixtureSettings | None, tally: Tally, buffer: ReplayBuffer
    ) -> None:
        """If `settings` is None, the buffer's mixture stays fixed."""
        self._settings = settings
        self._tally = tally
        self._buffer = buffer
        #: The controller's state; None where the mixture is fixed.
        self.state: MixtureState | None = None
        if settings is not None:
            self.state = start(settings)
            buffer.aim(self.state.current)
        self._stats = buffer.stats()
        #: Groups offered by each author, which fade as `MixtureState.offered` does.
        self._offers: dict[str, float] = {}
        self._probe: EvalPoint | None = None
        self._show()

    def resume(self, state: MixtureState | None) -> None:
        """Continue with a checkpoint's state, unless its mixture is outside the current limits."""
        settings, self._probe = self._settings, self._newest_probe()
        if state is not None and self._probe is not None and self._probe.split_version != SPLIT:
            # Rewards of different splits cannot be compared: their difference is no rise or fall.
            state = replace(state, probe=None)
        if settings is None or state is None:
            return
        mixture = state.current
        if mixture.size == settings.batch and 0 <= mixture.external <= settings.most_external:
            self.state = state
            self._offers = {_NOBODY: state.offered}
            self._buffer.aim(mixture)
            self._show()

    def update(self) -> None:
        """Take in the counts since the last update; called after each one."""
        stats, tally = self._buffer.stats(), self._tally
        previous_stats, self._stats = self._stats, stats
        offers, tally.offered_by = tally.offered_by, Counter()
        probe, self._probe = self._probe, self._newest_probe()
        if self._settings is not None and self.state is not None:
            local_count, decay = (
                stats.local_admitted - previous_stats.local_admitted,
                self._settings.kept_share,
            )
            self._note_offers(offers, decay, self._trust(stats))
            observation = Observation(
                made=local_count,
                mixed=stats.local_mixed_rewards - previous_stats.local_mixed_rewards,
                offered=self._worthwhile(decay * self.state.made + local_count),
                costs=Costs(
                    own=tally.sampling.mean,
                    external=tally.scoring.mean,
                    update=tally.last_update.seconds if tally.last_update else 0.0,
                ),
                probe=self._probe.local if self._probe and self._probe is not probe else None,
                left=self._buffer.left,
            )
            # All that still counts of earlier offers is in `observation`.
            self.state = observe(replace(self.state, offered=0.0), observation, self._settings)
            self._buffer.aim(self.state.current)
        self._show()

    def _note_offers(self, offers: Counter[str], decay: float, trust: float) -> None:
        counts = {author: decay * count for author, count in self._offers.items()}
        for author, count in offers.items():
            counts[author] = counts.get(author, 0.0) + trust * count
        self._offers = {author: count for author, count in counts.items() if count > _FORGOTTEN}

    def _worthwhile(self, local_count: float) -> float:
        """Return the groups offered that have not faded. Whatever an author offers, it counts for
        no more than its share (`PeerWeights.share`) of the `local_count` groups that this node
        sampled."""
        share = self._buffer.worth.share
        return sum(
            min(count, local_count * share(author)) if author != _NOBODY else count
            for author, count in self._offers.items()
        )

    def _newest_probe(self) -> EvalPoint | None:
        return self._tally.evals[-1] if self._tally.evals else None

    def _trust(self, stats: ReplayStats) -> float:
        """Return the share of groups announced as informative that turned out informative and new.
        A copy blames nobody, because its maker is not known. But it is not worth an own group
        either."""
        bad_count = sum(
            count
            for reason, count in self._tally.rejected.items()
            if reason not in BLAMELESS or reason == "copied"
        )
        return (stats.external_admitted + 1) / (stats.external_admitted + bad_count + 1)

    def _show(self) -> None:
        mixture, stats, state = self._buffer.mixture, self._buffer.stats(), self.state
        share = stats.local_mixed_rewards / stats.local_admitted if stats.local_admitted else None
        self._tally.mixture = MixtureRow(
            local=mixture.own,
            external=mixture.external,
            adaptive=state is not None,
            mixed_reward_ratio=state.share if state is not None and state.made else share,
            mixed_reward_error=state.share_error if state is not None and state.made else None,
            offered_per_local=state.rate if state is not None else None,
            allowance=state.allowance if state is not None else 1.0,
        )
