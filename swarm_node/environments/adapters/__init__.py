"""Adapters: classes that were written for other programs' trainers, as dialogues.

In: a class and the options of an environment.
Out: a `Dialogue`.
The registry alone imports this room.
"""
