"""What a node is made of, and what it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swarm_node.clock import Clock
from swarm_node.environments.host import EnvironmentHost
from swarm_node.p2p.transport import Transport
from swarm_node.policy.models import Codec
from swarm_node.policy.sampler import Sampler
from swarm_node.policy.trainer_process import Trainer
from swarm_node.rollout import PolicyRef
from swarm_node.snapshot import EvalPoint, GroupCounts, UpdateRow
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
class Tally:
    """What a node did, for its snapshot. The first three are kept in checkpoints; `rejected` counts
    peers' faults by reason, `faults` own ones by part."""

    updates: int = 0
    groups: GroupCounts = field(default_factory=GroupCounts)
    evals: list[EvalPoint] = field(default_factory=list)
    skipped_updates: int = 0
    trainer_restarts: int = 0
    last_update: UpdateRow | None = None
    rejected: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
