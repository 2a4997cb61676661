"""The mixture: how many own and peers' groups (I and J) the next update takes. Pure.

An update learns from informative groups, whose rewards are mixed. Let p be the share of a node's
own groups that are informative, and S the informative groups that peers offer per update. An update
of I own and J external groups then has p·I + min(J, S) informative ones (docs/mixture.md has the
counts that confirm this).

S depends on I, because peers offer only what they sample: where all N nodes take I own groups, S is
(N − 1)·p·I. A node can measure the exchange rate s = offered / own groups made without knowing N;
it is (N − 1)·p whatever I is. With too few own groups the pool starves, with too many it stays
unused. The optimum has I + s·I = B:

    I* = B / (1 + s)

A controller that follows S itself (J = S) oscillates: when all nodes lower I together, the pool
dries up, and for (N − 1)·p > 1 the swings grow. A controller that follows s does not: nodes that
are alike reach I* in one step. Beside peers that do not adapt, the steps shrink by S/B < 1, and end
a little short of I* because groups are whole.

The paper reports held-out reward that falls while the external share is high (arXiv 2509.08721,
"oscillation"). The controller then halves the share and raises it again step by step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from swarm_node.errors import ConfigError

#: The allowance falls by a factor and rises by a summand, as in congestion control (AIMD).
_BACK_OFF = 0.5
_RECOVER = 0.125
_LEAST_ALLOWANCE = 0.125
#: Weight of a new measurement in the fast, the slow and the noise average.
_FAST, _SLOW, _NOISE = 0.5, 0.1, 0.1


@dataclass(frozen=True, slots=True)
class Mixture:
    """Groups per update: `own` (I) and `external` (J)."""

    own: int
    external: int

    @property
    def size(self) -> int:
        """B = I + J."""
        return self.own + self.external


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of this node's time: per own group made, per external group drawn and verified, and
    per update. Only their ratios matter; all 0 means "not measured"."""

    own: float = 0.0
    external: float = 0.0
    update: float = 0.0


@dataclass(frozen=True, slots=True)
class MixtureSettings:
    """`batch` is B = I + J. I is at least `least_own` and at least (1 − `external_share`)·B.
    Estimates forget with a time constant of `memory` updates. Held-out reward counts as falling
    when its fast average is under its slow one by more than `fall` and by more than `fall_noise`
    standard deviations.

    Raises:
        ConfigError: a value is impossible; the message names it.
    """

    batch: int = 8
    least_own: int = 1
    external_share: float = 0.875
    memory: float = 64.0
    fall: float = 0.02
    fall_noise: float = 1.5

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ConfigError("batch must be 1 or more")
        if not 1 <= self.least_own <= self.batch:
            raise ConfigError("least_own must be within 1 and batch")
        if not 0.0 <= self.external_share <= 1.0:
            raise ConfigError("external_share must be within 0 and 1")
        if not self.memory >= 1.0:
            raise ConfigError("memory must be 1 update or more")

    @property
    def kept_share(self) -> float:
        """The part of a count that is left after an update."""
        return 1.0 - 1.0 / self.memory

    @property
    def most_external(self) -> int:
        """The largest J."""
        return min(self.batch - self.least_own, math.floor(self.external_share * self.batch))


@dataclass(frozen=True, slots=True)
class Observation:
    """Events since the last update. The node made `made` own groups, of which `mixed` are
    informative. `offered` counts new informative groups of peers that are expected to pass
    verification. `left` counts the peers' groups that the update left in the buffer. `probe` is the
    newest held-out reward on the node's own families, if it was measured since."""

    made: int
    mixed: int
    offered: float
    costs: Costs = field(default_factory=Costs)
    probe: float | None = None
    left: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.mixed <= self.made or not self.offered >= 0:
            raise ValueError("counts must be 0 ≤ mixed ≤ made and offered ≥ 0")


@dataclass(frozen=True, slots=True)
class Probe:
    """Averages of the held-out reward, and the variance of its noise. The variance comes from
    successive differences, which a trend hardly affects (von Neumann 1941)."""

    last: float
    fast: float
    slow: float
    noise: float = 0.0

    def with_measurement(self, value: float) -> Probe:
        """The averages with one more measurement."""
        return Probe(
            last=value,
            fast=self.fast + _FAST * (value - self.fast),
            slow=self.slow + _SLOW * (value - self.slow),
            noise=self.noise + _NOISE * ((value - self.last) ** 2 / 2.0 - self.noise),
        )


