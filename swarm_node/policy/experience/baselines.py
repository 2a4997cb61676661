"""Groups of one task merge into one broader baseline. Pure.

Where nodes sample common tasks (`sampling.common_share`), a group is judged against all answers to
its task that this node has seen of the same base model and tokenizer: its own and kin's are of one
class, each foreign model's of another. Only rewards are remembered, so a group still counts after
it was trained on, and none waits for another.
"""

from __future__ import annotations

from collections import OrderedDict

from swarm_node.rollout import TaskRef, VerifiedGroup

#: Groups that merge at most. An author counts once per task, so nobody fills it alone.
MOST_GROUPS = 8

_Key = tuple[TaskRef, bytes, bytes]
#: By author: when a group came, in own updates, and its rewards.
_Rewards = dict[str, tuple[int, tuple[float, ...]]]


class Baselines:
    """Rewards by task and class: of the last `tasks` heard of, of at most `MOST_GROUPS` groups."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._known: OrderedDict[_Key, _Rewards] = OrderedDict()

    def note(self, group: VerifiedGroup) -> None:
        """Remember its rewards; of each author the first group of a task counts."""
        known = self._known.setdefault(_key(group), {})
        self._known.move_to_end(_key(group))
        if len(known) < MOST_GROUPS:
            known.setdefault(group.author, (group.arrived, group.rewards))
        if len(self._known) > self._tasks:
            self._known.popitem(last=False)

    def beside(self, group: VerifiedGroup, version: int, max_age: int) -> tuple[float, ...]:
        """Rewards of the other groups of its task and class that came at most `max_age` updates
        before policy `version`."""
        known = self._known.get(_key(group), {})
        return tuple(
            reward
            for author, (arrived, rewards) in known.items()
            if author != group.author and version - arrived <= max_age
            for reward in rewards
        )


def _key(group: VerifiedGroup) -> _Key:
    policy = group.group.policy
    return group.group.task, policy.model, policy.tokenizer
