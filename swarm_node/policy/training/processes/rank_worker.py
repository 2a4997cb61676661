"""The program of each of several trainer processes.

The first process reads the node's requests and broadcasts them. All processes carry out each
request together. The first one answers. A process on another host reads the model of its own host.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from swarm_node.process import LEADER, answering, die_with_parent, serve_frames


def main(directory: Path) -> None:
    """Serve until the node closes the pipe; `directory` is for these processes alone."""
    # The launcher starts each process in a group of its own, which nobody kills. This comes before
    # the imports, which take seconds: a process that outlives the launcher waits for the others.
    die_with_parent(int(os.environ[LEADER]))
    import msgspec

    from swarm_node.policy.training.processes.messages import Request
    from swarm_node.policy.training.processes.sharded import Group
    from swarm_node.policy.training.processes.worker import TrainerWorker, elsewhere

    group = Group(directory)
    worker = TrainerWorker(group)
    answer = answering(worker.handle, Request)
    place, decode = group.discovery, msgspec.msgpack.Decoder(Request).decode
    if group.index == 0:
        serve_frames(lambda request: answer(group.broadcast(request)))
        group.broadcast(b"")
    else:
        os.dup2(2, 1)  # only the first process writes to the node
        while request := group.broadcast(b""):
            if place is None or not place.index:
                answer(request)
            else:  # an error here ends all processes: those of the node may not have met it
                worker.handle(elsewhere(decode(request), place))
    group.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except BaseException:  # noqa: BLE001 - the edge of the process
        traceback.print_exc()
        # Not by way of destructors, which wait for processes that wait for this one.
        os._exit(1)
