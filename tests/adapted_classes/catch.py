"""Classes with the fields and methods of OpenEnv's: pydantic actions and observations."""

import random
from typing import Any

from pydantic import BaseModel, ConfigDict


class Action(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: dict[str, Any] = {}


class Observation(BaseModel):
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = {}


class Move(Action):
    column: int


class Board(Observation):
    ball: int
    left: int


class Word(Action):
    message: str


class Echoed(Observation):
    echoed: str


class Catch:
    """A ball falls for three steps: be where it lands."""

    def reset(self, seed=None, episode_id=None, **kwargs) -> Board:
        self.ball, self.left = random.Random(seed).randrange(10**6), 3
        return Board(ball=self.ball, left=self.left)

    def step(self, action: Move, timeout_s=None, **kwargs) -> Board:
        self.left -= 1
        caught = float(action.column == self.ball)
        return Board(ball=self.ball, left=self.left, done=not self.left, reward=caught)

    @property
    def state(self) -> None:
        return None


class Echo:
    def reset(self, seed=None, **kwargs) -> Echoed:
        return Echoed(echoed=f"ready {seed}")

    def step(self, action: Word, **kwargs) -> Echoed:
        return Echoed(echoed=action.message, reward=len(action.message) / 100)

    @property
    def state(self) -> None:
        return None


class Anything(Echo):
    def step(self, action: Any, **kwargs) -> Echoed:
        return Echoed(echoed="")
