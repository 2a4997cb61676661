"""Studies of the swarm, beside the program: `python -m research --help`."""
