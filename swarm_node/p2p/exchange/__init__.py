"""The exchange of groups: greets peers, publishes, lists, pulls and verifies.

In: own groups to publish; requests and replies of peers.
Out: verified groups of peers; replies; penalties in `peers`.
Reach imports it, and so may the packages above. It imports all rooms below.
"""
