"""Tasks of reasoning-gym, with scorers of our own where the package evaluates answers."""

from swarm_node.environments.reasoning_gym.environment import PRESETS, choosable, corpus, create

__all__ = ["PRESETS", "choosable", "corpus", "create"]
