"""swarm-node: post-train language models together by sharing signed rollouts."""

__version__ = "0.2.0"
