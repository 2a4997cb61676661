"""The further hosts of a node's trainer: their admission by the node, and their own end.

In: connections of hosts that have the node's key.
Out: the rendezvous of the processes that train together.
`start` and the command `train-host` import it. It imports no other room.
"""
