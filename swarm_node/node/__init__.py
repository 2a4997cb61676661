"""One running node.

Rooms, from the top: `start`; `control` and `preflight`; `loops` and `members`; `home` and
`figures`. A room imports only rooms of lower floors.
"""
