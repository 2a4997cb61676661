"""A policy version on its way from the trainer to the sampler."""
