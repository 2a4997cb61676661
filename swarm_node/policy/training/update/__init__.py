"""One update: gradient, optimizer and their settings.

In: a batch and a model.
Out: the model after the step, and statistics.
`processes`, `node` and `simulation` import it. It imports `checkpoints` and `objective`.
"""
