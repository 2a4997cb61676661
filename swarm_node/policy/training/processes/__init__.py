"""The trainer's process, and several of them that train as one.

In: batches, over a pipe.
Out: statistics of updates, and new versions of the weights.
`node` imports it. It imports every other room of `training`.
"""
