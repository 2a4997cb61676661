"""Certificates, tickets, revocation lists, secrets, and the members now.

In: sealed statements of the root, issuers and delegates.
Out: the member that a key belongs to, or a reason of refusal.
Exchange, coordinator and reach import it, and so may the packages above. It imports
`addresses` and `wire`.
"""
