"""How a policy version gets from the trainer to the sampler."""
