"""Any reasoning-gym dataset as an environment: procedurally generated tasks, scored by rule.

An item's random generator is Random(dataset seed + index). So item `ref.seed` of a practically
endless dataset with seed 0 is the task that the seed names, and a reference needs no stored data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import json
from collections.abc import Mapping
from typing import Any, Literal, cast

from swarm_node.environments.answers.final import MAX_SCORED_CHARS, last_tagged, only_answer
from swarm_node.environments.base import Environment, Task, check_ref
from swarm_node.environments.extras import installed_extras, refusal
from swarm_node.environments.lists.answer_forms import format_answer
from swarm_node.environments.reasoning_gym import data_sets, scorers
from swarm_node.errors import ConfigError, instead
from swarm_node.rollout import SEED_LIMIT, TaskRef

NAME = "reasoning_gym"
#: Counts changes of how this module turns a seed into a task or a text into a score.
#: 2: own scorers replace those that evaluate the answer; only the end of a text is scored; an
#: exception of a scorer makes a wrong answer.
SCHEME = 2
#: A binary reward is 1 from this native score on: rounding may cost a right answer a little.
RIGHT = 0.999
_OWN_SETTINGS = frozenset({"seed", "size"})
#: Datasets that build every item at once, so they cannot be endless. A task is item 0 of a dataset
#: of this size, made with the task's seed.
_EAGER: Mapping[str, int] = {"acre": 10, "gsm_symbolic": 1}
#: Datasets whose items depend on more than their seed, so two nodes would disagree. They depend on
#: the order of a set of strings, which differs between processes, on the global random generators,
#: or on seeds of 32 bits. Measured with reasoning-gym 0.1.25 over 60 seeds and two hash seeds.
_UNREPRODUCIBLE = frozenset(
    {
        "codeio",
        "isomorphic_strings",
        "knight_swap",
        "list_functions",
        "polynomial_multiplication",
        "pool_matrix",
        "ransom_note",
        "word_ladder",
    }
)

#: Without leap years, of which three in four are none, and the weekdays of the 365 dates of a year.
_CALENDAR = {
    "tasks": [
        "weekday_offset",
        "weekday_of_date_from_first_date",
        "recurring_event_day",
        "count_days",
        "count_business_days",
    ]
}

#: Families and their settings, the easiest preset first. Each has at least 10,000 questions, and no
#: single answer is right for more than a tenth of them. "chat": nine that a pretrained chat model
#: of half a billion weights and more can begin on, school problems like those of GSM8K among them.
#: "sapo": the nine of arXiv 2509.08721, with defaults, but for three. The calendar is that of
#: "chat". string_manipulation replaces bf: its programs print one of 2,315 words, or one of some
#: hundred numbers, or take seconds. knights_knaves replaces propositional_logic, where "P or Q" is
#: right for four tasks of five.
PRESETS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "chat": {
        "gsm_symbolic": {},
        "basic_arithmetic": {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 2},
        "chain_sum": {"min_terms": 2, "max_terms": 4, "min_digits": 2, "max_digits": 3},
        "fraction_simplification": {"min_value": 2, "max_value": 50, "styles": ["plain"]},
        "products": {"min_digits": 2, "max_digits": 3},
        "lcm": {"max_value": 200},
        "leg_counting": {"max_animals": 4, "max_instances": 6},
        "spell_backward": {"min_word_len": 4, "max_word_len": 8},
        "calendar_arithmetic": _CALENDAR,
    },
    "sapo": {
        "base_conversion": {},
        "basic_arithmetic": {},
        "arc_1d": {},
        "string_manipulation": {},
        "knights_knaves": {},
        "fraction_simplification": {},
        "decimal_arithmetic": {},
        "calendar_arithmetic": _CALENDAR,
        "binary_matrix": {},
    },
}

#: Instructions of presets that have one: a chat model then thinks aloud, and its answer is found.
INSTRUCTIONS = {
    "chat": "Think step by step. Then give the final answer alone inside <answer></answer>."
}


def create(
    datasets: Mapping[str, Mapping[str, Any]] | None = None,
    preset: str = "chat",
    scoring: Literal["binary", "native"] = "binary",
    instruction: str | None = None,
    strict: bool = False,
) -> Environment:
    """The factory behind the entry point `reasoning_gym`.

    Args:
        datasets: reasoning-gym dataset name -> its settings; replaces the preset.
        preset: a key of `PRESETS`.
        scoring: "binary" rewards 1 for a right answer and 0 for anything else; "native" passes on
            the dataset's own score, which often gives partial credit.
        instruction: appended to every question after an empty line; None means the preset's.
        strict: text around the <answer></answer> makes an answer wrong.

    Raises:
        ConfigError: reasoning-gym is not installed, an unknown preset, dataset or scoring, or
            settings a dataset does not take.
    """
    if instruction is None:
        instruction = INSTRUCTIONS.get(preset, "") if datasets is None else ""
    return _ReasoningGym(
        _preset(preset) if datasets is None else datasets, _scoring(scoring), instruction, strict
    )


def choosable() -> list[str]:
    """The data sets that `datasets` may name here."""
    return sorted(set(data_sets.names()) - scorers.REFUSED.keys() - _UNREPRODUCIBLE)


class _ReasoningGym:
    """Implements `Environment`. Holds one dataset per family, made on first use."""

    name = NAME

    def __init__(
        self,
        families: Mapping[str, Mapping[str, Any]],
        scoring: str,
        instruction: str,
        strict: bool,
    ) -> None:
        if NAME not in installed_extras():
            raise ConfigError(refusal(NAME))
        if not families:
            raise ConfigError("environment.options.datasets names no dataset: name at least one")
        for family, settings in families.items():
            _check(family, settings)
        self.families = tuple(families)
        self.version = _version(families, scoring, instruction, strict)
        self._strict = strict
        self._settings = {family: dict(settings) for family, settings in families.items()}
        self._binary = scoring == "binary"
        self._suffix = f"\n\n{instruction}" if instruction else ""
        self._datasets: dict[str, Any] = {}

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        return Task(ref, self.item(ref.family, ref.seed))

    def render(self, task: Task) -> str:
        return cast(str, task.payload["question"]) + self._suffix

    def question(self, task: Task) -> str:
        """The question without the instruction, so that one question is on the same side for all
        presets."""
        return cast(str, task.payload["question"])

    def answer(self, task: Task) -> str | None:
        right = task.payload["answer"]
        return None if right is None else str(right)

    def reference_completion(self, task: Task) -> str | None:
        """The right answer as the instruction asks for it."""
        right = self.answer(task)
        return None if right is None else format_answer(right, self._suffix) or right

    def score(self, task: Task, text: str) -> float:
        """Scores the content of the last <answer></answer>, else the whole text, stripped. Only the
        last MAX_SCORED_CHARS of a text count."""
        answer = only_answer(text) if self._strict else _answer(text)
        if answer is None:
            return 0.0
        dataset = self._dataset(task.ref.family, task.ref.seed)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                native_score = scorers.score(task.ref.family, dataset, answer, task.payload)
        except Exception:  # noqa: BLE001 - the package's scorers raise anything on a malformed answer
            native_score = 0.0
        return float(native_score >= RIGHT) if self._binary else native_score

    def item(self, family: str, seed: int) -> dict[str, Any]:
        """The dataset's own entry: question, answer (or None) and metadata."""
        with contextlib.redirect_stdout(io.StringIO()):  # bf prints while it compiles
            dataset = self._dataset(family, seed)
            return cast(dict[str, Any], dataset[0 if family in _EAGER else seed])

    def _dataset(self, family: str, seed: int) -> Any:
        if family in _EAGER:
            return _make(family, {**self._settings[family], "seed": seed, "size": _EAGER[family]})
        if family not in self._datasets:
            self._datasets[family] = _make(
                family, {**self._settings[family], "seed": 0, "size": SEED_LIMIT}
            )
        return self._datasets[family]


