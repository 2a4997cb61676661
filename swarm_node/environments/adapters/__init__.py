"""Adapters: classes that were written for other programs' trainers, as multi-turn environments.

In: a class and the options of an environment.
Out: a `MultiTurnEnvironment`.
The registry alone imports this room.
"""
