"""Classes as their authors write them for TRL's trainers."""

import random


class IncrementEnv:
    def reset(self, target=None, **kwargs) -> str | None:
        self.counter = 0
        self.target = target or random.randint(1, 6)
        self.offset = random.randint(0, 10**6)
        return f"Increment {self.offset} by {self.target}."

    def get_reward(self) -> float:
        return float(self.counter == self.target)

    def increment(self, step: int, times: int = 1) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.
            times: How often.

        Returns:
            The updated counter value.
        """
        if step < 0:
            raise ValueError("only upwards")
        self.counter += step * times
        return self.counter


class Guided(IncrementEnv):
    """Gets its question from a row."""

    def reset(self, target=None, **kwargs) -> None:
        super().reset(target)


class WithoutReward:
    def reset(self, **kwargs) -> str:
        return "?"


class Asynchronous(IncrementEnv):
    async def look(self) -> str:
        """Look."""
        return ""


class Untyped(IncrementEnv):
    def add(self, step):
        """Add."""


class Variadic(IncrementEnv):
    def add(self, *steps: int):
        """Add."""


class OfAServer(IncrementEnv):
    def __init__(self) -> None:
        raise ConnectionError("no server answers")


class Silent(IncrementEnv):
    def reset(self, **kwargs) -> None:
        super().reset()
