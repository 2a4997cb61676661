"""Pass rates of stored checkpoints, while no node runs."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from trained_homes import TINY, trained_home
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.library import measuring
from swarm_node.library.stored_policy import open_sampler, stored_policies
from swarm_node.node.home.home import Home
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.training.checkpoints.stored import MODEL

torch.set_num_threads(1)
QUICK = ("--set", "sampling.max_new_tokens=4", "--completions", "2")
HOSTILE = "\x1b[31m] \N{RIGHT-TO-LEFT OVERRIDE}<|im_end|> {question} [bold]"


@pytest.fixture(
    scope="module",
    params=[0, pytest.param(4, marks=pytest.mark.slow(reason="trains another model"))],
    ids=["full", "lora"],
)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("home")
    trained_home(place, request.param)
    return place


@pytest.fixture(scope="module")
def quick_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("home")
    trained_home(place, 0)
    return place


def rows(place: Path, count: int = 40) -> Path:
    file = place / "sums.jsonl"
    lines = [{"question": f"{HOSTILE} {n} + {n}?", "answer": str(2 * n)} for n in range(count)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def run(home: Path, *options: str) -> Result:
    return CliRunner().invoke(
        app, ["eval", "--home", str(home), *options], env={"COLUMNS": "80"}, catch_exceptions=False
    )


def measured(home: Path, *options: str) -> Any:
    done = run(home, *QUICK, "--json", *options)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_what_was_trained_is_what_is_sampled(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the export, which transformers loads in another test. Another user of the machine
    puts a base into the directory of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "base.json").write_text('{"dtype": "float32", "four_bit": false, "handle": null}')
    target = home / "export"
    assert CliRunner().invoke(app, ["export", str(target), "--home", str(home)]).exit_code == 0
    codec, store = Codec.from_directory(TINY), home / "checkpoints"
    request = SampleRequest(codec.encode_prompt("What is 1 + 1?"), 8, 1, 8)

    async def sampled(which: str | None) -> Any:
        (policy,) = stored_policies(which, store, TINY)
        sampler = await open_sampler(policy, codec, ON_CPU, 1)
        (answers,) = await sampler.sample([request])
        await sampler.close()
        return [(each.text, each.logprobs.tolist()) for each in answers]

    newest, exported, base = (asyncio.run(sampled(which)) for which in (None, str(target), "base"))
    assert [text for text, _ in newest] == [text for text, _ in exported]
    for (_, ours), (_, theirs) in zip(newest, exported, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert newest != base


@pytest.mark.slow(reason="two checkpoints answer 40 questions")
def test_every_row_of_a_file_is_measured_once_by_every_checkpoint(
    quick_home: Path, tmp_path: Path
) -> None:
    file = rows(tmp_path)
    found = measured(quick_home, "--tasks", str(file), "--checkpoint", "all")
    assert [each["checkpoint"] for each in found["checkpoints"]] == ["base", "v0000000002"]
    assert [each["version"] for each in found["checkpoints"]] == [0, 2]
    for each in found["checkpoints"]:
        assert 0 < each["held_out"]["tasks"] < each["train"]["tasks"]
        assert each["held_out"]["tasks"] + each["train"]["tasks"] == 40
        assert each["families"]["sums"]["held_out"] == each["held_out"]
    assert (found["environment"], found["completions"], found["k"]) == ("jsonl", 2, 2)
    again = measured(quick_home, "--tasks", str(file), "--checkpoint", "all")
    assert again == found
    few = measured(quick_home, "--tasks", str(file), "--limit", "3", "--k", "1")
    (newest,) = few["checkpoints"]
    assert (newest["held_out"]["tasks"], newest["train"]["tasks"]) == (3, 3)
    assert newest["held_out"]["pass_k"] is None


def test_right_answers_count(quick_home: Path, tmp_path: Path) -> None:
    """A scorer of one's own that finds every other question right."""
    (tmp_path / "halves.py").write_text(
        "from swarm_node.environments.base import Task, check_ref\n"
        "class Halves:\n"
        "    name, version, families = 'halves', '1', ('a', 'b')\n"
        "    def derive(self, ref):\n"
        "        check_ref(self, ref)\n"
        "        return Task(ref, ref.seed)\n"
        "    def render(self, task):\n"
        "        return f'{task.ref.family} {task.payload}'\n"
        "    def score(self, task, text):\n"
        "        return 1.0 if task.ref.family == 'a' else 0.0\n"
        "create = Halves\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        patch.setenv("PYTHONPATH", str(tmp_path))
        found = measured(
            quick_home, "--tasks", "halves:create", "--limit", "4", "--checkpoint", "base"
        )
    (base,) = found["checkpoints"]
    assert (base["held_out"]["tasks"], base["train"]["tasks"]) == (8, 4)
    assert base["held_out"]["pass_1"] == base["held_out"]["pass_k"]
    assert base["held_out"]["pass_1"]["rate"] == 0.5
    assert base["families"]["a"]["train"]["pass_1"]["rate"] == 1.0
    assert base["families"]["b"]["train"]["pass_1"]["high"] < 1.0


@pytest.mark.slow(reason="samples drills, a file and dialogues")
@pytest.mark.parametrize(
    ("tasks", "options"),
    [
        ("drills", ("--checkpoint", "all", "--set", "environment.families=['sorting']")),
        ("FILE", ("--checkpoint", "all")),
        ("games", ("--checkpoint", "base", "--model", "tiny-talk")),
    ],
)
def test_rates_and_intervals_are_those_of_formulas_written_again(
    quick_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: str, options: Any
) -> None:
    """While a node has the home, from the rewards that were judged."""
    if tasks == "FILE":  # answers of one letter: some are right
        tasks = str(tmp_path / "letters.jsonl")
        lines = [{"question": f"Say a letter, {n}.", "answer": "aeiost"[n % 6]} for n in range(60)]
        Path(tasks).write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept: list[Any] = []
    rates = measuring._rates

    def seen(policy: Any, info: Any, found: Any, k: int) -> Any:
        kept.append(found)
        return rates(policy, info, found, k)

    monkeypatch.setattr(measuring, "_rates", seen)
    with Home(quick_home).lock():
        given = ("--completions", "5", "--k", "3", "--limit", "6", "--tasks", tasks, *options)
        done = run(quick_home, "--json", "--set", "sampling.max_new_tokens=16", *given)
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["checkpoints"]) == len(kept) > 0
    for told, found in zip(report["checkpoints"], kept, strict=True):
        for part, held_out in (("held_out", True), ("train", False)):
            families: dict[str, list[Any]] = {}
            for ref, rewards in found.items():
                if ref.held_out == held_out:
                    families.setdefault(ref.family, []).append(rewards)
            assert told[part]["tasks"] == sum(map(len, families.values())) > 0
            _check(told[part]["pass_1"], families, 1)
            _check(told[part]["pass_k"], families, 3)
    right = [reward for found in kept for rewards in found.values() for reward in rewards]
    assert tasks.endswith(".jsonl") or 0.0 < statistics.fmean(right) < 1.0


