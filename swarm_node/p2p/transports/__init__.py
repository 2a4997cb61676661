"""Transports: over hivemind's daemon, over py-libp2p, and in memory.

In: a peer's id and bytes to send; streams that peers open.
Out: replies, calls of the handlers, and `TransportError`.
Only the packages above import it. It imports `limits`, `addresses` and `wire`.
"""
