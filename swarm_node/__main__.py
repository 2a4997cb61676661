"""`python -m swarm_node` is `swarm-node`."""

from swarm_node.cli import app

app()
