"""Checkpoints of a training run on the disk, and models exported from them.

In: tensors of a trainer.
Out: files, and tensors read from them.
`processes`, `update` and `node` import it. It imports no other room of `training`.
"""
