"""Environments: sources of tasks and of their rewards."""

from swarm_node.environments.base import Environment, Task

__all__ = ["Environment", "Task"]
