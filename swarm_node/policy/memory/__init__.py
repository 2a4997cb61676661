"""How many bytes a model takes, and how a machine's memory is divided."""
