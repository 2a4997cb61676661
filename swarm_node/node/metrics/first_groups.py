"""The model's results before training: its first groups, reported once. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from swarm_node.rollout import RolloutGroup

COUNT = 16
_EXAMPLES, _SHOWN_CHARS = 3, 160
#: With fewer groups with mixed rewards among the first ones, there is no training signal.
_LEAST_INFORMATIVE = 2
#: With a larger share of answers cut, no other advice is given.
_MANY_CUT = 0.5
#: Remedies by environment, for those that ship presets, and for any other.
_HARDER: Final = dict.fromkeys(
    ("drills", "reasoning_gym"), "a harder preset, or data sets of your own"
)
_OTHER_HARDER: Final = "harder ones (environment.options)"
_EASIER: Final = {
    "drills": "an easier preset (environment.options.preset; of drills: graded, whose "
    "families have levels, or short, long, chat, from easy to hard)",
    "reasoning_gym": "an easier preset (environment.options.preset), or other data sets",
}
_OTHER_EASIER: Final = "easier ones (environment.options)"


@dataclass(frozen=True, slots=True)
class Beginning:
    """Results of the first `groups`. `pass_at_1` is the mean reward, `mixed_rewards` the number of
    groups with mixed rewards. `truncated_ratio` of the answers ran out of tokens. `answers` are
    some of them, shortened."""

    environment: str
    pass_at_1: float
    mixed_rewards: int
    groups: int
    answers: tuple[str, ...]
    truncated_ratio: float = 0.0

    @property
    def advice(self) -> str:
        """Return the remedy if there is no training signal, else "" (empty)."""
        if self.mixed_rewards >= _LEAST_INFORMATIVE:
            return ""
        if self.truncated_ratio > _MANY_CUT:
            problem = f"{self.truncated_ratio:.0%} of the completions were truncated"
            return f"{problem} at sampling.max_new_tokens: raise it"
        if self.pass_at_1 > 0.5:
            return f"the tasks are too easy: take {_HARDER.get(self.environment, _OTHER_HARDER)}"
        return (
            "the tasks are too hard, or score() does not read this form of completion: take "
            f"{_EASIER.get(self.environment, _OTHER_EASIER)}, a larger model, or a larger "
            "sampling.max_new_tokens"
        )


@dataclass
class FirstGroups:
    """Collects the first groups of a node."""

    _groups: list[RolloutGroup] = field(default_factory=list)
    _is_complete: bool = False

    def add(self, group: RolloutGroup) -> Beginning | None:
        """Add a group. Return the results when the first groups are complete, once, else None."""
        if self._is_complete:
            return None
        self._groups.append(group)
        if len(self._groups) < COUNT:
            return None
        groups, self._groups, self._is_complete = self._groups, [], True
        rewards = [reward for first_group in groups for reward in first_group.claimed]
        return Beginning(
            environment=group.task.environment,
            pass_at_1=sum(rewards) / len(rewards),
            mixed_rewards=sum(len(set(first_group.claimed)) > 1 for first_group in groups),
            groups=len(groups),
            answers=tuple(
                "\n".join(first_group.completions[0].turn_texts)[:_SHOWN_CHARS]
                for first_group in groups[:_EXAMPLES]
            ),
            truncated_ratio=sum(first_group.cut for first_group in groups) / len(rewards),
        )
