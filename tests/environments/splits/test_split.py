"""The split by text: the canonical text, the side, moving on, and what is refused."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from random import Random

import pytest
from builders import ROOT, write_rows
from environments.tasks import ref_to, task_of
from hypothesis import given
from hypothesis import strategies as st
from lasting import started

from swarm_node.environments.base import Task
from swarm_node.environments.bundled import drills
from swarm_node.environments.host import InlineEnvironmentHost, ProcessEnvironmentHost
from swarm_node.environments.lists.jsonl import create as jsonl
from swarm_node.environments.presets import check_choice, environment_name
from swarm_node.environments.reasoning_gym.environment import PRESETS, create
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.environments.splits.split import (
    HELD_OUT_SHARE,
    MAX_DRAWS,
    canonical,
    is_held_out,
    next_seed,
    position,
    with_split,
)
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.workers.scoring_worker import right_answer
from swarm_node.errors import ConfigError, UnknownTaskError
from swarm_node.p2p.wire.wire import Announcement, Label
from swarm_node.rollout import HELD_OUT_SEED, SEED_LIMIT, TaskRef

SHIPPED = [
    (name, preset, family)
    for name, presets in (("drills", drills.PRESETS), ("reasoning_gym", PRESETS))
    for preset, families in presets.items()
    for family in families
]
OWN = '''
"""Numbers below a limit; `bad` families do not make tasks that can be split."""
import os
from swarm_node.environments.base import Task


class Numbers:
    name, version = "numbers", "1"

    def __init__(self, families, limit):
        self.families, self.limit = tuple(families), limit

    def derive(self, ref):
        if ref.family == "raises":
            raise KeyError("lost")
        if ref.family == "ends":
            os._exit(3)
        return Task(ref, ref.seed % self.limit)

    def render(self, task):
        return f"Say  {task.payload}"

    def score(self, task, text):
        return float(text == str(task.payload))


def create(families=("plain",), limit=10**6):
    return Numbers(families, limit)
'''


@pytest.fixture
def own(importable: Callable[[str, str], None]) -> str:
    """The name of an own environment that a child process can import."""
    importable("own_numbers", OWN)
    return "own_numbers:create"


class Numbers:
    """An environment of one family, whose tasks are numbers."""

    name, version, families = "numbers", "1", ("one",)

    def derive(self, ref: TaskRef) -> Task:
        return Task(ref, ref.seed)

    def render(self, task: Task) -> str:
        return f"Say {task.payload}"

    def score(self, task: Task, text: str) -> float:
        return float(text == str(task.payload))


def texts(
    environment: SplitEnvironment, family: str, seeds: Callable[..., int], count: int
) -> set[str]:
    """The canonical questions of so many references."""
    refs = (ref_to(environment, family, seeds("texts", index)) for index in range(count))
    return {canonical(environment.question(environment.derive(ref))) for ref in refs}


@given(st.text())
def test_the_canonical_text_is_a_fixed_point_and_has_one_side(text: str) -> None:
    assert canonical(canonical(text)) == canonical(text)
    for other in (unicodedata.normalize("NFD", text), f"\t{text}\n", text.replace(" ", " \u00a0 ")):
        assert position(other) == position(text)


def test_an_eighth_of_all_texts_is_held_out_and_a_larger_share_holds_them_too() -> None:
    questions = [f"What is {number} + 1?" for number in range(40_000)]
    held_out = {question for question in questions if is_held_out(question)}
    assert abs(len(held_out) / len(questions) - HELD_OUT_SHARE) < 0.01
    assert held_out <= {question for question in questions if is_held_out(question, 0.2)}
    assert not any(is_held_out(question, 0.0) for question in questions[:100])


def test_a_question_that_no_encoding_takes_has_a_side() -> None:
    assert 0 <= position("\ud800") < 1 << 64


@pytest.mark.parametrize(
    "count", [100, pytest.param(400, marks=pytest.mark.nightly(reason="the same with more texts"))]
)
@pytest.mark.parametrize(("name", "preset", "family"), SHIPPED)
def test_no_training_reference_of_a_shipped_environment_makes_a_held_out_text(
    name: str, preset: str, family: str, count: int
) -> None:
    environment = create_environment(name, {"preset": preset})
    # Of 100 texts of which nobody looks at the side, none is held out but once in 600,000 times.
    training = texts(environment, family, task_seed, count)
    held_out = texts(environment, family, held_out_seed, count // 4)
    assert not any(map(is_held_out, training))
    assert all(map(is_held_out, held_out))
    assert not training & held_out
    assert environment.refusal(family) == ""


def test_rows_that_differ_in_form_and_white_space_fall_together(tmp_path: Path) -> None:
    rows = []
    for number in range(300):
        plain = f"Café {number}: what is {number} + 1?"
        for text in (
            plain,
            unicodedata.normalize("NFD", plain),
            f"  {plain.replace(' ', chr(10))}",
        ):
            rows.append({"question": text, "answer": number + 1})
    Random(1).shuffle(rows)
    path = write_rows(tmp_path / "rows.jsonl", rows)
    environment = create_environment("jsonl", {"path": str(path), "held_out": 0.2})
    training = texts(environment, "rows", task_seed, 4000)
    held_out = texts(environment, "rows", held_out_seed, 2000)
    assert not training & held_out
    assert len(training | held_out) == 300
    assert all(is_held_out(text, 0.2) for text in held_out)
    assert not any(is_held_out(text, 0.2) for text in training)
    (note,) = environment.notes
    assert "600 rows repeat" in note


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_short_list_has_a_question_on_each_side(tmp_path: Path, count: int) -> None:
    for first in range(40):
        rows = [{"question": f"{first + n}?", "answer": 1} for n in range(count)]
        path = write_rows(tmp_path / "rows.jsonl", rows)
        environment = create_environment("jsonl", {"path": str(path), "held_out": 0.5})
        training = texts(environment, "rows", task_seed, 60)
        held_out = texts(environment, "rows", held_out_seed, 60)
        assert training
        assert held_out
        assert not training & held_out
        assert environment.refusal("rows") == ""


def test_a_question_of_two_short_files_is_never_on_both_sides(tmp_path: Path) -> None:
    """Each file alone would be split; together they would train on what the other holds out."""
    questions = sorted((f"{n}?" for n in range(50) if not is_held_out(f"{n}?", 0.3)), key=position)
    low, middle, high = questions[0], questions[20], questions[-1]
    paths = [
        str(write_rows(tmp_path / f"{name}.jsonl", [{"question": q, "answer": 1} for q in pair]))
        for name, pair in (("a", (low, middle)), ("b", (middle, high)))
    ]
    for path in paths:
        jsonl(path)
    with pytest.raises(ConfigError, match=r"in a .* in b\b"):
        jsonl(paths)


def test_a_right_answer_that_is_no_text_is_named() -> None:
    class Unwritten(Numbers):
        def answer(self, task: Task) -> int:
            return int(task.payload)

    environment = SplitEnvironment(Unwritten())
    task = task_of(environment)
    with pytest.raises(UnknownTaskError, match=r"answer\(\).* int\b"):
        right_answer(environment, task)


def test_a_reference_moves_on_by_a_rule_that_every_receiver_repeats(own: str) -> None:
    first, second = (create_environment(own, {}) for _ in range(2))
    moved = 0
    for seed in (*range(2000), *range(HELD_OUT_SEED, HELD_OUT_SEED + 500)):
        ref = ref_to(first, "plain", seed)
        task = first.derive(ref)
        assert task.ref == ref
        assert first.render(task) == second.render(second.derive(ref))
        candidates = chain([seed], (next_seed(ref, draw) for draw in range(1, MAX_DRAWS + 1)))
        fitting = next(s for s in candidates if is_held_out(f"Say {s % 10**6}") == ref.held_out)
        assert task.payload == fitting % 10**6
        moved += fitting != seed
        assert (fitting >= HELD_OUT_SEED) == ref.held_out
        assert fitting < SEED_LIMIT
        assert first.score(task, str(task.payload)) == 1.0
    assert 500 < moved < 1000


def test_a_task_that_moved_on_is_scored_as_the_one_that_it_became() -> None:
    """The data set gsm_symbolic is made anew from the seed of the task, for scoring too."""
    environment = create_environment(
        "reasoning_gym", {"datasets": {"acre": {}, "gsm_symbolic": {}}}
    )
    for family in environment.families:
        for index in range(20):
            ref = ref_to(environment, family, held_out_seed("moved", index))
            task = environment.derive(ref)
            assert environment.score(task, str(environment.answer(task))) == 1.0


def test_a_task_of_another_environment_is_not_scored() -> None:
    inner = create()
    task = task_of(inner)
    with pytest.raises(TypeError, match="this one"):
        SplitEnvironment(inner).score(task, "1")


@pytest.mark.parametrize(
    ("families", "limit", "says"),
    [
        (
            ["plain"],
            1,
            "family plain: 0 of 1024 draws have a text of the held-out part; it has about 1 ",
        ),
        (["raises"], 9, r"one failed \(KeyError: 'lost'\)"),
    ],
)
async def test_an_environment_that_cannot_keep_the_sides_apart_is_refused_by_name(
    own: str, families: list[str], limit: int, says: str
) -> None:
    options = {"families": families, "limit": limit}
    for host in (
        InlineEnvironmentHost(create_environment(own, options)),
        ProcessEnvironmentHost(own, options),
    ):
        with pytest.raises(ConfigError, match=says):
            async with started(host):
                pass


async def test_a_family_that_ends_its_process_is_refused_and_one_that_nobody_chose_is_not_asked(
    own: str,
) -> None:
    options = {"families": ["plain", "ends"]}
    async with started(ProcessEnvironmentHost(own, options, ["plain"])) as info:
        assert info.families == ("plain", "ends")
    with pytest.raises(ConfigError, match="family ends"):
        async with started(ProcessEnvironmentHost(own, options, [])):
            pass


def test_a_reference_that_finds_no_text_of_its_side_is_unknown_with_the_counts(own: str) -> None:
    environment = create_environment(own, {"limit": 1})
    with pytest.raises(UnknownTaskError, match=r"plain: 0 of 1025"):
        environment.derive(ref_to(environment, "plain", HELD_OUT_SEED))


class Slow(Numbers):
    """Every question is on the training side, and a second passes with each."""

    clock = 0.0

    def derive(self, ref: TaskRef) -> Task:
        self.clock += 1.0
        return Task(ref, next(n for n in range(100) if not is_held_out(f"Say {n}")))


def test_a_slow_generator_is_not_drawn_from_without_end() -> None:
    slow = Slow()
    why = SplitEnvironment(slow).refusal("one", lambda: slow.clock)
    assert "0 of 64" in why
    assert slow.clock < 70


@pytest.mark.parametrize("version", ["1", "0.1.25-2-0123456789ab", "v" * 64, "w" * 40])
def test_the_announced_version_names_the_release_and_fits_the_wire(version: str) -> None:
    announced = with_split(version)
    assert announced.endswith(" 0.2")
    assert announced.startswith(version[:27])
    assert len(announced) <= 64
    assert with_split("v" * 64) != with_split("v" * 63 + "w")
    assert Announcement.__annotations__["version"] in (Label, "Label")


def test_a_reference_of_a_newer_node_names_the_release_that_this_one_needs(own: str) -> None:
    environment = create_environment(own, {})
    newer = TaskRef("numbers", "1 split 2, swarm-node 0.3", "plain", 3)
    with pytest.raises(UnknownTaskError, match=r"this node .*0\.3"):
        environment.derive(newer)
    with pytest.raises(UnknownTaskError, match="same files"):
        environment.derive(TaskRef("numbers", with_split("2"), "plain", 3))
    with pytest.raises(UnknownTaskError, match="same files"):
        environment.derive(TaskRef("others", "1", "plain", 3))


def test_the_vectors_give_each_text_its_side_and_each_reference_its_next_seeds() -> None:
    vectors = json.loads((ROOT / "tests" / "vectors" / "split.json").read_text())
    for each in vectors["texts"]:
        assert canonical(each["question"]) == each["canonical"]
        assert position(each["question"]) == int(each["position"])
        assert is_held_out(each["question"]) == each["held_out"]
    assert {each["held_out"] for each in vectors["texts"]} == {True, False}
    for each in vectors["moving_on"]:
        ref = TaskRef("any", "any", each["family"], int(each["seed"]))
        assert [str(next_seed(ref, draw)) for draw in (1, 2, 3)] == each["next"]


def test_a_prompt_is_the_text_that_was_checked_although_each_call_gives_another() -> None:
    numbers = count()

    class Fickle(Numbers):
        def render(self, task: Task) -> str:
            return f"question {next(numbers)}"

    environment = SplitEnvironment(Fickle())
    for index in range(200):
        task = task_of(environment, seed=task_seed("fickle", index))
        assert not is_held_out(environment.render(task))


def test_a_held_out_draw_is_remembered_and_gives_the_same_task() -> None:
    class Counting(Numbers):
        made = 0

        def derive(self, ref: TaskRef) -> Task:
            self.made += 1
            return super().derive(ref)

    inner = Counting()
    environment = SplitEnvironment(inner)
    refs = [ref_to(environment, seed=held_out_seed("counting", index)) for index in range(64)]
    first = [environment.derive(ref) for ref in refs]
    made, inner.made = inner.made, 0
    assert made > 3 * len(refs)
    assert [environment.derive(ref) for ref in refs] == first
    assert inner.made == len(refs)


GRADED = {"preset": "graded"}


@pytest.mark.slow(reason="renders many tasks of every family")
@pytest.mark.parametrize("options", [GRADED, {"preset": "graded-reasoning"}, {"preset": "short"}])
def test_examples_are_solved_questions_for_training_and_never_the_question_itself(
    options: dict[str, object],
) -> None:
    plain = create_environment("drills", options)
    shown = create_environment("drills", {**options, "examples": 3})
    assert shown.version != plain.version
    for family in shown.families:
        for hashed in (task_seed, held_out_seed):
            for index in range(40):
                seed = hashed("shown", family, index)
                task, own = task_of(shown, family, seed), task_of(plain, family, seed)
                assert shown.question(task) == plain.question(own)
                *solved, asked = shown.render(task).split("\n\nQuestion: ")
                assert asked == plain.render(own)
                pairs = [each.split("\nAnswer: ") for each in solved]
                assert len({prompt for prompt, _ in pairs} | {asked}) == 4
                for prompt, answer in pairs:
                    assert not is_held_out(prompt.split("\n\n")[0])
                    assert plain.score(_task_asking(plain, family, prompt), answer) == 1.0


def _task_asking(made: SplitEnvironment, family: str, prompt: str) -> Task:
    for index in range(1024):
        task = task_of(made, family, task_seed("example", family, index))
        if made.render(task) == prompt:
            return task
    raise AssertionError(prompt)


def test_examples_of_a_list_come_from_its_rows_for_training(tmp_path: Path) -> None:
    rows = [{"question": f"Say {n}.", "answer": str(n)} for n in range(12)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    made = create_environment("jsonl", {"path": str(file), "examples": 4, "held_out": 0.3})
    training, held_out = made.sizes["rows"]
    kept = {
        made.question(task_of(made, seed=seed))
        for seed in range(HELD_OUT_SEED, HELD_OUT_SEED + held_out)
    }
    for seed in range(training):
        prompt = made.render(task_of(made, seed=seed))
        *solved, asked = prompt.split("\n\nQuestion: ")
        assert len({*solved}) == 4
        assert not any(question in each for question in kept for each in solved)
        assert not any(each.startswith(f"{asked}\n") for each in solved)
    few = create_environment("jsonl", {"path": str(file), "examples": 12})
    assert few.refusal("rows")


@pytest.mark.parametrize(
    "options",
    [
        {"system": 3},
        {"system": ["a"]},
        {"system": None},
        {"system": "a" * 4097},
        {"system": "half \ud800"},
        {"examples": -1},
        {"examples": 17},
        {"examples": True},
        {"examples": "2"},
        {"examples": 1.0},
    ],
)
def test_an_impossible_system_prompt_or_number_of_examples_is_refused(
    options: dict[str, object],
) -> None:
    for refuse in (
        lambda: create_environment("drills", options),
        lambda: check_choice("drills", options, ()),
    ):
        with pytest.raises(ConfigError, match=r"^environment\.options\.(system|examples)"):
            refuse()


def test_a_dialogue_has_no_examples_and_any_environment_a_system_prompt() -> None:
    with pytest.raises(ConfigError, match=r"^environment\.options\.examples"):
        create_environment("games", {"examples": 1})
    versions = {
        create_environment(name, {"system": text}).version
        for name in ("games", "drills")
        for text in ("", "Be brief.", "Be kind.")
    }
    assert len(versions) == 6
    assert create_environment("drills", {"system": "", "examples": 0}).version == (
        create_environment("drills", {}).version
    )
    assert all(len(version) <= 64 for version in versions)
    for version in versions:
        assert environment_name("drills", version).startswith("drills ")


async def test_nodes_with_another_system_prompt_refuse_each_others_tasks() -> None:
    made = [create_environment("drills", {"system": text}) for text in ("Be brief.", "Be kind.")]
    ref = ref_to(made[0], "sorting")
    made[0].derive(ref)
    with pytest.raises(UnknownTaskError):
        made[1].derive(ref)
    host = ProcessEnvironmentHost("drills", {"system": "Be brief.", "examples": 1}, ["sorting"])
    async with started(host) as info:
        assert host.system == "Be brief."
        (prompt,) = await host.render([ref_to(info, "sorting")])
    assert prompt.count("\n\nQuestion: ") == 1
    assert "Be brief." not in prompt  # a message of its own, which the codec writes
