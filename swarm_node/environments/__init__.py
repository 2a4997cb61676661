"""Environments: where tasks come from and how answers are judged."""

from swarm_node.environments.base import Environment, Task

__all__ = ["Environment", "Task"]
