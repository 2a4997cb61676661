"""Ways to a node: probes, relays, hole punching and multicast on the LAN.

In: a transport, members, and findings of probes.
Out: a transport that also uses relays, and the verdict on how this node is reached.
Only the packages above import it. It imports all rooms below but `transports`.
"""
