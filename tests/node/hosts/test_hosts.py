"""A trainer over two hosts: both are on this machine, each with processes of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from builders import trainer_settings
from safetensors.torch import load_file
from transports import until

from swarm_node.errors import ChildError, ConfigError
from swarm_node.node.hosts.hosts import (
    Challenge,
    Hello,
    Hosts,
    HostWork,
    Needs,
    Welcome,
    interface_of,
    proof,
    receive,
    release,
    send,
    shut,
)
from swarm_node.node.hosts.worker_host import WorkerHost
from swarm_node.p2p.addresses.addresses import unused_port
from swarm_node.p2p.wire.identity import Identity
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.models.model import policy_digests
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.policy.training.processes.launching import MEETING
from swarm_node.policy.training.processes.process import ProcessTrainer
from swarm_node.policy.training.update.settings import TrainerSettings
from swarm_node.process.frames import make_frame
from swarm_node.rollout import Provenance

pytestmark = pytest.mark.slow(reason="processes wait for each other over sockets")

MORE = pytest.mark.nightly(reason='test_sharded.py has it on one host, and "one each" has hosts')

torch.set_num_threads(1)
KEY = bytes(range(32))
SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2, micro_batch_tokens=40)


def batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)

    def ids(size: int) -> Any:
        return rng.integers(0, 63, size).astype(np.uint32)

    prompts = [ids(3), ids(18)]
    return Batch(
        tuple(
            TrainRow(
                prompts[n % 2], ids(4 + n), None, float(rng.normal()), Provenance.LOCAL, group=n % 2
            )
            for n in range(8)
        )
    )


def free_address() -> str:
    return f"127.0.0.1:{unused_port()}"


def hosts_at(address: str, device: str = "cpu", count: int = 2) -> Hosts:
    return Hosts(f"{address}*{count}", KEY, Needs(b"m" * 32, 1, device, 1))


async def admitted(hosts: Hosts) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has proved itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hosts.port)
    challenge: Challenge = await receive(reader, Challenge)
    said = [release(), b"m" * 32]
    send(writer, Hello(b"h", *said, proof(KEY, "host", (challenge.nonce, b"h"), said)))
    return reader, writer


async def nothing() -> None:
    pass


async def attended(
    tmp_path: Path,
    key: bytes,
    model: bytes,
    node: Callable[[Hosts], Awaitable[object]],
    device: str = "cpu",
) -> list[str]:
    """What a host says that attends while `node` goes on, and after it the node's end."""
    address, said = free_address(), list[str]()
    hosts = hosts_at(address, device)
    attendant = WorkerHost(address, key, tmp_path, model, tmp_path / "host", said.append)
    try:
        async with asyncio.TaskGroup() as tasks:
            attending = tasks.create_task(attendant.attend())
            await node(hosts)
            await hosts.close()
            await attending
    finally:
        await hosts.close()
    return said


@pytest.mark.parametrize(
    ("key", "model", "device", "why"),
    [
        (b"another key, of thirty-two bytes", b"m" * 32, "cpu", "copy site.key"),
        (KEY, b"o" * 32, "cpu", "give the same --model"),
        (KEY, b"m" * 32, "cuda:98", "run.device = 'cuda:98'"),
    ],
    ids=["another key", "another model", "no such GPU"],
)
def test_a_host_that_cannot_take_part_ends_and_says_why(
    tmp_path: Path, key: bytes, model: bytes, device: str, why: str
) -> None:
    async def node(hosts: Hosts) -> None:
        await hosts.gather(30, nothing)
        await until(lambda: not hosts.complete)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(attended(tmp_path, key, model, node, device))
    (error,) = caught.value.exceptions
    assert isinstance(error, ConfigError)
    assert why in str(error)


async def test_a_host_does_not_obey_who_has_not_the_key(tmp_path: Path) -> None:
    address = free_address()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        send(writer, Challenge(bytes(32)))
        hello: Hello = await receive(reader, Hello)
        task, nonces = HostWork(1, 2, 1, "cpu", 1, 1), (bytes(32), hello.nonce)
        send(writer, Welcome(task, proof(b"another key", "node", nonces, task)))
        await reader.read()
        await shut(writer)

    name, port = address.split(":")
    async with await asyncio.start_server(serve, name, int(port)):
        with pytest.raises(ConfigError, match="the key"):
            await WorkerHost(address, KEY, tmp_path, b"m", tmp_path / "host", print).attend()


def test_strangers_are_turned_away_and_a_host_that_waits_hears_of_the_end(tmp_path: Path) -> None:
    async def node(hosts: Hosts) -> None:
        with pytest.raises(ChildError, match=r"0 .*127.*trainer_hosts"):
            await hosts.gather(0, nothing)
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1" + bytes(9), b"", make_frame(0, b"{")):
            reader, writer = await asyncio.open_connection("127.0.0.1", hosts.port)
            writer.write(junk)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 30)
            assert answer.count(b"Challenge") == 1
            assert b"Welcome" not in answer
            await shut(writer)
        await until(lambda: hosts.waiting == 1)

    said = asyncio.run(attended(tmp_path, KEY, b"m" * 32, node))
    assert len(said) == 3
    assert "has ended" in said[-1]


