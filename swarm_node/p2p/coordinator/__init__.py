"""The signed statements and the JSON of a coordinator's API. Pure.

In: answers of a coordinator, requests of members.
Out: checked values, or a reason of refusal.
`node` and the package `coordinator` import it. It imports `membership` and `wire`.
"""