def _answer(text: str) -> str:
    text = text[-MAX_SCORED_CHARS:]
    content = last_tagged(text)
    return (text if content is None else content).strip()


def _make(family: str, settings: dict[str, Any]) -> Any:
    from reasoning_gym.factory import create_dataset

    return create_dataset(family, **settings)


def _check(family: str, settings: Mapping[str, Any]) -> None:
    key = f"environment.options.datasets.{family}"
    try:
        classes = data_sets.find(family)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{key} needs {error.name}, which is not installed: run `pip install {error.name}`"
        ) from error
    if classes is None:
        raise ConfigError(f"{key}: reasoning-gym has no dataset of that name; see its gallery")
    if family in scorers.REFUSED:
        raise ConfigError(f"{key}: {scorers.REFUSED[family]}")
    if family in _UNREPRODUCIBLE:
        raise ConfigError(f"{key}: its tasks cannot be derived from a seed; choose another dataset")
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{key} must be a table of settings; use {{}} for the defaults")
    config = classes[1]
    field_names = {field.name for field in dataclasses.fields(config)} - _OWN_SETTINGS
    for name in settings:
        if name not in field_names:
            raise ConfigError(f"{key}.{name} is unknown", *instead(name, sorted(field_names)))
    try:
        instance = config(**settings)
        if hasattr(instance, "validate"):
            instance.validate()
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{key}: reasoning-gym refuses these settings: {error}") from error


def _preset(name: str) -> Mapping[str, dict[str, Any]]:
    if name not in PRESETS:
        raise ConfigError(
            f"environment.options.preset: unknown {name!r}", *instead(str(name), PRESETS)
        )
    return PRESETS[name]


def _scoring(name: str) -> str:
    if name not in ("binary", "native"):
        raise ConfigError(f"environment.options.scoring: {name!r} is neither binary nor native")
    return name


@functools.cache
def preset_versions() -> Mapping[str, str]:
    """The presets by their versions here; none without the package."""
    if NAME not in installed_extras():
        return {}
    return {
        _version(families, "binary", INSTRUCTIONS.get(name, ""), False): name
        for name, families in PRESETS.items()
    }


def _version(
    families: Mapping[str, Mapping[str, Any]], scoring: str, instruction: str, strict: bool
) -> str:
    inputs = [families, scoring, instruction, *["strict"] * strict]
    try:
        canonical_json = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"environment.options.datasets must hold numbers, texts, truth values, lists and "
            f"tables only: {error}"
        ) from error
    digest = hashlib.sha256(canonical_json.encode()).hexdigest()[:12]
    return f"{importlib.metadata.version('reasoning-gym')}-{SCHEME}-{digest}"
