"""Games of a few turns, for small models: what the environment replies is needed to be right.

guess: a number among three, in two tries; the reply says whether it is higher or lower. Without
listening, two tries find two numbers of three. calc: a product that the environment computes for a
model that asks for it. Nothing but this module decides a task, a reply or a reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from swarm_node.environments.base import Dialogue, Task, check_ref
from swarm_node.environments.drills import Draws
from swarm_node.environments.seeds import task_seed
from swarm_node.environments.split import is_held_out
from swarm_node.errors import ConfigError
from swarm_node.rollout import TaskRef

#: Counts changes of how this module turns a seed into a task, or texts into replies and rewards.
SCHEME = 1
_MAX_DIGITS = 9
#: Makes words for a warm start of the right ones and of wrong ones, and of the knowledge that a
#: reply follows the right ones.
Spoil = Callable[[str, str, bool], str]
_ASKED = re.compile(r"calc ([0-9]{1,9})\*([0-9]{1,9})")


def create(digits: int = 2) -> Dialogue:
    """Games with numbers of so many digits, 2 to 9. Numbers of two digits are for tiny models; of
    guess they make 88 questions and of calc 8,100.

    Raises:
        ConfigError: another number of digits.
    """
    if not isinstance(digits, int) or not 2 <= digits <= _MAX_DIGITS:
        raise ConfigError(f"environment.options.digits: {digits!r} is not within 2 and 9")
    return _Games(digits)


class _Guess(NamedTuple):
    lowest: int
    secret: int


class _Product(NamedTuple):
    left: int
    right: int


class _Games:
    """Implements `Dialogue`."""

    name = "games"
    families: tuple[str, ...] = ("guess", "calc")
    turns = 2

    def __init__(self, digits: int) -> None:
        self.version = f"{SCHEME}-{digits}"
        self._digits = digits

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        draws = Draws(f"games/{ref.family}", ref.seed)
        least, most = 10 ** (self._digits - 1), 10**self._digits - 1
        if ref.family == "guess":
            lowest = draws.within(least, most - 2)
            return Task(ref, _Guess(lowest, lowest + draws.below(3)))
        return Task(ref, _Product(draws.within(least, most), draws.within(least, most)))

    def render(self, task: Task) -> str:
        game: _Guess | _Product = task.payload
        if isinstance(game, _Guess):
            return f"Guess my number from {game.lowest} to {game.lowest + 2}."
        asked = f"calc {game.left}*{game.right}"
        return f"What is {game.left} times {game.right}? Say {asked} and I calculate it."

    def reply(self, task: Task, said: Sequence[str]) -> str | None:
        game: _Guess | _Product = task.payload
        last = said[-1].strip()
        if isinstance(game, _Guess):
            if not re.fullmatch(r"[0-9]{1,9}", last) or int(last) == game.secret:
                return None
            return "higher" if int(last) < game.secret else "lower"
        asked = _ASKED.fullmatch(last)
        return None if asked is None else str(int(asked[1]) * int(asked[2]))

    def judge(self, task: Task, said: Sequence[str]) -> float:
        game: _Guess | _Product = task.payload
        right = game.secret if isinstance(game, _Guess) else game.left * game.right
        return float(said[-1].strip() == str(right))


def corpus(seed: int, spoil: Spoil) -> Iterator[tuple[str, list[str]]]:
    """Yields for ever, over the families in turn, a family and a dialogue: a question, what an
    author says whose words are spoilt, the reply, and so on. Questions that are held out are left
    out. The author's first number is any of the three, because how to guess is for reinforcement
    learning to find."""
    games, position = _Games(2), 0
    while True:
        for family in games.families:
            number = task_seed("corpus", seed, family, position)
            task = games.derive(TaskRef(games.name, games.version, family, number))
            question = games.render(task)
            if not is_held_out(question):
                draws = Draws(f"games/corpus/{seed}/{family}", position)
                yield family, [question, *_dialogue(games, task, draws, spoil)]
        position += 1


def _dialogue(games: _Games, task: Task, draws: Draws, spoil: Spoil) -> list[str]:
    texts: list[str] = []
    for turn in range(games.turns):
        right, wrong = _words(task.payload, texts, draws)
        texts.append(spoil(right, wrong, turn + 1 < games.turns))
        reply = games.reply(task, texts[::2])
        if reply is None or turn + 1 == games.turns:
            break
        texts.append(reply)
    return texts


def _words(game: _Guess | _Product, texts: Sequence[str], draws: Draws) -> tuple[str, str]:
    """The words of an author after what was said and replied: of one who listens and of one who
    does not."""
    if isinstance(game, _Guess):
        three = range(game.lowest, game.lowest + 3)
        told = [(int(said), reply) for said, reply in zip(texts[::2], texts[1::2], strict=True)]
        heard = [
            each
            for each in three
            if all(each > said if reply == "higher" else each < said for said, reply in told)
        ]
        return str(heard[draws.below(len(heard))]), str(three[draws.below(3)])
    left, right = draws.within(10, 99), draws.within(10, 99)
    if texts:
        return texts[-1], str(left * right)
    return f"calc {game.left}*{game.right}", f"calc {left}*{right}"
