"""What a node is made of, and what it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swarm_node.clock import Clock
from swarm_node.environments.host import EnvironmentHost
from swarm_node.node.snapshot import EvalPoint, GroupCounts, MixtureRow, UpdateRow
from swarm_node.p2p.transport import Transport
from swarm_node.policy.models.codec import Codec
from swarm_node.policy.sampling.sampler import Sampler
from swarm_node.policy.training.process import Trainer
from swarm_node.rollout import PolicyRef
from swarm_node.storage import Storage


@dataclass(frozen=True)
class Parts:
    """Real ones come from compose.py; a simulation brings in-memory ones."""

    transport: Transport
    sampler: Sampler
    trainer: Trainer
    environment: EnvironmentHost
    storage: Storage
    codec: Codec
    policy: PolicyRef
    clock: Clock
    processes: Callable[[], Mapping[str, int]]


@dataclass
class Pace:
    """How long something takes: seconds of the node's clock over a count, since the start."""

    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float, count: int) -> None:
        self.seconds += seconds
        self.count += count

    @property
    def mean(self) -> float:
        """Seconds each; 0 before there was one."""
        return self.seconds / self.count if self.count else 0.0


@dataclass
class Tally:
    """What a node did, for its snapshot. The first three are kept in checkpoints; `rejected` counts
    peers' faults by reason, `faults` own ones by part, `offered` groups that peers announced as
    worth a pull.
    `sampling` and `judging` are per own group made and per peer's group judged; `drawing` is the
    sampler's part of the first, per group, and `updating` the trainer's time per update."""

    updates: int = 0
    groups: GroupCounts = field(default_factory=GroupCounts)
    evals: list[EvalPoint] = field(default_factory=list)
    skipped_updates: int = 0
    trainer_restarts: int = 0
    last_update: UpdateRow | None = None
    rejected: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    offered: int = 0
    sampling: Pace = field(default_factory=Pace)
    judging: Pace = field(default_factory=Pace)
    drawing: Pace = field(default_factory=Pace)
    updating: Pace = field(default_factory=Pace)
    mixture: MixtureRow | None = None
