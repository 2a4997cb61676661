"""Figures of a running node: snapshot, history, samples, curve, and the verdict on them.

In: counts and measurements of the loops.
Out: plain values that views show.
Every room of node but `home` may import it, and so may the packages above. It imports no other
room.
"""
