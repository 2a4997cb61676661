"""The reasoning-gym environment, task seeds and the registry."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builders import printed_by
from environments.tasks import ref_to, task_of

from swarm_node.environments.base import Environment
from swarm_node.environments.reasoning_gym.environment import PRESETS, create
from swarm_node.environments.registry import available, create_environment
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.errors import ConfigError, UnknownTaskError
from swarm_node.rollout import HELD_OUT_SEED, SEED_LIMIT, TaskRef

#: Data sets with short questions and answers.
SMALL: dict[str, dict[str, Any]] = {
    "gcd": {"max_value": 20},
    "products": {"max_digits": 1},
    "letter_counting": {"min_words": 1, "max_words": 2},
}
#: Answers of none of the questions, which a careless scorer may take for right.
CONSTANTS = (
    *("", " ", "0", "1", "2", "-1", "No", "Yes", "True", "None", "nan", "inf", "[]", "[[]]", "0/1"),
    *("(P \N{LOGICAL OR} \N{NOT SIGN}P)", "P \N{LOGICAL OR} Q", "Monday", "x", ", and "),
)


def answer_to(environment: Environment, family: str, seed: int) -> str:
    return str(task_of(environment, family, seed).payload["answer"])


@pytest.fixture(scope="module")
def small() -> Environment:
    return create(datasets=SMALL)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_family_of_a_preset_makes_tasks_over_the_whole_seed_range(preset: str) -> None:
    environment = create(preset=preset)
    assert environment.families == tuple(PRESETS[preset])
    assert len(environment.families) == 9
    for family in environment.families:
        prompts = set()
        for seed in (
            0,
            task_seed(family),
            HELD_OUT_SEED - 1,
            held_out_seed(family),
            SEED_LIMIT - 1,
        ):
            task = task_of(environment, family, seed)
            prompts.add(environment.render(task))
            assert environment.score(task, "nonsense") == 0.0
            if task.payload["answer"] is not None:
                assert environment.score(task, f" {task.payload['answer']}\n") == 1.0
        assert len(prompts) > 1, family


@pytest.mark.slow(reason="draws 600 tasks of each family")
@pytest.mark.parametrize(
    ("preset", "family"), [(preset, family) for preset in PRESETS for family in PRESETS[preset]]
)
def test_a_family_of_a_preset_has_many_questions_and_no_constant_answers_it(
    preset: str, family: str
) -> None:
    """Of n equally likely questions 600 draws repeat about 180,000 / n: 18 of 10,000, and more
    where some are likelier. Each of the commonest answers is scored, for a scorer may take one text
    for right where another is stored."""
    environment = create(preset=preset)
    tasks = [task_of(environment, family, task_seed("many", index)) for index in range(600)]
    repeated = len(tasks) - len({environment.render(task) for task in tasks})
    assert repeated <= 18
    common = Counter(environment.answer(task) or "" for task in tasks).most_common(12)
    for constant in dict.fromkeys((*(answer for answer, _ in common), *CONSTANTS)):
        right = sum(environment.score(task, constant) for task in tasks)
        assert right <= 0.1 * len(tasks), constant


def test_prompts_are_the_same_in_another_process(small: Environment) -> None:
    """With another hash seed too: two nodes must not disagree on a question."""
    program = (
        "from swarm_node.environments.reasoning_gym.environment import create\n"
        "from swarm_node.rollout import TaskRef\n"
        f"e = create(datasets={SMALL})\n"
        "for f in e.families:\n"
        "    for s in range(20):\n"
        "        print(repr(e.render(e.derive(TaskRef(e.name, e.version, f, s * 10**16)))))\n"
    )
    here = [
        repr(small.render(task_of(small, family, seed * 10**16)))
        for family in small.families
        for seed in range(20)
    ]
    assert printed_by(program, PYTHONHASHSEED="12345").splitlines() == here


def test_hashed_seeds_do_not_give_shifted_copies_of_one_stream() -> None:
    """reasoning-gym seeds item i with seed + i; consecutive node seeds would share their tasks."""
    environment = create(datasets={"base_conversion": {}})
    streams = [
        {
            environment.render(task_of(environment, seed=task_seed("node", node, index)))
            for index in range(200)
        }
        for node in (1, 2)
    ]
    assert len(streams[0]) > 190
    assert len(streams[0] & streams[1]) < 10


def test_binary_scoring_gives_no_partial_credit() -> None:
    binary, native = create(datasets=SMALL), create(datasets=SMALL, scoring="native")
    seed = task_seed("partial")
    right = answer_to(binary, "products", seed)
    verbose = f"it is {right}"
    for environment, low, high in ((binary, 0.0, 0.0), (native, 0.01, 0.99)):
        task = task_of(environment, "products", seed)
        assert low <= environment.score(task, verbose) <= high
        assert environment.score(task, right) == 1.0


def test_an_answer_in_tags_is_judged_alone() -> None:
    lenient = create(datasets=SMALL)
    task = task_of(lenient, "gcd")
    right = task.payload["answer"]
    assert (
        lenient.score(task, f"First <answer>x</answer>, or rather <answer> {right} </answer>.") == 1
    )
    assert lenient.score(task, f"{right} <answer>x</answer>") == 0


def test_where_an_answer_is_all_that_is_wanted_words_around_it_make_it_wrong() -> None:
    strict = create(datasets=SMALL, strict=True)
    task = task_of(strict, "gcd")
    right = task.payload["answer"]
    tagged = f"<answer> {right} </answer>"
    for text, reward in ((right, 1), (tagged, 1), (f"\n{tagged}\n", 1), (f"zq {tagged}", 0)):
        assert strict.score(task, text) == reward
    for text in (f"{tagged} zq", f"zq {'x' * 9999} {tagged}", f"<answer>1</answer>{tagged}"):
        assert strict.score(task, text) == 0
    assert create(preset="chat").version == create(preset="chat", strict=False).version
    assert create(preset="chat").version != create(preset="chat", strict=True).version


def test_an_instruction_follows_the_question(small: Environment) -> None:
    asking = create(datasets=SMALL, instruction="Use tags.")
    plain = small.render(task_of(small, "gcd"))
    assert asking.render(task_of(asking, "gcd")) == f"{plain}\n\nUse tags."


def test_the_version_says_what_a_reference_means() -> None:
    base = create(datasets={"gcd": {"max_value": 20, "min_value": 1}})
    assert create(datasets={"gcd": {"min_value": 1, "max_value": 20}}).version == base.version
    others = [
        create(datasets={"gcd": {"max_value": 21, "min_value": 1}}),
        create(datasets={"gcd": {"max_value": 20, "min_value": 1}, "lcm": {}}),
        create(datasets={"gcd": {"max_value": 20, "min_value": 1}}, scoring="native"),
        create(datasets={"gcd": {"max_value": 20, "min_value": 1}}, instruction="x"),
    ]
    assert len({environment.version for environment in (base, *others)}) == 5
    assert create(datasets=PRESETS["sapo"]).version == create(preset="sapo").version


def test_references_to_something_else_are_refused(small: Environment) -> None:
    good = ref_to(small, "gcd", 1)
    bad = [
        TaskRef("other", good.version, "gcd", 1),
        TaskRef(good.environment, "0", "gcd", 1),
        TaskRef(good.environment, good.version, "lcm", 1),
        TaskRef(good.environment, good.version, "gcd", -1),
        TaskRef(good.environment, good.version, "gcd", SEED_LIMIT),
    ]
    for ref in bad:
        with pytest.raises(UnknownTaskError):
            small.derive(ref)
    assert small.derive(good).ref == good


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"preset": "hard"}, "environment.options.preset"),
        ({"preset": "short"}, "environment.options.preset"),
        ({"scoring": "lenient"}, "environment.options.scoring"),
        ({"datasets": {}}, "environment.options.datasets"),
        ({"datasets": {"gdc": {}}}, "environment.options.datasets.gdc"),
        ({"datasets": {"gcd": {"max_valu": 3}}}, "environment.options.datasets.gcd.max_valu"),
        ({"datasets": {"gcd": {"seed": 3}}}, "environment.options.datasets.gcd.seed"),
        ({"datasets": {"gcd": {"max_value": 0}}}, "environment.options.datasets.gcd"),
        ({"datasets": {"gcd": {"max_value": "x"}}}, "environment.options.datasets.gcd"),
        ({"datasets": {"gcd": 3}}, "environment.options.datasets.gcd"),
        ({"datasets": {"ransom_note": {}}}, "environment.options.datasets.ransom_note"),
        ({"datasets": {"gcd": {"max_value": 3j}}}, "environment.options.datasets"),
    ],
)
def test_settings_that_cannot_work_are_named(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        create(**options)


@pytest.mark.parametrize("dataset", ["acre", "gsm_symbolic"])
def test_data_sets_that_make_all_items_at_once_work_too(dataset: str) -> None:
    environment = create(datasets={dataset: {}})
    tasks = [task_of(environment, seed=task_seed(index)) for index in (1, 2, 1)]
    prompts = [environment.render(task) for task in tasks]
    assert prompts[0] == prompts[2] != prompts[1]
    task = tasks[0]
    assert environment.score(task, str(task.payload["answer"])) == 1.0


def test_bf_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    environment = create(datasets={"bf": {}})
    for seed in range(20):
        environment.derive(ref_to(environment, "bf", seed))
    assert capfd.readouterr().out == ""


def test_training_and_held_out_seeds_never_meet() -> None:
    for index in range(500):
        assert 0 <= task_seed("a", index) < HELD_OUT_SEED <= held_out_seed("a", index) < SEED_LIMIT


def test_seeds_depend_on_every_part_its_type_and_its_place() -> None:
    parts: list[tuple[str | int | bytes, ...]] = [
        ("ab", "c"),
        ("a", "bc"),
        ("c", "ab"),
        ("abc",),
        ("1",),
        (1,),
        (b"1",),
        (-1,),
        (),
    ]
    assert len({task_seed(*each) for each in parts}) == len(parts)
    assert task_seed("ab", "c") == task_seed("ab", "c")
    assert held_out_seed("a") != task_seed("a") + HELD_OUT_SEED


def test_the_registry_finds_installed_and_own_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "reasoning_gym" in available()
    assert create_environment("reasoning_gym", {"preset": "sapo"}).name == "reasoning_gym"
    (tmp_path / "own_registry_case.py").write_text(
        "from swarm_node.environments.reasoning_gym.environment import create as inner\n"
        "def create(level): return inner(preset=level) if level else level\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = create_environment("own_registry_case:create", {"level": "chat"})
    assert own.families == tuple(PRESETS["chat"])
    with pytest.raises(ConfigError, match="no 'name'"):
        create_environment("own_registry_case:create", {"level": 0})


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("gym", {}, "reasoning_gym"),
        ("no_such_module:create", {}, "PYTHONPATH"),
        ("json:no_such_function", {}, "no_such_function"),
        (":create", {}, "cannot be imported"),
        ("string:digits", {}, "not a function"),
        ("reasoning_gym", {"level": 1}, "it takes: datasets, preset, scoring, instruction"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        create_environment(name, options)
