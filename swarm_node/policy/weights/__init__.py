"""Transport of a policy version from the trainer to the sampler."""

#: Published versions that stay: the sampler uses one while it is told of the other.
KEEP_VERSIONS = 2
