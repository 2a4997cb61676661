"""Generated tasks that ship with the program.

In: a task's seed.
Out: `Environment`s and a `MultiTurnEnvironment`, made of random choices that are hashes of names.
The registry, presets and the builders of tiny models import this room.
"""
