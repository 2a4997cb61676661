"""Own and peers' groups per update: what the settings say, or what the controller finds.

The decisions are pure and live in `policy/mixture.py`; here they are given what this node counts.
"""

from __future__ import annotations

from swarm_node.config import Experience, Settings
from swarm_node.node.parts import Tally
from swarm_node.node.snapshot import EvalPoint, MixtureRow
from swarm_node.p2p.peers import BLAMELESS
from swarm_node.policy.experience.mixture import (
    Costs,
    MixtureSettings,
    MixtureState,
    Observation,
    observe,
    start,
)
from swarm_node.policy.experience.replay import ReplayBuffer, ReplaySettings, ReplayStats


def replay_settings(settings: Settings) -> ReplaySettings:
    """The node's buffer; where `external` is "auto", large enough for any mixture."""
    experience = settings.experience
    own, external = experience.own, experience.external
    if external == "auto":
        adaptive = adaptive_settings(experience)
        external = adaptive.most_external
        own = adaptive.batch - external
    return ReplaySettings(
        own=own,
        external=external,
        max_lag=experience.max_lag,
        max_age=experience.max_age,
        reuse=experience.reuse,
        filter_own=experience.filter_own,
        merge=settings.sampling.common_share > 0,
    )


def adaptive_settings(experience: Experience) -> MixtureSettings:
    """The controller's: it begins with `own` groups of each kind, and keeps their sum."""
    return MixtureSettings(batch=2 * experience.own)


class Mixer:
    """Aims the buffer, and shows what it is aimed at in the tally."""

    def __init__(self, experience: Experience, tally: Tally, buffer: ReplayBuffer) -> None:
        self._settings = adaptive_settings(experience)
        self._tally = tally
        self._buffer = buffer
        #: What the controller knows; None where the mixture is fixed.
        self.state: MixtureState | None = None
        if experience.external == "auto":
            self.state = start(self._settings, experience.own)
            buffer.aim(self.state.current)
        self._stats: ReplayStats | None = None
        self._offered = 0
        self._probe: EvalPoint | None = None
        self._show()

    def resume(self, state: MixtureState | None) -> None:
        """Go on from a checkpoint's state, unless the settings have changed since: a state of other
        limits is of no use."""
        if self.state is None or state is None:
            return
        mixture, settings = state.current, self._settings
        if mixture.size == settings.batch and 0 <= mixture.external <= settings.most_external:
            self.state = state
            self._buffer.aim(mixture)
            self._show()

    def update(self) -> None:
        """After an update: take in what happened since the last one."""
        stats, tally = self._buffer.stats(), self._tally
        before, self._stats = self._stats, stats
        offered, self._offered = tally.offered - self._offered, tally.offered
        probe, self._probe = self._probe, tally.evals[-1] if tally.evals else None
        # Before the first update there is nothing to compare with: a resumed node has its buffer
        # and its curve from an earlier life.
        if self.state is not None and before is not None:
            seen = Observation(
                made=stats.own_admitted - before.own_admitted,
                mixed=stats.own_informative - before.own_informative,
                offered=offered * self._trust(stats),
                costs=Costs(
                    own=tally.sampling.mean,
                    external=tally.judging.mean,
                    update=tally.last_update.seconds if tally.last_update else 0.0,
                ),
                probe=self._probe.own if self._probe and self._probe is not probe else None,
            )
            self.state = observe(self.state, seen, self._settings)
            self._buffer.aim(self.state.current)
        self._show()

    def _trust(self, stats: ReplayStats) -> float:
        """Share of what peers announced as informative that turned out so."""
        bad = sum(n for reason, n in self._tally.rejected.items() if reason not in BLAMELESS)
        return (stats.external_admitted + 1) / (stats.external_admitted + bad + 1)

    def _show(self) -> None:
        mixture, stats, state = self._buffer.mixture, self._buffer.stats(), self.state
        share = stats.own_informative / stats.own_admitted if stats.own_admitted else None
        self._tally.mixture = MixtureRow(
            own=mixture.own,
            external=mixture.external,
            adaptive=state is not None,
            mixed_share=state.share if state is not None and state.made else share,
            mixed_share_error=state.share_error if state is not None and state.made else None,
            offered_per_own=state.rate if state is not None else None,
            allowance=state.allowance if state is not None else 1.0,
        )
