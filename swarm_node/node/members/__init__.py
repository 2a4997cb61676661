"""The owner's decisions on members: tickets, issuers, blocks, and statements of a delegate.

In: the words of the owner at the command line.
Out: tickets, ledgers and statements in the home.
`start` and `cli` import it. It imports `home` and `figures`.
"""
