"""The network over py-libp2p, in a process of its own.

`messages` is the protocol between the node and that process. `daemon` is the node's end and imports
no py-libp2p: its protobuf messages collide with hivemind's. `process` is the other end, `host` the
links, `hardened` the limits that py-libp2p lacks.
"""
