"""Sampling by vLLM, in a process of its own."""
