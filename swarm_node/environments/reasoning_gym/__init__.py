"""Tasks of reasoning-gym, with our own scorers where the package evaluates answers as code."""

from swarm_node.environments.reasoning_gym.environment import PRESETS, choosable, create

__all__ = ["PRESETS", "choosable", "create"]
