"""The objective of an update: log-probs of a packed batch, losses, and which words count.

In: rows and log-probs.
Out: a loss and its statistics.
`processes` and `update` import it. It imports no other room of `training`.
"""
