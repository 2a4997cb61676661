"""The parts of a node, what its loops share, and its counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swarm_node.clock import Clock
from swarm_node.durable import Journal
from swarm_node.environments.host import EnvironmentHost
from swarm_node.node.loops.openai_requests import OpenAIRequests
from swarm_node.node.metrics.health import Steady
from swarm_node.node.metrics.history import GroupCounts, MetricsFile, Ring, Totals, UpdateRow
from swarm_node.node.metrics.progress import Underway
from swarm_node.node.metrics.samples import Samples
from swarm_node.node.metrics.snapshot import CoordinatorRow, EvalPoint, MixtureRow
from swarm_node.node.metrics.trained_groups import TrainedGroups
from swarm_node.p2p.exchange.publishing import Publisher
from swarm_node.p2p.limits.budgets import Effort, Traffic, Wants
from swarm_node.p2p.membership.credentials import MemoryOffice, Office
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.members import Members, nobody, nothing
from swarm_node.p2p.peers.peers import Directory, Peer
from swarm_node.p2p.reach.lan import Lan
from swarm_node.p2p.reach.probe import Knock
from swarm_node.p2p.reach.reachability import Reach
from swarm_node.p2p.wire.transport import Transport
from swarm_node.page.event_log import EventLog
from swarm_node.policy.experience.replay import ReplayBuffer, ReplaySettings
from swarm_node.policy.experience.slots import Slots
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import CountingSampler, Progress, Sampler
from swarm_node.policy.training.processes.process import Trainer
from swarm_node.recent import Recent
from swarm_node.rollout import PolicyRef, RolloutGroup
from swarm_node.storage import Storage

if TYPE_CHECKING:
    from swarm_node.process.companion import Companion

#: The most former members that are kept for their owner to see.
MAX_FORMER = 200


@dataclass(frozen=True)
class Parts:
    """The parts of one node. `build.py` makes real ones, a simulation in-memory ones.

    `engine` names the sampling engine. `is_dialable` returns True if peers can dial this node, None
    while that is not known. `block_list` are peers that `Members` refuses here, and `names` are its
    owner's names for issuers. `office` stores the swarm's statements: a home, or memory. `knock`
    dials for probes and `lan` finds peers on the own network; both are None without a network of
    hosts. `relay_journal` records the relayed requests that were answered. `memory` returns the
    bytes of all processes and `metrics` writes the history: both take milliseconds, and both are
    None in a simulation. `turns` is the most turns of a multi-turn rollout of the environment, 1
    for single answers. `buffer` makes the replay buffer, and `publisher` the publisher of its
    groups: studies have others. A node that `climbs` chooses among the levels of its families.
    `guests` are programs of the owner that ask the policy, and `tracker` logs the node's metrics. A
    checkpoint is due `checkpoint_seconds` after the last one; never by time in a simulation."""

    transport: Transport
    sampler: Sampler
    trainer: Trainer
    environment: EnvironmentHost
    storage: Storage
    codec: Codec
    policy: PolicyRef
    clock: Clock
    processes: Callable[[], Mapping[str, int]]
    engine: Callable[[], str] = lambda: "torch"
    is_dialable: Callable[[], bool | None] = lambda: None
    block_list: Callable[[], frozenset[str]] = nobody
    names: Callable[[], Mapping[str, str]] = nothing
    office: Office = field(default_factory=MemoryOffice)
    knock: Knock | None = None
    reach: Reach = field(default_factory=Reach)
    lan: Lan | None = None
    relay_journal: Journal | None = None
    memory: Callable[[], int] | None = None
    metrics: MetricsFile | None = None
    history: Ring = field(default_factory=Ring)
    turns: int = 1
    buffer: Callable[[ReplaySettings], ReplayBuffer] = ReplayBuffer
    publisher: Callable[..., Publisher] = Publisher
    climbs: bool = False
    guests: OpenAIRequests | None = None
    tracker: Companion | None = None
    checkpoint_seconds: float = float("inf")


@dataclass
class Timing:
    """Seconds of the node's clock that an action took, and its count."""

    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float, count: int) -> None:
        self.seconds += seconds
        self.count += count

    @property
    def mean(self) -> float:
        """Return the mean seconds; 0 while the count is 0."""
        return self.seconds / self.count if self.count else 0.0


