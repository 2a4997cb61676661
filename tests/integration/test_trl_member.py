"""TRL's GRPOTrainer as a member: it learns a family from peers alone, and peers get its groups."""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from builders import ROOT
from in_memory import environment, tiny

import swarm_node
from swarm_node.environments.splits.seeds import held_out_seed
from swarm_node.node.home.home import Home
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.rollout import TaskRef

PYTHON = ROOT / ".venv-trl" / "bin" / "python"
LISTEN = "/ip4/127.0.0.1/tcp/0"
TASKS = 128

pytestmark = [
    pytest.mark.nightly(reason="needs an environment with TRL"),
    pytest.mark.slow(reason="TRL trains the tiny model for 150 updates"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (PYTHON.parent.parent / ".ready-with-member").exists(),
        reason="NOT RUN: make .venv-trl/.ready-with-member",
    ),
]


def solution(ref: TaskRef) -> str:
    known = environment()
    answer = known.answer(known.derive(ref))  # type: ignore[attr-defined]
    assert isinstance(answer, str)
    return answer


def held_out(family: str, weights: Path | None) -> float:
    """Reward (pass@1) of the tiny model with these weights on unseen texts of a family."""
    known, sampler = environment(), tiny().sampler()
    tasks = [
        known.derive(TaskRef(known.name, known.version, family, held_out_seed(family, index)))
        for index in range(TASKS)
    ]

    async def sampled() -> list[str]:
        if weights is not None:
            await sampler.load(weights, 1)
        requests = [
            SampleRequest(tiny().codec.encode_prompt(known.render(task)), 1, task.ref.seed, 24)
            for task in tasks
        ]
        return [group[0].text for group in await sampler.sample(requests)]

    texts = asyncio.run(sampled())
    return statistics.fmean(map(known.score, tasks, texts))


class Feeding(threading.Thread):
    """Publishes groups of right and wrong answers to a member's tasks until it is left."""

    def __init__(self, swarm: swarm_node.SwarmMember) -> None:
        super().__init__(daemon=True)
        self._swarm, self._left = swarm, threading.Event()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self.join()

    def run(self) -> None:
        known, codec = environment(), tiny().codec
        while not self._left.wait(0.5):
            for task in self._swarm.tasks(8):
                right = solution(TaskRef(known.name, known.version, task.family, task.seed))
                texts = [right, right, right[::-1] + "?", "?"]
                ids = [[*codec.encode_answer(text), codec.eos_id] for text in texts]
                self._swarm.publish(task, ids, [[-0.5] * len(each) for each in ids], 0)


def test_trl_learns_a_family_that_it_never_samples_and_peers_get_its_groups(
    tmp_path: Path,
) -> None:
    owner = Home(tmp_path / "owner")
    owner.found_swarm("team", time.time())
    settings = {
        "network.listen": [LISTEN],
        "network.poll_seconds": 0.3,
        "environment.families": ["doubling"],
    }
    with swarm_node.member(home=owner.path, settings=settings) as peer:
        ticket = tmp_path / "ticket"
        ticket.write_text(
            owner.invite(
                peer.status().addresses,
                now=time.time(),
                valid_seconds=3600,
                member_seconds=86_400,
            )
        )
        command = [
            *(str(PYTHON), str(ROOT / "examples" / "trl_member.py"), "--ticket-file", str(ticket)),
            *("--families", "sorting", "--listen", LISTEN, "--updates", "150"),
            *("--save", str(tmp_path / "trained")),
        ]
        with Feeding(peer):
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )
        assert done.returncode == 0, done.stderr[-2000:]
        drawn = peer.draw(4, wait=10.0)
        assert {group.family for group in drawn} == {"sorting"}
        assert {group.provenance for group in drawn} == {"same_model"}
    before = held_out("doubling", None)
    after = held_out("doubling", tmp_path / "trained" / "model.safetensors")
    assert after >= before + 0.1, f"{before} before, {after} after"


def test_real_nodes_train_on_the_groups_of_trl() -> None:
    """A short run of the benchmark, whose figures say nothing else."""
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "benchmarks" / "trl_swarm.py", "--trl-python", PYTHON),
            *("--seeds", "0", "--updates", "150", "--seconds", "300", "--eval-tasks", "8"),
        ],
        capture_output=True,
        text=True,
        timeout=800,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    taught = re.findall(r"by (\d+) of its groups", done.stdout)
    assert len(taught) == 2
    assert all(int(groups) > 0 for groups in taught), done.stdout
    (drawn,) = re.findall(r"TRL member.* (\d+) groups of peers", done.stdout)
    assert int(drawn) > 0
