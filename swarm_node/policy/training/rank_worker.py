"""The program of each rank, where several processes train together. The first rank answers the
node and broadcasts every request; all ranks carry it out together."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import msgpack

from swarm_node.errors import SwarmNodeError
from swarm_node.process import die_with_parent, serve

_log = logging.getLogger(__name__)


def main(directory: Path) -> None:
    """Serve until the node closes the pipe; `directory` is for these processes alone."""
    die_with_parent()
    # After that: these take seconds, and one that nobody watches waits for the others for ever.
    from swarm_node.policy.training.sharded import Group
    from swarm_node.policy.training.worker import TrainerWorker

    group = Group(directory)
    worker = TrainerWorker(group)

    def tell_all(request: dict[str, Any]) -> dict[str, Any]:
        group.broadcast(msgpack.packb(request))
        return worker.handle(request)

    if group.index == 0:
        serve(tell_all)
        group.broadcast(b"")
    else:
        os.dup2(2, 1)  # the pipe to the node is the first one's
        while message := group.broadcast(b""):
            try:
                worker.handle(msgpack.unpackb(message))
            except (SwarmNodeError, ValueError) as error:
                _log.info("the first process reports: %s", error)
    group.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except BaseException:  # noqa: BLE001 - the edge of the process
        traceback.print_exc()
        # Not by way of destructors, which wait for processes that wait for this one.
        os._exit(1)
