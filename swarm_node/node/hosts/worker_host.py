"""A further host of a trainer: runs its processes whenever the node starts its trainer."""

from __future__ import annotations

import asyncio
import hmac
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from swarm_node.errors import ConfigError, reason_of, words_of
from swarm_node.node.hosts.hosts import (
    Challenge,
    Hello,
    HostWork,
    NodeEnded,
    Refused,
    Welcome,
    interface_of,
    proof,
    receive,
    release,
    send,
    shut,
    watch,
)
from swarm_node.policy.placement import hardware, place
from swarm_node.policy.training.processes.launching import (
    RANK_MODULE,
    Rendezvous,
    launch_ranks,
    rank_environment,
)
from swarm_node.process import Child

_RETRY_SECONDS = 1.0
_LOOK_SECONDS = 0.5
_FIRST_SECONDS = 10.0
#: A node that ends well says so soon after its processes have ended.
_LAST_SECONDS = 10.0


class WorkerHost:
    """The host's end of `hosts.Hosts`."""

    def __init__(
        self,
        node: str,
        key: bytes,
        model_dir: Path,
        digest: bytes,
        directory: Path,
        tell: Callable[[str], object],
    ) -> None:
        """`node` is "HOST:PORT"; `digest` is the sha256 of the model in `model_dir`. `directory` is
        for this host alone, and emptied: copies of checkpoints lie there. `tell` gets a line
        whenever what this host waits for changes."""
        self._node, self._key = node, key
        self._model_dir, self._digest = model_dir, digest
        self._directory = directory
        self._tell = tell
        self._last_message = ""

    async def attend(self) -> None:
        """Run until the node ends.

        Raises:
            ConfigError: the node refuses this host, or this machine cannot do what it asks.
        """
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True, mode=0o700)
        name, _, port = self._node.rpartition(":")
        while True:
            try:
                reader, writer = await asyncio.open_connection(name, int(port))
            except OSError as error:
                self._say(f"waiting for the node at {self._node} ({reason_of(error)})")
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                watch(writer)
                if await self._take_part(reader, writer):
                    self._say("the node has ended")
                    return
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                self._say(f"lost the node at {self._node} ({words_of(error)})")
            finally:
                await shut(writer)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _take_part(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Train while the connection stands. True if the node ended for good."""
        async with asyncio.timeout(_FIRST_SECONDS):
            challenge: Challenge = await receive(reader, Challenge)
        nonces = challenge.nonce, os.urandom(len(challenge.nonce))
        claims = [release(), self._digest]
        send(writer, Hello(nonces[1], release(), self._digest, self._proof("host", nonces, claims)))
        self._say(f"the node at {self._node} is there: waiting until it starts its trainer")
        answer: Welcome | Refused | NodeEnded = await receive(reader, Welcome | Refused | NodeEnded)
        if isinstance(answer, NodeEnded):
            return True
        if isinstance(answer, Refused):
            raise ConfigError(f"the node at {self._node} refuses this host: {answer.reason}")
        if not hmac.compare_digest(answer.proof, self._proof("node", nonces, answer.task)):
            raise ConfigError(
                f"the node at {self._node} does not have the key of this host", "check the address"
            )
        address, _ = writer.get_extra_info("peername")[:2]
        local_address, _ = writer.get_extra_info("sockname")[:2]
        return await self._train(answer.task, address, interface_of(local_address), reader)

    async def _train(
        self, task: HostWork, address: str, interface: str, reader: asyncio.StreamReader
    ) -> bool:
        # It refuses missing devices.
        place(task.device, "auto", hardware(task.device), ranks=task.processes)
        directory = self._directory
        rendezvous = Rendezvous(
            task.index, task.hosts, address, task.port, str(self._model_dir), str(directory)
        )
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(task.threads))
        child = Child(
            "trainer",
            RANK_MODULE,
            Welcome,
            env={**threads, **rank_environment(), **rendezvous.environment(interface)},
            launch=partial(launch_ranks, directory, task.processes),
        )
        await child.start()
        self._say(f"training as host {task.index} of 0 to {task.hosts - 1}")
        try:
            while child.alive:
                has_ended = await _wait_for_end(reader, _LOOK_SECONDS)
                if has_ended is not None:
                    return has_ended
            self._say("the processes of this host have ended")
            return bool(await _wait_for_end(reader, _LAST_SECONDS))
        finally:
            await child.stop(grace=0.0)

    def _proof(self, role: str, nonces: tuple[bytes, bytes], payload: object) -> bytes:
        return proof(self._key, role, nonces, payload)

    def _say(self, text: str) -> None:
        if text != self._last_message:
            self._tell(text)
        self._last_message = text


async def _wait_for_end(reader: asyncio.StreamReader, seconds: float) -> bool | None:
    """Wait for the node's word to a host that trains: True if it ended for good, False if the
    connection breaks without a word, None if nothing happens within `seconds`."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return bool(await reader.read(1))
    except TimeoutError:
        if not limit.expired():  # the timeout of the connection itself
            raise
        return None
