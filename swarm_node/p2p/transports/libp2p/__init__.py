"""The network over py-libp2p, in a process of its own.

`messages` is the protocol between the node and that process. `daemon` is the node's end and imports
no py-libp2p: its protobuf messages collide with hivemind's. `process` is the other end, `host` the
links, `hardened` the limits that py-libp2p lacks.
"""

from importlib import util

from swarm_node.errors import extra_of

#: What installs it. On Linux pip compiles fastecdsa, which libp2p pins.
INSTALL = f"{extra_of('libp2p')}, on Linux after `apt-get install gcc libgmp-dev python3-dev`"


def is_installed() -> bool:
    """Check that py-libp2p is installed, without importing it."""
    return util.find_spec("libp2p") is not None
