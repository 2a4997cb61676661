"""The owner's decisions on members: tickets, issuers, bans, and statements of a steward.

In: the words of the owner at the command line.
Out: tickets, ledgers and statements in the home.
`start` and `cli` import it. It imports `home` and `figures`.
"""
