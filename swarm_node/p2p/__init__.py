"""The swarm's network, from signed bytes to the exchange of groups.

Rooms, from the top: `reach`; `exchange` and `coordinator`; `membership` and `transports`;
`peers`, `limits` and `addresses`; `wire`. A room imports only rooms of lower floors.
"""
