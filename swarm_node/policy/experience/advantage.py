"""Group-relative advantages, and the baselines of tasks that several nodes sample. Pure.

A completion is compared with the other completions of the same task, so that no value model is
needed. `choices.py` describes each advantage in one line.

Where nodes sample common tasks (`environments/common.py`), the baseline of a group includes all
answers to its task that this node has seen from the same base model and tokenizer. Own and kin
groups are of one class, and each foreign model is another. `Baselines` remembers rewards only, so a
group still counts after it was trained on, and no group waits for another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from swarm_node.policy.choices import AdvantageName
from swarm_node.rollout import TaskRef, VerifiedGroup

#: Added to the standard deviation, so that nearly equal rewards do not give huge advantages.
STD_EPSILON = 1e-4
#: Rewards closer than this are equal; the same bound as `VerifiedGroup.informative`.
EQUAL_WITHIN = 1e-6

AdvantageFn = Callable[[ArrayLike], NDArray[np.float32]]


def grpo(rewards: ArrayLike) -> NDArray[np.float32]:
    """Advantages f32[G] of rewards f32[G]: (r − mean) / (std + 1e-4), population std (Shao et al.,
    "DeepSeekMath", arXiv 2402.03300, section 4.1).

    This and the other advantages are all zero when the rewards are equal within 1e-6: such a group
    has no gradient.

    Raises:
        ValueError: not one-dimensional, empty, or not finite.
    """
    values = _checked(rewards)
    return _unless_equal(values, (values - values.mean()) / (values.std() + STD_EPSILON))


def dr_grpo(rewards: ArrayLike) -> NDArray[np.float32]:
    """Advantages f32[G] of rewards f32[G]: r − mean (Liu et al., arXiv 2503.20783). Dividing by the
    deviation would favour tasks that nearly always or hardly ever succeed.

    Raises:
        ValueError: not one-dimensional, empty, or not finite.
    """
    values = _checked(rewards)
    return _unless_equal(values, values - values.mean())


def rloo(rewards: ArrayLike) -> NDArray[np.float32]:
    """Advantages f32[G] of rewards f32[G]: r − mean of the other rewards (Ahmadian et al., arXiv
    2402.14740), an unbiased baseline.

    Raises:
        ValueError: not one-dimensional, empty, or not finite.
    """
    values = _checked(rewards)
    others = (values.sum() - values) / max(values.size - 1, 1)
    return _unless_equal(values, values - others)


def broad(
    advantage: AdvantageFn, rewards: ArrayLike, others: ArrayLike = ()
) -> NDArray[np.float32]:
    """Advantages f32[G] of `rewards` f32[G] in a group that also includes `others` f32[H], the
    rewards of other groups of the same task (after Hu et al., "BroRL", arXiv 2510.01180: many
    rollouts per prompt). A group of equal rewards has a gradient here if the others' differ.

    Raises:
        ValueError: not one-dimensional, empty, or not finite.
    """
    values = _checked(rewards)
    whole = np.concatenate([values, np.asarray(others, dtype=np.float64)])
    return advantage(whole)[: values.size]


def _checked(rewards: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"rewards must be a non-empty vector, not of shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("rewards must be finite numbers")
    return values


def _unless_equal(
    values: NDArray[np.float64], advantages: NDArray[np.float64]
) -> NDArray[np.float32]:
    if values.max() - values.min() <= EQUAL_WITHIN:
        return np.zeros(values.shape, dtype=np.float32)
    return np.asarray(advantages, dtype=np.float32)


#: Every advantage by the name the settings use.
ADVANTAGES: Mapping[AdvantageName, AdvantageFn] = MappingProxyType(
    {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}
)


#: Most groups in one baseline. An author counts once per task, so nobody fills it alone.
MOST_GROUPS = 8

_Key = tuple[TaskRef, bytes, bytes]
#: Author -> the own update at which a group arrived, and its rewards.
_Rewards = dict[str, tuple[int, tuple[float, ...]]]


class Baselines:
    """Rewards by task and class, for the newest `tasks` tasks and up to `MOST_GROUPS` groups of
    each."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._known: OrderedDict[_Key, _Rewards] = OrderedDict()

    def note(self, group: VerifiedGroup) -> None:
        """Remember the rewards of `group`, if it is its author's first group of the task."""
        known = self._known.setdefault(_key(group), {})
        self._known.move_to_end(_key(group))
        if len(known) < MOST_GROUPS:
            known.setdefault(group.author, (group.arrived, group.rewards))
        if len(self._known) > self._tasks:
            self._known.popitem(last=False)

    def others(self, group: VerifiedGroup, version: int, max_age: int) -> tuple[float, ...]:
        """Rewards of other authors' groups of the same task and class that arrived at most
        `max_age` updates before policy `version`."""
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
