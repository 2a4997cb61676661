"""The loops of a running node: sampling, learning, peers, evaluation, recording.

In: the parts that `start` built.
Out: groups, updates, snapshots.
`start`, `preflight` and `simulation` import it. It imports `home` and `figures`.
"""
