"""Memory of a model in bytes, and the division of a machine's memory."""
