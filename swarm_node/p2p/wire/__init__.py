"""Identity, sealed bytes, message bodies, framing, and the contract of a transport.

In: bytes of peers.
Out: typed values within their bounds, or a reason of refusal.
Every room of p2p may import it, and so may the packages above. It imports no other room.
"""
