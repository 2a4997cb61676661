"""`import swarm_node`: a running node, a node of one's own and the simulator as typed objects.

In: what a program calls; answers of the control API.
Out: records (`node/metrics`, `simulation/report`), and errors of the one exception tree.
`swarm_node/__init__.py` offers it to programs, and `cli` imports it.
"""