@dataclass(frozen=True, slots=True)
class MixtureState:
    """State of the controller. `made`, `mixed` and `offered` are sums that decay. `allowance`
    scales the external share; it is 1 unless the held-out reward fell."""

    current: Mixture
    made: float = 0.0
    mixed: float = 0.0
    offered: float = 0.0
    costs: Costs = field(default_factory=Costs)
    probe: Probe | None = None
    allowance: float = 1.0

    @property
    def share(self) -> float:
        """p: the mean of its Beta posterior under the uninformative prior of Jeffreys."""
        return (self.mixed + 0.5) / (self.made + 1.0)

    @property
    def share_error(self) -> float:
        """Standard deviation of the posterior of `share`."""
        return math.sqrt(self.share * (1.0 - self.share) / (self.made + 2.0))

    @property
    def rate(self) -> float:
        """s: informative external groups on offer per own group made."""
        return self.offered / self.made if self.made else 0.0

    @property
    def rate_error(self) -> float:
        """Standard deviation of `rate`, taking `offered` as a Poisson count."""
        return math.sqrt(self.offered + 0.25) / self.made if self.made else math.inf


def informative(local_count: float, external_count: float, share: float, supply: float) -> float:
    """Groups with mixed rewards in an update of `local_count` and `external_count`: p·I + min(J,
    S)."""
    return share * local_count + min(external_count, supply)


def start(settings: MixtureSettings) -> MixtureState:
    """The state before any observation: as few own groups as the limits allow. All that peers offer
    is then taken from the first update on, and own groups fill the remaining places."""
    external_count = settings.most_external
    return MixtureState(Mixture(settings.batch - external_count, external_count))


def observe(
    state: MixtureState, observation: Observation, settings: MixtureSettings
) -> MixtureState:
    """Take in one update's observation and move I towards the optimum.

    I stays while it lies between the optima for the exchange rate plus and minus one standard
    deviation, so that noise does not move it. Above this range it falls to its upper end at once,
    because peers' groups are there. Below it rises by one group per update: own groups fill the
    batch anyway. Whatever the estimates say, peers' groups that an update left make room in the
    next one. They would otherwise fill the buffer and be old when they are drawn.
    """
    decay = settings.kept_share
    state = replace(
        state,
        made=state.made * decay + observation.made,
        mixed=state.mixed * decay + observation.mixed,
        offered=state.offered * decay + observation.offered,
        costs=observation.costs,
    )
    if observation.probe is not None:
        state = _adjust_allowance(state, observation.probe, settings)
    local_count = state.current.own
    low, high = _best_range(state, settings)
    local_count = local_count + 1 if local_count < low else min(local_count, high)
    if observation.left:
        local_count = min(local_count, state.current.own - observation.left)
    # The allowance applies at once, and not by one group per update.
    local_count = min(
        settings.batch, max(local_count, settings.batch - _most_external(state, settings))
    )
    return replace(state, current=Mixture(local_count, settings.batch - local_count))


def best_own(
    settings: MixtureSettings, share: float, rate: float, costs: Costs, most_external: int
) -> int:
    """The I with the most informative groups per second, within the limits.

    Peers are assumed to adapt alike: S = s·I. Then a node that takes fewer than I* own groups takes
    from the pool what it saves itself, so I* is optimal. An exception is a node for which drawing a
    group costs more than making one: more own groups can then be better.
    """
    candidates = range(settings.batch - most_external, settings.batch + 1)
    return max(
        candidates,
        key=lambda local_count: (
            _worth(local_count, settings.batch, share, rate, costs),
            -local_count,
        ),
    )


def _worth(local_count: int, batch: int, share: float, rate: float, costs: Costs) -> float:
    external_count = batch - local_count
    draws = min(external_count, rate * local_count)
    seconds = costs.update + costs.own * local_count + costs.external * draws
    return informative(local_count, external_count, share, rate * local_count) / (seconds or 1.0)


def _best_range(state: MixtureState, settings: MixtureSettings) -> tuple[int, int]:
    limit = _most_external(state, settings)
    bounds = (state.rate + state.rate_error, max(0.0, state.rate - state.rate_error))
    low, high = sorted(best_own(settings, state.share, rate, state.costs, limit) for rate in bounds)
    return low, high


def _most_external(state: MixtureState, settings: MixtureSettings) -> int:
    return math.floor(settings.most_external * state.allowance)


def _adjust_allowance(state: MixtureState, value: float, settings: MixtureSettings) -> MixtureState:
    """Lower the allowance when the held-out reward falls, and raise it when it does not. Between
    the two thresholds the allowance stays (hysteresis)."""
    if state.probe is None:
        return replace(state, probe=Probe(value, value, value))
    probe = state.probe.with_measurement(value)
    fallen = probe.slow - probe.fast
    limit = max(settings.fall, settings.fall_noise * math.sqrt(probe.noise))
    allowance = state.allowance
    if fallen > limit:
        allowance = max(_LEAST_ALLOWANCE, allowance * _BACK_OFF)
    elif fallen < limit / 2.0:
        allowance = min(1.0, allowance + _RECOVER)
    return replace(state, probe=probe, allowance=allowance)
