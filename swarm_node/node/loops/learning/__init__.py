"""The update: the mixture of a batch, and what an update has taught."""
