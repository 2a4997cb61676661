"""Multiaddrs, circuit addresses, and the ranges of the Internet.

In: texts from tickets, settings and peers.
Out: checked hosts and ports, or a reason of refusal.
Every room of p2p above may import it, and so may the packages above. It imports `wire` alone.
"""
