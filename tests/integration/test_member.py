"""Members for programs as they are used: real networks, judges and files, over loopback."""

from __future__ import annotations

import _thread
import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from in_memory import environment, tiny

import swarm_node
from swarm_node.errors import CompletionError, NotRunningError
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.groups import MemberTask, PublishedGroup
from swarm_node.rollout import TaskRef

TESTS = Path(__file__).resolve().parents[1]
SETTINGS = {
    "network.listen": ["/ip4/127.0.0.1/tcp/0"],
    "network.poll_seconds": 0.3,
    "sampling.group_size": 2,
}
SECONDS = 120.0

pytestmark = [
    pytest.mark.slow(reason="starts network daemons and environments' processes"),
    pytest.mark.timeout(900),
]


def founded(home: Path) -> tuple[Home, Callable[[list[str]], str]]:
    """The home of a new swarm's owner, and a maker of its tickets."""
    owner = Home(home)
    owner.found_swarm("team", time.time())

    def invited(addresses: list[str]) -> str:
        return owner.invite(addresses, now=time.time(), valid_seconds=3600, member_seconds=86_400)

    return owner, invited


def publish(
    swarm: swarm_node.SwarmMember, task: MemberTask, texts: list[str], **more: object
) -> PublishedGroup:
    codec = tiny().codec
    ids = [[*codec.encode_answer(text), codec.eos_id] for text in texts]
    return swarm.publish(task, ids, [[-0.5] * len(each) for each in ids], 3, **more)  # type: ignore[arg-type]


def right(task: MemberTask) -> str:
    known = environment()
    ref = TaskRef(known.name, known.version, task.family, task.seed)
    answer = known.answer(known.derive(ref))  # type: ignore[attr-defined]
    assert isinstance(answer, str)
    return answer


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def test_two_programs_exchange_groups_and_a_third_is_told_its_environment(tmp_path: Path) -> None:
    before = {*psutil.Process().children(recursive=True)}
    owner, invited = founded(tmp_path / "owner")
    first = swarm_node.member(home=owner.path, settings=SETTINGS)
    with first:
        addresses = first.status().addresses
        path = tmp_path / "ticket"
        path.write_text(invited(addresses))
        with swarm_node.member(path, SETTINGS) as second:
            own, other = first.tasks(2)
            assert first.score(own, [right(own), "?"]) == (1.0, 0.0)
            with pytest.raises(CompletionError, match=r"'\?', has reward 1"):
                publish(first, own, [right(own), "?"], rewards=[1.0, 1.0])
            given = publish(first, own, [right(own), "?"], rewards=[1.0, 0.0])
            assert (given.rewards, given.announced) == ((1.0, 0.0), True)
            assert publish(first, other, [right(other), "?"]).announced
            drawn = second.draw(2, wait=SECONDS)
            assert {group.seed for group in drawn} == {own.seed, other.seed}
            for group in drawn:
                task = own if group.seed == own.seed else other
                assert [answer.text for answer in group.completions] == [right(task), "?"]
                assert [answer.reward for answer in group.completions] == [1.0, 0.0]
                assert (group.provenance, group.age) == ("same_model", 0)
            assert second.status().groups.trained_external == 2
            (peer,) = second.peers()
            assert (peer.name, peer.standing) == ("owner", "member")
            with pytest.raises(NotRunningError, match="no node"):
                swarm_node.connect(second.home)
        chat = {**SETTINGS, "environment.options": {"preset": "chat"}}
        with swarm_node.member(invited(addresses), chat) as third:
            until(lambda: "environment" in {said.kind for said in third.status().findings})
            assert third.draw(1) == []
    with pytest.raises(NotRunningError, match="closed"):
        first.tasks()
    first.close()
    assert {*psutil.Process().children(recursive=True)} <= before
    with swarm_node.member(home=owner.path, settings=SETTINGS) as again:
        assert {task.seed for task in again.tasks(2)}.isdisjoint({own.seed, other.seed})
        assert again.status().groups.sampled == 2


@pytest.mark.usefixtures("hears_ctrl_c")
def test_neither_a_fork_nor_an_interrupt_takes_anything_from_a_member(tmp_path: Path) -> None:
    """Loaders of training data fork a program, and notebooks interrupt it."""
    _, invited = founded(tmp_path / "owner")
    nowhere = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWJ14duBaa4AvnvAsN3BEfwwE9h8X7suynZWM1EJBWq1sh"
    with swarm_node.member(invited([nowhere]), SETTINGS) as swarm:
        child = os.fork()
        if not child:
            try:
                with pytest.raises(NotRunningError, match="a fork"):
                    swarm.tasks(1)
                swarm.close()
            except BaseException:  # noqa: BLE001 - pytest must not go on in the fork
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert swarm.home.exists()
        threading.Timer(1.0, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            swarm.draw(1, wait=SECONDS)
        (task,) = swarm.tasks(1)
        assert publish(swarm, task, [right(task), "?"]).announced
        assert swarm._loop is not None
        waiting = {each.get_coro().__qualname__ for each in asyncio.all_tasks(swarm._loop)}  # type: ignore[union-attr]
        assert "ProgramNode.draw" not in waiting  # it would take groups that nobody sees
    assert not swarm.home.exists()
