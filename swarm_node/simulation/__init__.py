"""A whole swarm in one process: the real node code on an in-memory network and a virtual clock."""
