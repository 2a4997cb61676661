"""Replay windows, rate limits, size limits and budgets by peer and issuer.

In: a request's peer, size and time.
Out: admitted, or a reason of refusal.
Transports, exchange and reach import it, and so may the packages above. It imports `wire` alone.
"""
