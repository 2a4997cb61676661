"""swarm-node: post-train language models together by sharing signed rollouts.

`connect` and `start` give a running node as an object, `member` a place in a swarm for a trainer of
your own, `simulate` a whole swarm's curves; see docs/library.md. Each name is imported when it is
first used, so that `import swarm_node` is quick.
"""

from typing import TYPE_CHECKING

from swarm_node.version import __version__

__all__ = [
    "NodeHistory",
    "RunningNode",
    "SimulationReport",
    "StartedNode",
    "SwarmMember",
    "SwarmNodeError",
    "__version__",
    "connect",
    "errors",
    "member",
    "simulate",
    "start",
]

if TYPE_CHECKING:
    from swarm_node import errors
    from swarm_node.errors import SwarmNodeError
    from swarm_node.library.history import NodeHistory
    from swarm_node.library.member import SwarmMember, member
    from swarm_node.library.running import RunningNode, connect
    from swarm_node.library.simulating import simulate
    from swarm_node.library.starting import StartedNode, start
    from swarm_node.simulation.report import SimulationReport
else:
    _PLACES = {
        "NodeHistory": "library.history",
        "RunningNode": "library.running",
        "SimulationReport": "simulation.report",
        "StartedNode": "library.starting",
        "SwarmMember": "library.member",
        "SwarmNodeError": "errors",
        "connect": "library.running",
        "member": "library.member",
        "simulate": "library.simulating",
        "start": "library.starting",
    }

    def __getattr__(name):
        from importlib import import_module

        if name == "errors":
            return import_module("swarm_node.errors")
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        attribute = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
        globals()[name] = attribute
        return attribute

    def __dir__():
        return sorted({*globals(), *__all__})
