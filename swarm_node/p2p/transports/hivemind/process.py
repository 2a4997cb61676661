"""The p2pd process: its files, its start, and its end after any failure.

This module also uses private parts of hivemind: `_child`, `_terminate`, `_make_process_args`, its
tasks and the names of its sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from swarm_node.durable import create_private
from swarm_node.errors import SlowStartError, TransportError
from swarm_node.p2p.transports.hivemind.calls import CALLS, FIND, PING, STORE, TableCall, TableCalls
from swarm_node.p2p.transports.timeouts import on_time
from swarm_node.p2p.wire.identity import Identity

#: protobuf PrivateKey{Type: Ed25519, Data: 64 bytes}, see libp2p's peer-ids specification.
_PRIVATE_KEY_HEAD = bytes.fromhex("08011240")
#: Without this setting p2pd relays for anyone, without the secret. Its flag -relay=0 does not stop
#: that.
CONFIGURATION = b'{"Relay":{"Enabled":false}}'
#: A Unix socket's path has at most 103 bytes on macOS, 107 on Linux. hivemind's names take 35.
_MOST_DIRECTORY_BYTES = 103 - 35


@contextlib.contextmanager
def private_file(path: Path, content: bytes) -> Generator[None]:
    """Write `content` with mode 0600 to `path` for p2pd to read, and remove it afterwards."""
    path.unlink(missing_ok=True)  # left by a crash; a link planted now is refused
    try:
        create_private(path, content)
        yield
    finally:
        path.unlink(missing_ok=True)


def private_key(identity: Identity) -> bytes:
    """Encode the private key in libp2p's format."""
    return _PRIVATE_KEY_HEAD + identity.seed() + identity.public_key


async def start_p2pd(
    configuration: Path, calls: TableCalls, patience: float, **settings: Any
) -> Any:
    """Call `P2P.create` with a configuration file. `P2P.create` alone accepts none, and leaves a
    process behind if it fails or is cancelled. `calls` answers all handlers that hivemind
    registers.

    Raises:
        SlowStartError: p2pd was not ready in `patience` seconds in which this node is on time.
    """
    from hivemind.p2p import P2P, P2PContext
    from hivemind.proto import dht_pb2

    responses = {
        PING: dht_pb2.PingResponse,
        FIND: dht_pb2.FindResponse,
        STORE: dht_pb2.StoreResponse,
    }

    instances = []

    class Observed(P2P):  # type: ignore[misc]
        # hivemind takes /tmp, whatever TMPDIR says.
        _UNIX_SOCKET_PREFIX = f"/unix{_socket_directory()}/hivemind-"

        def __init__(self) -> None:
            super().__init__()
            instances.append(self)

        async def add_protobuf_handler(
            self, name: str, handler: Any, request_type: Any, **_: Any
        ) -> None:
            """Register a call of the DHT behind its gate. The gate checks the secret, so the
            function inside `handler`'s own check is called."""
            method = name.rpartition(".")[2]
            if method not in CALLS:
                raise TransportError(f"hivemind's {name} has no gate", "install the pinned version")
            call = TableCall(method, handler.__wrapped__, request_type, responses[method])

            async def answer(raw: bytes, remote: Any) -> bytes:
                context = P2PContext(handle_name=name, local_id=self.peer_id, remote_id=remote)
                return await calls.answer(call, raw, remote.to_base58(), context)

            await self._client.add_unary_handler(name, answer, balanced=False)

        @staticmethod
        def _make_process_args(*args: Any, **kwargs: Any) -> Any:
            return P2P._make_process_args(*args, f=configuration, **kwargs)

    try:
        async with on_time(patience, asyncio.get_running_loop().time):
            return await Observed.create(**settings, startup_timeout=None)
    except BaseException as error:
        for p2p in instances:
            if p2p._child is not None:
                await terminate(p2p, grace=0.0)
        if isinstance(error, TimeoutError):
            reason = f"the network daemon was not ready in {patience:g} s"
            raise SlowStartError(f"{reason}: this machine does too much else") from None
        raise


def _socket_directory() -> str:
    directory = tempfile.gettempdir()
    # Other users cannot write to the sockets, and so not connect.
    return directory if len(os.fsencode(directory)) <= _MOST_DIRECTORY_BYTES else "/tmp"  # noqa: S108


async def terminate(p2p: Any, grace: float) -> None:
    """End p2pd and hivemind's tasks for it, also after an incomplete start."""
    tasks = [p2p._listen_task, p2p._reader_task]
    if p2p._client is not None:
        control = p2p._client.control
        tasks += [control._read_task, control._write_task, *control._handler_tasks.values()]
    live_tasks = [task for task in tasks if task is not None]
    p2p._terminate()
    try:
        await _end(p2p._child, grace)
    finally:
        _remove_sockets(p2p._daemon_listen_maddr, p2p._client_listen_maddr)
        for task in live_tasks:
            task.cancel()
        await asyncio.gather(*live_tasks, return_exceptions=True)


async def _end(child: asyncio.subprocess.Process, grace: float) -> None:
    """Wait for the end of p2pd, which was asked to end; kill it after `grace` seconds.

    If the caller is cancelled, p2pd is killed at once, and the cancellation is raised after its
    end. No other code holds p2pd, so its process and pipe would otherwise outlive the event loop.
    """
    transport = child._transport  # type: ignore[attr-defined]
    cancelled = None
    patience: float | None = grace
    while child.returncode is None:
        try:
            async with asyncio.timeout(patience):
                await child.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            cancelled = error if isinstance(error, asyncio.CancelledError) else cancelled
            patience = None
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            # Nobody reads the pipe any more. If it is full, asyncio would wait for ever.
            transport.get_pipe_transport(1).close()
    transport.close()
    if cancelled is not None:
        raise cancelled


def _remove_sockets(*multiaddrs: Any) -> None:
    for multiaddr in multiaddrs:
        Path(multiaddr["unix"]).unlink(missing_ok=True)