@dataclass
class Tally:
    """Counts of a node, for its snapshot. Checkpoints keep the first three fields and
    `trained_groups`.

    `rejected` counts peers' faults by reason, `faults` the node's own by part. `offered_by` counts
    groups that peers announced as informative since the last update, by peer. `sampling` is the
    time per own group made, and `drawing` the sampler's part of it. `scoring` is the time per
    peer's group scored, `updating` the time per update. `trained_by` counts the groups trained on
    lately by author; older ones count less. `trained_groups` counts peers' groups that were trained
    on. `alarms` are sentences for the owner, by kind; `advice` is what helps where the first groups
    taught nothing. `events` logs what happened to peers. `hysteresis` remembers the verdict, and
    `underway` what the sampler is asked for. `updated_at` is the end of the newest update,
    `last_applied` the newest one that was not skipped."""

    steps: int = 0
    groups: GroupCounts = field(default_factory=GroupCounts)
    evals: list[EvalPoint] = field(default_factory=list)
    skipped_batches: int = 0
    trainer_restarts: int = 0
    last_update: UpdateRow | None = None
    last_applied: UpdateRow | None = None
    rejected: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    offered_by: Counter[str] = field(default_factory=Counter)
    sampling: Timing = field(default_factory=Timing)
    scoring: Timing = field(default_factory=Timing)
    drawing: Timing = field(default_factory=Timing)
    updating: Timing = field(default_factory=Timing)
    mixture: MixtureRow | None = None
    trained_by: Counter[str] = field(default_factory=Counter)
    trained_groups: TrainedGroups = field(default_factory=TrainedGroups)
    sums: Totals = field(default_factory=Totals)
    samples: Samples = field(default_factory=Samples)
    updated_at: float = 0.0
    alarms: dict[str, str] = field(default_factory=dict)
    advice: str = ""
    events: EventLog = field(default_factory=EventLog)
    hysteresis: Steady = field(default_factory=Steady)
    underway: Underway = field(default_factory=Underway)
    coordinator: CoordinatorRow | None = None

    def record_sampled_group(
        self, group: RolloutGroup, prompt: str, observations: Sequence[Sequence[str]] = ()
    ) -> None:
        """Count the completions of a local group, and keep some for the owner: see `Samples`."""
        self.sums.sampled_tokens += sum(
            completion.token_ids.size for completion in group.completions
        )
        self.groups.completions += len(group.completions)
        self.groups.truncated += group.cut
        self.samples.add_local_group(group, prompt, observations)


@contextmanager
def at_sampler(
    parts: Parts, tally: Tally, max_tokens: int, *, groups: int = 0, answers: int
) -> Iterator[None]:
    """Note a call to the sampler, in whose body it is made: one for own `groups`, or else one of an
    evaluation. See `SamplerCall`."""
    now, underway = parts.clock.now, tally.underway
    kind, at = "sampling" if groups else "evaluating", progress_of(parts.sampler) or Progress()
    call = underway.begin(kind, groups, answers, max_tokens, now(), at)
    try:
        yield
    finally:
        underway.end(call, now(), progress_of(parts.sampler) or Progress())


def progress_of(sampler: Sampler) -> Progress | None:
    """Return the counts of a sampler that has any."""
    return sampler.progress if isinstance(sampler, CountingSampler) else None


@dataclass(frozen=True)
class Shared:
    """State that the loops of one node share: that of its network (`local`), its counters, its own
    demand (`wants`), the peers' budgets that follow from it (traffic, effort), the replay buffer,
    the slots of groups under way, and former members by peer id."""

    local: LocalNode
    tally: Tally
    wants: Wants
    traffic: Traffic
    effort: Effort
    buffer: ReplayBuffer
    slots: Slots
    former: Recent[str, Peer] = field(default_factory=lambda: Recent(MAX_FORMER))

    @property
    def directory(self) -> Directory:
        return self.local.directory

    @property
    def members(self) -> Members:
        return self.local.members
