"""Adapters: classes that were written for other programs' trainers, as dialogues.

In come a class and the options of an environment; out comes a `Dialogue`. The registry alone
imports this room.
"""
