"""Any environment with its questions split by text: no training reference makes a held-out one."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, cast

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.base import (
    Environment,
    MultiTurnEnvironment,
    Task,
    TaskMaker,
    check_ref,
)
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.environments.splits.split import (
    HELD_OUT_SHARE,
    MAX_DRAWS,
    bound_of,
    canonical,
    next_seed,
    position,
    with_split,
)
from swarm_node.errors import ConfigError, UnknownTaskError
from swarm_node.recent import Recent
from swarm_node.rollout import MAX_TURNS, TaskRef

#: Texts of each side that a family must show before a node starts with it.
_ENOUGH = 8
#: A slow family that has shown both sides is not drawn from for longer.
_CHECK_SECONDS = 2.0
#: Held-out references whose draw is remembered. They are measured again and again, and seven of
#: eight texts are not theirs.
_REMEMBERED = 4096
#: So many draws without a text of one side are no chance.
_LATE_DRAWS = 64
_REMEDY = ": give it settings with more questions, or leave it out"
MAX_SYSTEM_CHARS: Final = 4096
MAX_EXAMPLES: Final = 16
#: Prompts whose lengths stand for those of all.
_SOME = 64
_NEEDED = ("name", "version", "families", "derive", "render")
#: Besides: one method for an answer, or these for a multi-turn rollout.
_ANSWERED, _TALKED = ("score",), ("turns", "observation", "reward")


class Asking(NamedTuple):
    """How any environment's questions are put to a model. `system` is the system message of every
    prompt, "" for none. `examples` is the number of solved questions that stand before each
    question; they are of its family and for training, and never the question itself."""

    system: str = ""
    examples: int = 0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Asking:
        """The part of an environment's options that the program itself reads.

        Raises:
            ConfigError: a value makes no sense.
        """
        system, examples = options.get("system", ""), options.get("examples", 0)
        if not isinstance(system, str) or len(system) > MAX_SYSTEM_CHARS or not _encodes(system):
            raise ConfigError(
                f"environment.options.system: give a text, of at most {MAX_SYSTEM_CHARS} characters"
            )
        if type(examples) is not int or not 0 <= examples <= MAX_EXAMPLES:
            raise ConfigError(
                f"environment.options.examples: {str(examples)[:40]!r} is not within 0 and "
                f"{MAX_EXAMPLES}"
            )
        return cls(system, examples)

    def version(self, base_version: str) -> str:
        """The version of an environment that is asked so, from its `base_version`."""
        if self == _PLAIN:
            return base_version
        canonical_form = json.dumps(self).encode()
        return f"{base_version}+{hashlib.sha256(canonical_form).hexdigest()[:8]}"


_PLAIN: Final = Asking()


@dataclass(frozen=True, slots=True)
class SplitTask(Task):
    """A task. `inner` is the one that the environment itself made for it, perhaps of a later seed.
    `prompt` is its prompt, if that text decided its side."""

    inner: Task
    prompt: str | None


def some_tasks(name: str, version: str, families: Sequence[str]) -> list[TaskRef]:
    """References of the same few tasks for training each time, of all families in turn."""
    return [
        TaskRef(name, version, family, task_seed("some", family, number))
        for number in range(max(1, _SOME // max(1, len(families))))
        for family in families[:_SOME]
    ]


class SplitEnvironment:
    """Implements `Environment` around another one, and `MultiTurnEnvironment` around a multi-turn
    one. A reference whose text is on the other side moves on to further seeds, by a rule that every
    receiver repeats."""

    def __init__(self, inner: Environment | MultiTurnEnvironment, asking: Asking = _PLAIN) -> None:
        """
        Raises:
            ConfigError: `inner` is no environment, or has no right answers for examples.
        """
        talks = _talks(inner)
        if asking.examples and (talks or not hasattr(inner, "answer")):
            raise ConfigError(
                f"environment.options.examples: {inner.name} has no right answers to show: leave "
                "it out"
            )
        self.asking = asking
        self._inner: TaskMaker = inner
        #: Most turns of the model; 1 for an answer to one question.
        self.turns: int = getattr(inner, "turns", 1)
        if talks and not (isinstance(self.turns, int) and 2 <= self.turns <= MAX_TURNS):
            raise ConfigError(
                f"environment.name: {inner.name} has {self.turns!r} turns: it can be "
                f"2 to {MAX_TURNS}"
            )
        self._talk: MultiTurnEnvironment | None = (
            cast("MultiTurnEnvironment", inner) if talks else None
        )
        self._score: Callable[[Task, str], float] = (
            self._reward_of_one_turn if talks else cast("Environment", inner).score
        )
        self.name = inner.name
        self.version = with_split(asking.version(inner.version))
        self.families = tuple(inner.families)
        #: Processor seconds that a group of eight needs on a slow machine; 0 if it does not say.
        self.score_seconds = float(getattr(inner, "score_seconds", 0.0))
        #: Sentences about its tasks that the owner should read.
        self.notes: tuple[str, ...] = tuple(getattr(inner, "notes", ()))
        #: The same of what is probably wrong with them.
        self.warnings: tuple[str, ...] = tuple(getattr(inner, "warnings", ()))
        #: By family of a list, its numbers of rows for training and held out.
        self.sizes: Mapping[str, tuple[int, int]] = dict(getattr(inner, "sizes", {}))
        self._has_question = hasattr(inner, "question")
        self._question: Callable[[Task], str] = getattr(inner, "question", inner.render)
        self._answer: Callable[[Task], str | None] | None = getattr(inner, "answer", None)
        self._reference_completion: Callable[[Task], str | None] | None = getattr(
            inner, "reference_completion", self._answer
        )
        self._place: Callable[[Task], str] | None = getattr(inner, "place", None)
        bounds: Mapping[str, int] = getattr(inner, "held_out_bounds", {})
        default_bound = bound_of(HELD_OUT_SHARE)
        self._solved_examples = cache(self._draw_solved)
        self._seed_cache: Recent[tuple[str, int], int] = Recent(_REMEMBERED)
        self._bounds = {family: bounds.get(family, default_bound) for family in self.families}

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        counts: Counter[str] = Counter()
        for seed in self._seeds(ref):
            task = self._make_task(ref.family, seed)
            question = self._question(task)
            if self._held_out(ref.family, question) == ref.held_out:
                prompt = None if self._has_question else question
                if ref.held_out:
                    self._seed_cache[ref.family, ref.seed] = seed
                return SplitTask(ref, task.payload, task, prompt)
            counts[canonical(question)] += 1
        raise UnknownTaskError(_refusal(ref.family, ref.held_out, 0, counts))

    def render(self, task: Task) -> str:
        prompt = self._bare_prompt(task)
        if not self.asking.examples:
            return prompt
        key = canonical(self.question(task))
        shots = [shot for shot in self._solved_examples(task.ref.family) if shot.question != key]
        return few_shot(shots[: self.asking.examples], prompt)

    def _bare_prompt(self, task: Task) -> str:
        """The prompt without examples."""
        if isinstance(task, SplitTask) and task.prompt is not None:
            return task.prompt  # another call could give a text of the other side
        return self._inner.render(_inner(task))

    def _draw_solved(self, family: str) -> tuple[Solved, ...]:
        """Solved questions for training, one more than a prompt has: one could be its own. They are
        the same for all tasks of a family, so that prompts begin alike.

        Raises:
            UnknownTaskError: the family has too few that differ and have a right answer.
        """
        shots: dict[str, Solved] = {}
        for index in range(MAX_DRAWS):
            seed = task_seed("example", family, index)
            task = self.derive(TaskRef(self.name, self.version, family, seed))
            key, right = canonical(self.question(task)), self.reference_completion(task)
            if right is not None:
                shots.setdefault(key, Solved(key, self._bare_prompt(task), right))
            if len(shots) > self.asking.examples:
                return tuple(shots.values())
        raise UnknownTaskError(
            f"family {family}: {len(shots)} questions for training have a right answer, and "
            f"{self.asking.examples} examples need one more: lower environment.options.examples"
        )

    def longest_prompt(self) -> int:
        """Return the UTF-8 bytes of the longest of some prompts for training."""
        deadline, max_bytes = SYSTEM_CLOCK.now() + _CHECK_SECONDS, 0
        for ref in some_tasks(self.name, self.version, self.families):
            max_bytes = max(max_bytes, len(self.render(self.derive(ref)).encode(errors="replace")))
            if SYSTEM_CLOCK.now() > deadline:
                break
        return max_bytes

    def score(self, task: Task, text: str) -> float:
        return self._score(_inner(task), text)

    def observation(self, task: Task, completions: Sequence[str]) -> str | None:
        """See `MultiTurnEnvironment`. An answer to one question has none."""
        return None if self._talk is None else self._talk.observation(_inner(task), completions)

    def reward(self, task: Task, completions: Sequence[str]) -> float:
        """See `MultiTurnEnvironment`. An answer to one question is scored."""
        if self._talk is None:
            return self._score(_inner(task), completions[-1])
        return self._talk.reward(_inner(task), completions)

    def question(self, task: Task) -> str:
        """The text that decides the side of a task."""
        return self._question(_inner(task))

    def answer(self, task: Task) -> str | None:
        """The right answer of a task, None where none is known."""
        return None if self._answer is None else self._answer(_inner(task))

    @property
    def lists(self) -> bool:
        """True for a list of questions whose right answers are known."""
        return bool(self.sizes) and self._answer is not None

    def reference_completion(self, task: Task) -> str | None:
        """The right answer of a task in the form that its prompt asks for, None where none is
        known.

        Raises:
            UnknownTaskError: the environment gives something else than a text.
        """
        compute = self._reference_completion
        right = None if compute is None else compute(_inner(task))
        if right is not None and not isinstance(right, str):
            raise UnknownTaskError(
                f"{self.name}: answer() and reference_completion() must return a text or None, "
                f"not {type(right).__name__}: return str(...)"
            )
        return right

    def place(self, task: Task) -> str:
        """Where the row of a task stands in a list, "" for a task of no list."""
        return "" if self._place is None else self._place(_inner(task))

    def refusal(self, family: str, now: Callable[[], float] = SYSTEM_CLOCK.now) -> str:
        """Draw tasks until both sides have shown enough. Returns the reason why training and
        held-out questions of a family cannot be kept apart within MAX_DRAWS, "" if they can."""
        deadline = now() + _CHECK_SECONDS
        for held_out, hashed in ((False, task_seed), (True, held_out_seed)):
            counts: Counter[str] = Counter()
            hits, failure = 0, ""
            for index in range(MAX_DRAWS):
                is_late = now() > deadline and (hits or index >= _LATE_DRAWS)
                if hits >= _ENOUGH or is_late:
                    break
                try:
                    question = self._question(
                        self._make_task(family, hashed("split", family, index))
                    )
                except Exception as error:  # noqa: BLE001 - foreign code may raise anything
                    failure = failure or f"; one failed ({type(error).__name__}: {error})"
                    continue
                counts[canonical(question)] += 1
                hits += self._held_out(family, question) == held_out
            if hits < _ENOUGH and (not hits or index == MAX_DRAWS - 1):
                return _refusal(family, held_out, hits, counts) + failure + _REMEDY
        if self.asking.examples:
            try:
                self._solved_examples(family)
            except UnknownTaskError as error:
                return str(error)
        return ""

    def _reward_of_one_turn(self, inner: Task, text: str) -> float:
        assert self._talk is not None
        return self._talk.reward(inner, (text,))

    def _seeds(self, ref: TaskRef) -> Iterator[int]:
        cached_seed = self._seed_cache.get((ref.family, ref.seed))
        if cached_seed is not None:
            yield cached_seed
        yield ref.seed
        for draw in range(1, MAX_DRAWS + 1):
            yield next_seed(ref, draw)

    def _make_task(self, family: str, seed: int) -> Task:
        inner = self._inner
        return inner.derive(TaskRef(inner.name, inner.version, family, seed))

    def _held_out(self, family: str, question: str) -> bool:
        return position(question) < self._bounds[family]


class Solved(NamedTuple):
    """A solved question: its canonical text, its prompt, and its right answer in the form that the
    prompt asks for."""

    question: str
    prompt: str
    answer: str


def few_shot(examples: Sequence[Solved], prompt: str) -> str:
    """A prompt after solved ones, in the form in which base models are asked: the codec puts
    "Question: " before such a text and "Answer:" after it where a model has no chat template."""
    texts = [f"{example.prompt}\nAnswer: {example.answer}" for example in examples]
    return "\n\nQuestion: ".join([*texts, prompt])


def _encodes(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _talks(inner: object) -> bool:
    """True for a multi-turn environment, False for an environment of one answer.

    Raises:
        ConfigError: `inner` is neither.
    """
    names = [name for name in _TALKED if hasattr(inner, name)]
    required_names = (*_NEEDED, *(_TALKED if names else _ANSWERED))
    gaps = [name for name in required_names if not hasattr(inner, name)]
    if gaps and names and all(hasattr(inner, name) for name in _ANSWERED):
        raise ConfigError(
            f"environment.name: what its function returns has 'score', for one answer, and "
            f"{names[0]!r}, for a multi-turn environment, which needs {gaps[0]!r} too: give "
            f"{names[0]!r} another name, or make it multi-turn"
        )
    if gaps:
        raise ConfigError(
            f"environment.name: what its function returns is no environment: it has no {gaps[0]!r}"
        )
    return bool(names)


def different(counts: Counter[str]) -> int:
    """Estimate the number of different texts that a generator has, by those that were drawn once
    and twice (Chao's estimate). It is at least the number of different texts that were drawn."""
    times = Counter(counts.values())
    singletons, doubletons = times[1], times[2]
    return len(counts) + singletons * (singletons - 1) // (2 * (doubletons + 1))


def _inner(task: Task) -> Task:
    if not isinstance(task, SplitTask):
        raise TypeError("a task of another environment: derive it with this one")
    return task.inner


def _refusal(family: str, held_out: bool, hits: int, counts: Counter[str]) -> str:
    side = "held-out" if held_out else "training"
    return (
        f"family {family}: {hits} of {counts.total()} draws have a text of the {side} part; it has "
        f"about {different(counts)} different questions"
    )
