"""The fit of settings to a machine, as the tests of plans ask for it."""

from __future__ import annotations

from swarm_node.config import Settings
from swarm_node.node.preflight.defaults import demand_of
from swarm_node.policy.memory.plan import Job
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.planning import fit as planning
from swarm_node.policy.planning.demand import ONE_ANSWER, Lengths
from swarm_node.policy.planning.fit import Decision, Fit, Machine
from swarm_node.policy.sampling.vllm.engine import EngineChoice


def fit(
    settings: Settings, shape: ModelConfig, machine: Machine, lengths: Lengths = ONE_ANSWER
) -> Fit:
    return planning.fit(demand_of(settings, shape, lengths), machine)


def decide(
    settings: Settings, shape: ModelConfig, machine: Machine, lengths: Lengths = ONE_ANSWER
) -> Decision:
    return planning.decide(demand_of(settings, shape, lengths), machine)


def engine_of(settings: Settings, machine: Machine, shape: ModelConfig) -> EngineChoice:
    return planning.engine_of(demand_of(settings, shape), machine)


def job_of(
    settings: Settings,
    machine: Machine,
    engine: EngineChoice,
    shape: ModelConfig,
    lengths: Lengths = ONE_ANSWER,
) -> Job:
    return planning.job_of(demand_of(settings, shape, lengths), machine, engine)