async def test_a_host_that_went_before_all_had_come_is_not_counted() -> None:
    hosts = hosts_at(free_address(), count=3)
    with pytest.raises(ChildError):
        await hosts.gather(0, nothing)
    _, writer = await admitted(hosts)
    await until(lambda: hosts.waiting == 1)
    await shut(writer)
    await until(lambda: hosts.waiting == 0)
    _, writer = await admitted(hosts)
    with pytest.raises(ChildError, match="1 of 2"):
        await hosts.gather(1, nothing)
    await shut(writer)
    await hosts.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", hosts.port)


async def test_a_host_that_waits_takes_the_place_of_one_that_is_lost() -> None:
    hosts, lost = hosts_at(free_address()), asyncio.Event()

    async def note() -> None:
        lost.set()

    with pytest.raises(ChildError):
        await hosts.gather(0, nothing)
    first, spare = await admitted(hosts), await admitted(hosts)
    await until(lambda: hosts.waiting == 2)
    for (reader, writer), left in ((first, 1), (spare, 0)):
        lost.clear()
        variables = await hosts.gather(30, note)
        welcome: Welcome = await receive(reader, Welcome)
        assert (welcome.task.index, welcome.task.hosts, hosts.waiting) == (1, 2, left)
        assert f'"port":{welcome.task.port}' in variables[MEETING]
        assert hosts.complete
        await shut(writer)
        await asyncio.wait_for(lost.wait(), 30)
        assert not hosts.complete
    await hosts.close()


def test_an_address_that_is_not_here_is_refused_by_the_name_of_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:1 \(cannot assign"):
        asyncio.run(hosts_at("192.0.2.1:1").gather(1, nothing))
    with pytest.raises(ConfigError, match=r"trainer_hosts: .*0\.0\.0\.0"):
        interface_of("0.0.0.0")


class Site:
    """A node's trainer on this host, and a second host: `swarm-node train-host`."""

    def __init__(self, model: Path, home: Path, settings: TrainerSettings) -> None:
        self.address, self.home, self.model = free_address(), home, model
        Identity.from_seed(KEY).save(home / "site.key")
        weights = home / "weights"
        weights.mkdir(mode=0o700)
        self.started: list[subprocess.Popen[bytes]] = []
        digest = policy_digests(model)[0]
        needs = Needs(digest, settings.processes, "cpu", 1)
        self.trainer = ProcessTrainer(
            model,
            home / "checkpoints",
            weights,
            replace(settings, hosts=2),
            digest=digest,
            hosts=Hosts(f"{self.address}*2", KEY, needs),
        )

    def start_host(self) -> subprocess.Popen[bytes]:
        arguments = ["train-host", self.address, "--key", str(self.home / "site.key")]
        arguments += ["--model", str(self.model), "--home", str(self.home / "second")]
        with (self.home / "log").open("ab") as log:
            host = subprocess.Popen([sys.executable, "-m", "swarm_node", *arguments], stderr=log)
        self.started.append(host)
        return host


@pytest.mark.slow(reason="starts two process trees that import torch and train together")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "changes",
    [{}, *(pytest.param(more, marks=MORE) for more in ({"processes": 2}, {"lora_rank": 4}))],
    ids=["one each", "two each", "an adapter"],
)
def test_two_hosts_learn_as_one_process_does_and_go_on_after_one_was_killed(
    random_qwen2: Path, tmp_path: Path, changes: dict[str, int]
) -> None:
    for name in ("alone", "alone/weights", "site"):
        (tmp_path / name).mkdir(mode=0o700)
    both = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    places = random_qwen2, tmp_path / "alone/checkpoints", tmp_path / "alone/weights"
    alone = InlineTrainer(*places, replace(both, processes=1))
    site = Site(random_qwen2, tmp_path / "site", both)

    async def updates(seeds: range) -> None:
        for seed in seeds:
            one, two = await alone.update(batch(seed)), await site.trainer.update(batch(seed))
            assert two.stats.loss == pytest.approx(one.stats.loss, abs=1e-5)
            assert two.stats.version == one.stats.version
            theirs = load_file(two.weights)
            for key, value in load_file(one.weights).items():
                torch.testing.assert_close(theirs[key], value, atol=1e-4, rtol=1e-3)

    async def scenario() -> None:
        await alone.start()
        second = site.start_host()
        await site.trainer.start()
        await updates(range(3))
        await alone.checkpoint({"stored": 3})
        await site.trainer.checkpoint({"stored": 3})
        ranks = psutil.Process(second.pid).children(recursive=True)
        second.kill()
        second.wait()
        _, alive = await asyncio.to_thread(psutil.wait_procs, ranks, 30)
        assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
        with pytest.raises(ChildError, match=r"died|running"):
            await site.trainer.update(batch(3))
        second = site.start_host()
        await site.trainer.start()
        assert site.trainer.extra == {"stored": 3}
        await updates(range(3, 5))
        os.kill(site.trainer.pid, signal.SIGKILL)  # the node's side: the host goes on with it
        # Until its end is noticed, its ranks may still answer.
        await until(lambda: site.trainer.pid is None)
        with pytest.raises(ChildError, match=r"died|running"):
            await site.trainer.update(batch(5))
        await site.trainer.start()
        assert second.poll() is None
        await alone.start()
        await updates(range(5, 6))
        await site.trainer.close()
        assert await asyncio.to_thread(second.wait, 60) == 0
        await alone.close()

    asyncio.run(guarded(site, scenario))


async def guarded(site: Site, scenario: Callable[[], Awaitable[None]]) -> None:
    try:
        await scenario()
    finally:
        await site.trainer.close()
        for host in site.started:
            host.kill()
            host.wait(30)
