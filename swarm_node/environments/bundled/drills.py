"""Short exercises on letters and digits, generated without end: the default tasks of a swarm.

A family is a generator of one kind of question, at a difficulty that is a length: of a word, of a
number, of a list. Every family of these presets has more than 10,000 different questions, and no
single answer is right for more than a tenth of them, so reward means that a model can do it.
The graded presets have levels in place of lengths: see `graded.py`.
No package, no data file and no version of Python decides a task.
"""

from __future__ import annotations

import functools
import hashlib
import json
import string
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, cast

from swarm_node.environments.answers.final import (
    final_answer,
    number_of,
    only_answer,
    same_words,
)
from swarm_node.environments.base import Environment, Task, check_ref
from swarm_node.environments.bundled import graded
from swarm_node.environments.lists.answer_forms import format_answer
from swarm_node.environments.splits.hashed_random import Draws, Exercise
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.splits.split import is_held_out
from swarm_node.errors import ConfigError, instead
from swarm_node.rollout import TaskRef

#: Counts changes of how this module turns a seed into a task or a text into a score.
#: 2: a box and a phrase such as "the answer is" mark an answer, as a tag does.
SCHEME = 2
#: Bounds of a difficulty. 40 letters need 188 of the 256 random bits of a task.
MAX_LENGTH = 12
_LETTERS = string.ascii_lowercase


class Ending(NamedTuple):
    """A mark that right answers of a family end in, and the sentence that asks for it."""

    mark: str
    request: str


Generator = Callable[[Draws, int], Exercise]


def _addition(draws: Draws, length: int) -> Exercise:
    left, right = draws.below(2 * 10**length), draws.below(2 * 10**length)
    return Exercise(f"What is {left} + {right}?", str(left + right))


def _difference(draws: Draws, length: int) -> Exercise:
    left, right = draws.below(2 * 10**length), draws.below(2 * 10**length)
    return Exercise(f"How far apart are {left} and {right}?", str(abs(left - right)))


def _largest(draws: Draws, length: int) -> Exercise:
    numbers = [draws.within(10, 999) for _ in range(length)]
    return Exercise(f"Which is the largest: {', '.join(map(str, numbers))}?", str(max(numbers)))


def _sorting(draws: Draws, length: int) -> Exercise:
    digits = draws.digits(length)
    return Exercise(f"Sort the digits of {digits} from low to high.", "".join(sorted(digits)))


def _digit_sums(draws: Draws, length: int) -> Exercise:
    left, right = draws.digits(length), draws.digits(length)
    sums = (str((int(a) + int(b)) % 10) for a, b in zip(left, right, strict=True))
    return Exercise(f"Add {left} and {right} digit by digit without carrying.", "".join(sums))


def _reversal(draws: Draws, length: int) -> Exercise:
    word = draws.word(length)
    return Exercise(f"Spell {word} backward.", word[::-1])


def _successors(draws: Draws, length: int) -> Exercise:
    word = draws.word(length)
    following = (_LETTERS[(_LETTERS.index(letter) + 1) % 26] for letter in word)
    return Exercise(f"Replace each letter of {word} by the next one.", "".join(following))


def _initials(draws: Draws, length: int) -> Exercise:
    words = [draws.word(3) for _ in range(length)]
    question = f"Give the first letters of {' '.join(words)}."
    return Exercise(question, "".join(word[0] for word in words))


def _position(draws: Draws, length: int) -> Exercise:
    word = draws.word(length)
    place = draws.within(1, length)
    return Exercise(f"Which letter is number {place} of {word}?", word[place - 1])


def _alphabet(draws: Draws, length: int) -> Exercise:
    word = draws.word(length)
    return Exercise(f"Put the letters of {word} in alphabetical order.", "".join(sorted(word)))


def _removal(draws: Draws, length: int) -> Exercise:
    word = draws.word(length)
    letter = word[draws.below(length)]
    return Exercise(f"Leave out every {letter} of {word}.", word.replace(letter, ""))


def _doubling(draws: Draws, length: int) -> Exercise:
    word = draws.word(length)
    return Exercise(f"Write each letter of {word} twice.", "".join(2 * letter for letter in word))


