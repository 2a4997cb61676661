"""The policy: models, sampling, training."""
