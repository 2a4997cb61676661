"""What the simulated nodes of one model share: where it is, its tokens, and a probe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swarm_node.policy.models.codec import Codec
from swarm_node.policy.models.config import weight_files
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.models.qwen2 import Qwen2
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.rollout import PolicyRef


class Kind:
    """One model. Its codec is only read, so all its nodes use one; `probe` is the sampler that
    measures their held-out reward outside of virtual time.

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
        return TorchSampler(Qwen2.from_directory(self.directory), self.codec, inline=True)


def deal(models: Sequence[str], nodes: int) -> list[Kind]:
    """The kind of each node: the models are dealt in turn, as often as they are named. Those with
    the same name are one kind.

    Raises:
        ModelError: a model cannot be used.
    """
    kinds = {name: Kind(name) for name in dict.fromkeys(models)}
    return [kinds[models[index % len(models)]] for index in range(nodes)]


def model_digests(models: Sequence[str]) -> list[str]:
    """sha256 of each model, in hex: what a result depends on, unlike the paths.

    Raises:
        ModelError: there is no such model.
    """
    paths: list[Path] = [resolve(name) for name in models]
    return [policy_digests(path)[0].hex() for path in paths]