def _progression(draws: Draws, length: int) -> Exercise:
    start, step = draws.below(200), draws.within(1, 60)
    numbers = [start + index * step for index in range(length + 1)]
    return Exercise(f"What comes next: {', '.join(map(str, numbers[:-1]))}?", str(numbers[-1]))


FAMILIES: Mapping[str, Generator] = {
    "addition": _addition,
    "difference": _difference,
    "largest": _largest,
    "sorting": _sorting,
    "digit_sums": _digit_sums,
    "reversal": _reversal,
    "successors": _successors,
    "initials": _initials,
    "position": _position,
    "alphabet": _alphabet,
    "removal": _removal,
    "progression": _progression,
    "doubling": _doubling,
}

_STOP = Ending(".", " End with a full stop.")
_SHOUT = Ending("!", " End with an exclamation mark.")
#: Endings of a family's answers in a preset that asks for them; other families have none. So every
#: family has a habit of its own, and learning one family's habit tells nothing about the next.
ENDINGS: Mapping[str, Ending] = {
    "alphabet": _SHOUT,
    "digit_sums": _SHOUT,
    "doubling": _STOP,
    "initials": _STOP,
    "largest": _STOP,
    "progression": _SHOUT,
    "removal": _SHOUT,
    "reversal": _STOP,
    "sorting": _SHOUT,
}

_LEVELS: Mapping[str, tuple[int, int]] = {
    family: (level, level)
    for family in graded.FAMILIES
    for level in [int(family.rpartition("-")[2])]
}
#: Families with the least and the most length, the easiest preset first. "short" is for models of
#: well under a million parameters; "long" has longer words and numbers, on which they stay far
#: from right. "chat" is for pretrained chat models of half a billion weights and more. The graded
#: presets are for pretrained models of any size, with a level in the place of each length.
PRESETS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "short": {
        "alphabet": (3, 4),
        "doubling": (3, 4),
        "initials": (3, 3),
        "largest": (2, 3),
        "position": (3, 5),
        "removal": (3, 4),
        "reversal": (3, 4),
        "sorting": (4, 5),
        "successors": (3, 4),
    },
    "long": {
        "alphabet": (5, 6),
        "doubling": (5, 6),
        "initials": (4, 6),
        "largest": (3, 4),
        "position": (6, 9),
        "removal": (4, 6),
        "reversal": (5, 7),
        "sorting": (6, 8),
        "successors": (5, 6),
    },
    "chat": {
        "addition": (4, 7),
        "alphabet": (6, 10),
        "difference": (4, 7),
        "digit_sums": (5, 9),
        "initials": (6, 10),
        "largest": (8, 12),
        "progression": (3, 4),
        "removal": (8, 12),
        "reversal": (6, 12),
    },
    "graded": _LEVELS,
    "graded-reasoning": _LEVELS,
}
#: Instructions of presets that have one. That of "graded" is among the wordings that
#: SmolLM2-135M-Instruct followed about equally well (docs/environments.md).
INSTRUCTIONS = {
    "chat": "Think step by step. Then give the final answer alone inside <answer></answer>.",
    "graded": "Reply with just the number.",
    "graded-reasoning": "Think step by step, and put the final answer in \\boxed{}.",
}
#: Presets whose right answers are integers, which are found in an answer's words.
GRADED = frozenset({"graded", "graded-reasoning"})
#: Presets for models that write an answer and nothing else, whose families have endings.
STRICT = frozenset({"short", "long"})


