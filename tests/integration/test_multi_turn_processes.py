"""A real node of dialogues that is killed between two turns."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from swarm_node.environments.splits.seeds import task_seed
from swarm_node.errors import Rejected
from swarm_node.p2p.wire.groups import unpack_group

SEED = 7


class Stored(NamedTuple):
    """What a node wrote: the number of tasks that it `began` and their seeds, and of each group the
    seed of its task, the turns of its dialogues, and how often it was trained on."""

    began: int
    seeds: set[int]
    tasks: dict[bytes, int]
    turns: dict[bytes, int]
    uses: dict[bytes, int]


def stored(database: Path, peer_id: str) -> Stored:
    with sqlite3.connect(database) as connection:
        groups = connection.execute("SELECT id, uses, blob FROM groups").fetchall()
        counted = "SELECT value FROM meta WHERE key = 'counter:tasks'"
        row = connection.execute(counted).fetchone()
    connection.close()
    began = row[0] if row else 0
    seeds = {task_seed("train", SEED, peer_id, number) for number in range(began)}
    tasks: dict[bytes, int] = {}
    turns: dict[bytes, int] = {}
    for identifier, _, blob in groups:
        unpacked = unpack_group(msgspec.msgpack.decode(blob)[1])
        assert not isinstance(unpacked, Rejected)
        tasks[identifier] = unpacked[1].task.seed
        assert tasks[identifier] in seeds
        turns[identifier] = max(1 + len(each.earlier_turns) for each in unpacked[1].completions)
    return Stored(began, seeds, tasks, turns, {identifier: uses for identifier, uses, _ in groups})


def in_a_dialogue(database: Path, peer_id: str, lost: int) -> Stored:
    """Wait until the node has been in the same dialogues for a while, besides those `lost` before:
    most of it goes by between two turns, with the environment's replies."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        before = stored(database, peer_id)
        time.sleep(0.3)
        now = stored(database, peer_id)
        open_now = now.began - len(now.tasks) > lost
        if open_now and before.began == now.began and len(now.tasks) == len(before.tasks):
            return now
    raise AssertionError("no dialogue within 300 s")


@pytest.mark.slow(reason="starts a real node of four processes that import torch, three times")
@pytest.mark.timeout(900)
def test_a_node_killed_between_two_turns_loses_the_dialogue_and_repeats_no_task(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    node = start_node(
        "alone",
        *("--model", "tiny-talk", "--set", "environment.name=slow_talk:create"),
        *("--set", f"run.seed={SEED}", "--set", "run.eval_tasks=1"),
        *("--set", "sampling.max_concurrent_groups=1", "--set", "sampling.group_size=4"),
        *("--set", "experience.local=2"),
        variables={"PYTHONPATH": str(Path(__file__).parent)},
    )
    database, lost, missing = tmp_path / "alone" / "node.db", set[int](), 0
    for _ in range(2):
        status = node.wait(lambda now: now["steps"] >= 2 and now["groups"]["sampled"] >= 4)
        peer_id = status["peer_id"]
        in_a_dialogue(database, peer_id, missing)
        node.kill()
        killed = stored(database, peer_id)
        assert killed.began - len(killed.tasks) > missing, "it was in a dialogue"
        missing = killed.began - len(killed.tasks)
        lost |= killed.seeds - {*killed.tasks.values()}
        node.start()
        enough = len(killed.tasks) + 3
        node.wait(lambda now, enough=enough: now["groups"]["sampled"] > enough)
        after = stored(database, peer_id)
        assert after.tasks.items() >= killed.tasks.items()
        assert all(after.uses[each] >= count for each, count in killed.uses.items())
    assert node.stop() == 0, node.log()
    ended = stored(database, peer_id)
    assert not lost & {*ended.tasks.values()}, "what was begun before is not sampled again"
    assert len({*ended.tasks.values()}) == len(ended.tasks), "no task twice"
    assert max(ended.uses.values()) == 1, "nothing is trained on twice"
    assert max(ended.turns.values()) == 2
