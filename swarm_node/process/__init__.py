"""One protocol for the children of a node: the trainer, the environment and the inference engine.

A CUDA error, an out-of-memory kill or a scorer that never returns ends a child, never the node.
Parent and child exchange numbered frames over the child's standard input and output. Each frame
holds a tagged msgspec Struct: the worker declares its requests and replies, and decodes both with
one decoder. `frames` has the bytes, `child` the parent's end, `server` the child's end. `leader`
ends the child's process group with its parent.
"""

from swarm_node.process.child import Child, ReportedError, ended_by, exchange
from swarm_node.process.leader import LEADER, die_with_parent
from swarm_node.process.server import answering, serve, serve_concurrently, serve_frames

__all__ = [
    "LEADER",
    "Child",
    "ReportedError",
    "answering",
    "die_with_parent",
    "ended_by",
    "exchange",
    "serve",
    "serve_concurrently",
    "serve_frames",
]
