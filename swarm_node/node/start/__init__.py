"""The start of a node: joins a swarm, derives settings, builds the parts and the node.

In: settings and a home.
Out: a running node, real or simulated.
`cli` and `simulation` import it. It imports all rooms below.
"""
