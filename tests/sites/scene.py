"""Real nodes in a bed: `swarm-node join --model tiny`, one on a host."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from running import COMMAND, RunningNode
from sites.bed import Bed

#: Within what a router of kind OPEN forwards.
PORT = 20000


class Scene:
    """The nodes of one swarm, by the host on which they run. The first one to start founds it."""

    def __init__(self, bed: Bed, place: Path, *arguments: str) -> None:
        self.bed = bed
        self.nodes: dict[str, RunningNode] = {}
        #: Where nodes look for environments.
        self.path = [os.environ.get("PYTHONPATH", "")]
        #: Further variables of the node on a host.
        self.variables: dict[str, dict[str, str]] = {}
        self._place = place
        self._arguments = list(arguments)
        self._ticket = ""
        self._ids: dict[str, str] = {}

    def start(
        self, host: str, *further: str, listen: str = f"/ip4/0.0.0.0/tcp/{PORT}"
    ) -> RunningNode:
        """Start the node of a host, with `further` arguments of its own. It joins the swarm of the
        first one, by a ticket file."""
        arguments = [*self._arguments, *further]
        if "--model" not in arguments:
            arguments += ["--model", "tiny"]
        if self._ticket:
            arguments += ["--ticket-file", self._ticket]
        node = RunningNode(
            self._place / host,
            arguments,
            self.bed.command(host, COMMAND),
            listen=listen,
            variables={
                "PYTHONPATH": os.pathsep.join(filter(None, self.path)),
                **self.variables.get(host, {}),
            },
        )
        self.nodes[host] = node
        node.start()
        if not self._ticket:
            self._ticket = node.invite(uses=9)
        return node

    def invite(self, host: str, *arguments: str) -> None:
        """Let the nodes that start from now on join by a ticket that this node makes."""
        self._ticket = self.nodes[host].invite(9, *arguments, name="further")

    def peer_ids(self) -> dict[str, str]:
        """host -> peer id of every node, once all run."""
        for host, node in self.nodes.items():
            if host not in self._ids:
                status = node.wait(lambda status: status["state"] == "running")
                self._ids[host] = status["peer_id"]
        return self._ids

    def status(self, host: str) -> dict[str, Any] | None:
        """The status of a node, from its control API: quicker than a process of the command line.
        None while it does not answer."""
        try:
            where = json.loads((self.nodes[host].home / "control.json").read_text())
            with self.bed.socket_in(host) as end:
                end.settimeout(10)
                end.connect(("127.0.0.1", where["port"]))
                line = http.client.HTTPConnection("127.0.0.1", where["port"])
                line.sock = end
                headers = {"Authorization": f"Bearer {where['token']}"}
                line.request("GET", "/v1/status", headers=headers)
                return dict(json.loads(line.getresponse().read()))
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            return None

    def end(self) -> None:
        for node in self.nodes.values():
            node.end()


@contextmanager
def scene(bed: Bed, place: Path, *arguments: str) -> Iterator[Scene]:
    """A scene whose nodes are gone at the end. `arguments` are those of every `join`."""
    made = Scene(bed, place, *arguments)
    try:
        yield made
    finally:
        made.end()


def row(made: Scene, host: str, other: str) -> dict[str, Any]:
    """What the status of one host's node says of another's; {} while it knows it not."""
    peer_id = made.peer_ids()[other]
    rows = (made.status(host) or {"peers": []})["peers"]
    return next((each for each in rows if each["peer_id"] == peer_id), {})


def groups_by_author(node: RunningNode) -> dict[str, int]:
    """peer id -> groups of that author that came to a node; {} while it does not answer."""
    done = node.run("peers", "--json")
    if done.returncode != 0:
        return {}
    return {peer["peer_id"]: peer["accepted"] for peer in json.loads(done.stdout)["peers"]}


def until(what: Callable[[], Any], seconds: float, told: Callable[[], object]) -> None:
    """Wait until `what` holds, at most for so long; `told` is the message otherwise."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, told()
        time.sleep(0.5)
