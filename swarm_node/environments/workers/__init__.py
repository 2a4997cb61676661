"""The environment's process, the scoring workers that it forks, and the sandbox that confines
them."""