def create(
    preset: str = "short",
    families: Mapping[str, tuple[int, int]] | None = None,
    instruction: str | None = None,
    strict: bool | None = None,
) -> Environment:
    """The factory behind the entry point `drills`.

    Args:
        preset: a key of `PRESETS`. Those of `GRADED` count the last number of an answer.
        families: family -> [least, most] length; replaces the preset.
        instruction: appended to every question after an empty line; None means the preset's.
        strict: text around the <answer></answer> makes an answer wrong, and families have their
            endings; None means the preset's.

    Raises:
        ConfigError: an unknown preset or family, or lengths out of bounds.
    """
    if instruction is None:
        instruction = INSTRUCTIONS.get(preset, "") if families is None else ""
    if strict is None:
        strict = preset in STRICT and families is None
    if families is None:
        if preset not in PRESETS:
            raise ConfigError(
                f"environment.options.preset: unknown {preset!r}", *instead(str(preset), PRESETS)
            )
        levels = preset in GRADED
        return _Drills(PRESETS[preset], instruction, strict=strict, graded_levels=levels)
    return _Drills(_check_families(families), instruction, strict=strict)


def corpus(preset: str, seed: int) -> Iterator[tuple[str, str, str]]:
    """Yields (family, question, answer) for ever, over the families in turn, for warm starts. Texts
    that are held out are left out.

    Raises:
        ConfigError: `preset` is unknown.
    """
    environment = create(preset)
    position = 0
    while True:
        for family in environment.families:
            number = task_seed("corpus", seed, family, position)
            ref = TaskRef(environment.name, environment.version, family, number)
            exercise = environment.derive(ref).payload
            if not is_held_out(exercise["question"]):
                yield family, exercise["question"], exercise["answer"]
        position += 1


@functools.cache
def preset_versions() -> Mapping[str, str]:
    """The presets by their versions."""
    return {create(name).version: name for name in PRESETS}


class _Drills:
    """Implements `Environment`."""

    name = "drills"

    def __init__(
        self,
        lengths: Mapping[str, tuple[int, int]],
        instruction: str,
        *,
        strict: bool,
        graded_levels: bool = False,
    ) -> None:
        self.families = tuple(sorted(lengths))
        inputs = [lengths, instruction, strict, *["graded", graded.SCHEME] * graded_levels]
        canonical_json = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
        self.version = f"{SCHEME}-{hashlib.sha256(canonical_json.encode()).hexdigest()[:12]}"
        self._lengths = lengths
        self._graded = graded_levels
        self._suffix = f"\n\n{instruction}" if instruction else ""
        self._strict = strict

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        draws = Draws(ref.family, ref.seed)
        if self._graded:
            return Task(ref, graded.FAMILIES[ref.family](draws)._asdict())
        length = draws.within(*self._lengths[ref.family])
        question, answer, _ = FAMILIES[ref.family](draws, length)
        if self._strict and ref.family in ENDINGS:
            mark, request = ENDINGS[ref.family]
            question, answer = question + request, answer + mark
        return Task(ref, {"question": question, "answer": answer})

    def render(self, task: Task) -> str:
        return self.question(task) + self._suffix

    def score(self, task: Task, text: str) -> float:
        answer = only_answer(text) if self._strict else final_answer(text).text
        if self._graded and not self._strict:
            answer = number_of(final_answer(text))
        return 0.0 if answer is None else float(same_words(answer, self.answer(task)))

    def question(self, task: Task) -> str:
        """The text that decides on which side of the split the task is."""
        return cast(str, task.payload["question"])

    def answer(self, task: Task) -> str:
        """The right answer."""
        return cast(str, task.payload["answer"])

    def reference_completion(self, task: Task) -> str:
        """The right answer as the instruction asks for it."""
        return format_answer(self.answer(task), self._suffix) or self.answer(task)


def _check_families(families: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    key = "environment.options.families"
    if not isinstance(families, Mapping) or not families:
        raise ConfigError(f"{key} must be a table of at least one family")
    ranges = {}
    for family, lengths in families.items():
        if family not in FAMILIES:
            raise ConfigError(f"{key}.{family} is unknown", *instead(str(family), FAMILIES))
        if not (
            isinstance(lengths, list | tuple)
            and len(lengths) == 2
            and all(type(length) is int for length in lengths)
            and 1 <= lengths[0] <= lengths[1] <= MAX_LENGTH
        ):
            raise ConfigError(
                f"{key}.{family}: give the least and the most length, within 1 and {MAX_LENGTH}"
            )
        ranges[family] = (lengths[0], lengths[1])
    return ranges