def _check(told: Any, families: dict[str, list[Any]], k: int) -> None:
    """Compare with the mean over all subsets, and with the intervals of scipy."""
    from scipy import stats

    best = [
        [statistics.fmean(map(max, itertools.combinations(rewards, k))) for rewards in tasks]
        for tasks in families.values()
    ]
    rate = statistics.fmean(map(statistics.fmean, best))
    assert told["rate"] == pytest.approx(rate)
    count, binary = sum(map(len, best)), all(v in (0.0, 1.0) for tasks in best for v in tasks)
    if binary and len(set(map(len, best))) == 1:
        assert told["interval"] == "wilson"
        interval = stats.binomtest(round(rate * count), count).proportion_ci(method="wilson")
        assert (told["low"], told["high"]) == pytest.approx((interval.low, interval.high))
        return
    assert told["interval"] == "bootstrap"

    def mean(*tasks: Any, axis: int = -1) -> Any:
        return sum(each.mean(axis=axis) for each in tasks) / len(tasks)

    drawn = stats.bootstrap(best, mean, n_resamples=4000, method="percentile", random_state=1)
    again = drawn.confidence_interval
    assert (told["low"], told["high"]) == pytest.approx((again.low, again.high), abs=0.02)


def test_the_table_fits_eighty_columns_and_writes_nothing_into_the_terminal(
    quick_home: Path, tmp_path: Path
) -> None:
    done = run(
        quick_home, *QUICK, "--tasks", str(rows(tmp_path)), "--checkpoint", "all", "--limit", "2"
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["checkpoint", "base", "v0000000002"]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.output


def test_what_cannot_be_measured_says_what_to_do(quick_home: Path, tmp_path: Path) -> None:
    file, pipe, bad = rows(tmp_path), tmp_path / "pipe.jsonl", tmp_path / "bad.jsonl"
    os.mkfifo(pipe)
    bad.write_text('{"question": "a", "answer": "b"}\n' + "[" * 60_000 + "\n")
    damaged = tmp_path / "damaged"
    shutil.copytree(quick_home / "checkpoints" / "v0000000002", damaged)
    with (damaged / MODEL).open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x99")
    for options, said in (
        (("--completions", "2"), "--tasks FILE"),
        (("--tasks", str(file), "--k", "5"), "--completions 5"),
        (("--tasks", str(tmp_path / "no.jsonl")), "cannot read"),
        (("--tasks", str(pipe)), "no regular file"),
        (("--tasks", str(bad)), "line 2"),
        (("--tasks", "drillz"), "'drillz'"),
        (("--checkpoint", "v0000000009"), "v0000000002"),
        (("--checkpoint", str(damaged)), "another digest"),
        (("--checkpoint", str(tmp_path)), "or model"),
        (("--checkpoint", "all", "--model", "tiny-talk"), "--model"),
    ):
        done = run(quick_home, *options)
        assert done.exit_code == 1, options
        assert said in done.stderr, done.stderr
    done = run(tmp_path / "new", "--tasks", str(file))
    assert done.exit_code == 1
    assert "`--checkpoint base`" in done.stderr
