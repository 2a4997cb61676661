"""The fit of a model to a machine: what a node asks, and how the machine is used for it."""
