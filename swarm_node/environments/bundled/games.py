"""Games of a few turns, for small models. A right answer needs what the environment replied.

guess: one of three numbers, in two tries. The observation says whether it is higher or lower.
Without listening, two tries find two of the three numbers. With listening they find all three, if
the first try is the middle number. calc: a product that the environment computes for a model that
asks for it. weigh: the heavier of three, after two of them were weighed; without listening, one
time of three. Nothing but this module decides a task, an observation or a reward."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from swarm_node.environments.base import MultiTurnEnvironment, Task, check_ref
from swarm_node.environments.splits.hashed_random import Draws
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.splits.split import is_held_out
from swarm_node.errors import ConfigError
from swarm_node.rollout import TaskRef

#: Counts changes of how this module turns a seed into a task, or texts into observations and
#: rewards.
SCHEME = 3
#: Most turns of every game.
TURNS = 2
_MAX_DIGITS = 9
#: Makes words for a warm start of the right ones and of wrong ones, and of the knowledge that a
#: observation follows the right ones.
Spoil = Callable[[str, str, bool], str]
_NUMBER = re.compile(r"[0-9]{1,9}")
_PRODUCT = re.compile(r"calc ([0-9]{1,9})\*([0-9]{1,9})")
_PAIR = re.compile(r"([a-z]):([a-z])")


def create(digits: int = 2) -> MultiTurnEnvironment:
    """Games with numbers of `digits` digits, 2 to 9. Numbers of two digits are for tiny models.
    With them guess has 117,480 questions and calc 8,100. weigh always has 15,600.

    Raises:
        ConfigError: another number of digits.
    """
    if not isinstance(digits, int) or not 2 <= digits <= _MAX_DIGITS:
        raise ConfigError(f"environment.options.digits: {digits!r} is not within 2 and 9")
    return _Games(digits)


class _Game(Protocol):
    """One task."""

    @property
    def question(self) -> str: ...

    @property
    def right(self) -> str:
        """The last words that are right."""
        ...

    def observation(self, last: str) -> str | None:
        """The observation to the newest words, None if they end the game."""
        ...

    def words(self, texts: Sequence[str], draws: Draws) -> tuple[str, str]:
        """The words of an author after what was said and replied: of one who listens and of one
        who does not."""
        ...


class _Guess(NamedTuple):
    choices: tuple[int, ...]
    secret: int

    @classmethod
    def draw(cls, draws: Draws, low: int, high: int) -> _Guess:
        numbers: list[int] = []
        for count in range(3):
            number = draws.within(low, high - count)
            for previous in numbers:  # ascending: each that was drawn before is passed over
                number += number >= previous
            numbers = sorted([*numbers, number])
        return cls(tuple(numbers), numbers[draws.below(3)])

    @property
    def question(self) -> str:
        low, middle, high = self.choices
        return f"Guess my number: {low}, {middle} or {high}."

    @property
    def right(self) -> str:
        return str(self.secret)

    def observation(self, last: str) -> str | None:
        if not _NUMBER.fullmatch(last) or int(last) == self.secret:
            return None
        return "higher" if int(last) < self.secret else "lower"

    def words(self, texts: Sequence[str], draws: Draws) -> tuple[str, str]:
        hints = [
            (int(guess), observation)
            for guess, observation in zip(texts[::2], texts[1::2], strict=True)
        ]
        candidates = [
            number
            for number in self.choices
            if all(
                number > guess if observation == "higher" else number < guess
                for guess, observation in hints
            )
        ]
        return str(candidates[draws.below(len(candidates))]), str(self.choices[draws.below(3)])


class _Calc(NamedTuple):
    left: int
    factor: int

    @classmethod
    def draw(cls, draws: Draws, low: int, high: int) -> _Calc:
        return cls(draws.within(low, high), draws.within(low, high))

    @property
    def _question(self) -> str:
        return f"calc {self.left}*{self.factor}"

    @property
    def question(self) -> str:
        text = f"What is {self.left} times {self.factor}?"
        return f"{text} Say {self._question} and I calculate it."

    @property
    def right(self) -> str:
        return str(self.left * self.factor)

    def observation(self, last: str) -> str | None:
        match = _PRODUCT.fullmatch(last)
        return None if match is None else str(int(match[1]) * int(match[2]))

    def words(self, texts: Sequence[str], draws: Draws) -> tuple[str, str]:
        left, right = draws.within(10, 99), draws.within(10, 99)
        if texts:
            return texts[-1], str(left * right)
        return self._question, f"calc {left}*{right}"


class _Weigh(NamedTuple):
    objects: str
    heavier: str

    @classmethod
    def draw(cls, draws: Draws, low: int, high: int) -> _Weigh:
        letters = string.ascii_lowercase
        items = ""
        for _ in range(3):
            items += letters[draws.below(len(letters))]
            letters = letters.replace(items[-1], "")
        return cls(items, items[draws.below(3)])

    @property
    def question(self) -> str:
        pair = ":".join(self.objects[:2])
        return f"One of {', '.join(self.objects)} is heavier. Say {pair} and I weigh these two."

    @property
    def right(self) -> str:
        return self.heavier

    def observation(self, last: str) -> str | None:
        pair = _PAIR.fullmatch(last)
        if pair is None or pair[1] == pair[2] or not {*pair.groups()} <= {*self.objects}:
            return None
        if self.heavier not in pair.groups():
            return "equal"
        return "left is heavier" if pair[1] == self.heavier else "right is heavier"

    def words(self, texts: Sequence[str], draws: Draws) -> tuple[str, str]:
        index = draws.below(3)
        if texts:
            return self.heavier, self.objects[index]
        partner = self.objects[(index + 1 + draws.below(2)) % 3]
        return ":".join(self.objects[:2]), f"{self.objects[index]}:{partner}"


_DRAWN: Mapping[str, Callable[[Draws, int, int], _Game]] = {
    "guess": _Guess.draw,
    "calc": _Calc.draw,
    "weigh": _Weigh.draw,
}
#: All games, which are the task families.
FAMILIES = tuple(_DRAWN)


class _Games:
    """Implements `MultiTurnEnvironment`."""

    name = "games"
    families: tuple[str, ...] = FAMILIES
    turns = TURNS

    def __init__(self, digits: int) -> None:
        self.version = f"{SCHEME}-{digits}"
        self._digits = digits

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        draws = Draws(f"games/{ref.family}", ref.seed)
        low, high = 10 ** (self._digits - 1), 10**self._digits - 1
        return Task(ref, _DRAWN[ref.family](draws, low, high))

    def render(self, task: Task) -> str:
        game: _Game = task.payload
        return game.question

    def observation(self, task: Task, completions: Sequence[str]) -> str | None:
        game: _Game = task.payload
        return game.observation(completions[-1].strip())

    def reward(self, task: Task, completions: Sequence[str]) -> float:
        game: _Game = task.payload
        return float(completions[-1].strip() == game.right)


def corpus(seed: int, spoil: Spoil) -> Iterator[tuple[str, list[str]]]:
    """Yields for ever, over the families in turn, a family and a multi-turn rollout: a question,
    what an author says whose words are spoilt, the observation, and so on. Questions that are held
    out are left out. The author's first number of guess is any of the three, because how to guess
    is for reinforcement learning to find."""
    games, position = _Games(2), 0
    while True:
        for family in games.families:
            number = task_seed("corpus", seed, family, position)
            task = games.derive(TaskRef(games.name, games.version, family, number))
            question = games.render(task)
            if not is_held_out(question):
                draws = Draws(f"games/corpus/{seed}/{family}", position)
                yield family, [question, *_transcript(games, task, draws, spoil)]
        position += 1


def _transcript(games: _Games, task: Task, draws: Draws, spoil: Spoil) -> list[str]:
    game: _Game = task.payload
    texts: list[str] = []
    for turn in range(games.turns):
        right_text, wrong_text = game.words(texts, draws)
        texts.append(spoil(right_text, wrong_text, turn + 1 < games.turns))
        observation = games.observation(task, texts[::2])
        if observation is None or turn + 1 == games.turns:
            break
        texts.append(observation)
    return texts
