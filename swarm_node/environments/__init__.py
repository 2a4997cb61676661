"""Environments: sources of tasks and judges of answers."""

from swarm_node.environments.base import Environment, Task

__all__ = ["Environment", "Task"]
