"""`python -m swarm_node` is `swarm-node`."""

from swarm_node.cli.main import app

app()
