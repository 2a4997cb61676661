"""The peers of a node: partners, address book, back-off, and scores. Pure.

In: what peers offered, told and did.
Out: the peer to try or draw from next.
Exchange and reach import it, and so may the packages above. It imports no other room.
"""
