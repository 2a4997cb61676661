"""The workers of a node's loops, apart from the state that they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarm_node.environments.host import EnvironmentInfo
from swarm_node.errors import Rejected
from swarm_node.node.loops.peers.connectivity import Connectivity
from swarm_node.node.loops.reporting.evaluation import Evaluator
from swarm_node.node.loops.sampling.levels import Levels
from swarm_node.node.loops.sampling.rollout_maker import RolloutMaker
from swarm_node.node.loops.sampling.scoring import Scoring
from swarm_node.node.loops.sampling.tasks import FittingTasks
from swarm_node.p2p.exchange.exchange import Exchange
from swarm_node.p2p.membership.members import Member
from swarm_node.p2p.reach.probe import Prober
from swarm_node.p2p.reach.punch import Puncher

if TYPE_CHECKING:
    from swarm_node.node.loops.peers.coordinator_loop import CoordinatorLoop


@dataclass(frozen=True)
class Workers:
    """The workers of a node's loops. They need an environment that has started. `me` returns this
    node's membership, or the reason why it has none."""

    tasks: FittingTasks
    scoring: Scoring
    maker: RolloutMaker
    evaluator: Evaluator
    exchange: Exchange
    connectivity: Connectivity
    levels: Levels
    me: Callable[[], Member | Rejected]
    prober: Prober | None = None
    puncher: Puncher | None = None
    coordinator_loop: CoordinatorLoop | None = None


#: Makes the `Workers` from the environment's info and the families that the node samples.
OpenWorkers = Callable[[EnvironmentInfo, tuple[str, ...]], Workers]
