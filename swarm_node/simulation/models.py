"""Parts that the simulated nodes of one model share: its directory, its codec and a probe. Also the
assignment of models and families to nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from swarm_node.clock import Clock
from swarm_node.policy.models.config import weight_files
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.policy.training.update.settings import TrainerSettings
from swarm_node.rollout import PolicyRef


class SimulatedModel:
    """One model of a simulation.

    Its nodes only read `codec`, so they share it. `probe` is the sampler that measures the held-out
    reward of these nodes outside of virtual time.

    Raises:
        ModelError: there is no such model, or it cannot be used.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = resolve(name)
        self.codec = Codec.from_directory(self.directory)
        self.policy = PolicyRef(*policy_digests(self.directory), 0)
        self.probe = self.sampler()

    @property
    def weight_bytes(self) -> int:
        """Size of the weight files."""
        return sum(file.stat().st_size for file in weight_files(self.directory))

    def sampler(self) -> TorchSampler:
        """A new sampler with the weights the model starts from."""
        return TorchSampler(CausalLM.from_directory(self.directory), self.codec, inline=True)

    def trainer(self, place: Path, settings: TrainerSettings, clock: Clock) -> InlineTrainer:
        """A new trainer that keeps its files in `place`."""
        weights = place / "weights"
        weights.mkdir()
        return InlineTrainer(
            self.directory,
            place / "checkpoints",
            weights,
            replace(settings, device="cpu", dtype="float32"),
            digest=self.policy.model,
            clock=clock,
        )


def deal(names: Sequence[str], nodes: int) -> list[SimulatedModel]:
    """The model of each node: the names are dealt in turn. Nodes with the same name share a model.

    Raises:
        ModelError: a model cannot be used.
    """
    models = {name: SimulatedModel(name) for name in dict.fromkeys(names)}
    return [models[names[index % len(names)]] for index in range(nodes)]


def model_digests(names: Sequence[str]) -> list[str]:
    """sha256 of each model, in hex. A result depends on these, and not on the paths.

    Raises:
        ModelError: there is no such model.
    """
    return [policy_digests(resolve(name))[0].hex() for name in names]


def dealt_families(families: Sequence[str], index: int, family_count: int) -> tuple[str, ...]:
    """The families that node `index` samples if each samples `family_count`; 0 stands for all."""
    count = min(family_count, len(families)) or len(families)
    first = index * count if family_count else 0
    return tuple(families[(first + step) % len(families)] for step in range(count))
