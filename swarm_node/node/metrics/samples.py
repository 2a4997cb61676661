"""Some of the completions that a node sampled and trained on, for its owner to read. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from swarm_node.recent import Recent
from swarm_node.rollout import RolloutGroup, VerifiedGroup

_FAMILIES = 64
_PROMPT_CHARS, _ANSWER_CHARS = 400, 400
#: Of a multi-turn rollout, the last texts and the end of each. The last one is the model's.
_TEXTS, _TEXT_CHARS = 9, 200
#: Local groups over which a fraction is taken.
_RECENT = 256
_EQUAL_WITHIN = 1e-6


class SampleRow(msgspec.Struct, frozen=True):
    """One rollout, shortened. `author` is the peer that sampled it, "" for this node, and `version`
    that author's policy version. Of a multi-turn one `completion` is the whole exchange, and
    `turns` has its last texts one by one: completions and observations in turn. Control
    characters are still in it: show it escaped."""

    family: str
    prompt: str
    completion: str
    reward: float
    version: int
    author: str = ""
    turns: list[str] = []


class SamplesReport(msgspec.Struct, frozen=True):
    """The reply to `GET /v1/samples`."""

    schema: int
    samples: list[SampleRow]


class RecentRow(msgspec.Struct, frozen=True):
    """The newest local `groups`: the number with `mixed` rewards, and the mean `reward`. They have
    `completions`, of which `truncated` ran out of tokens."""

    groups: int
    mixed: int
    reward: float
    completions: int = 0
    truncated: int = 0


class Samples:
    """Rollouts by family: the first and the newest local one, and the best of a peer's newest
    group."""

    def __init__(self) -> None:
        self._first: Recent[str, SampleRow] = Recent(_FAMILIES)
        self._newest_rows: Recent[str, SampleRow] = Recent(_FAMILIES)
        self._peers: Recent[str, SampleRow] = Recent(_FAMILIES)
        self._recent_groups: deque[tuple[bool, float, int, int]] = deque(maxlen=_RECENT)

    def add_local_group(
        self, group: RolloutGroup, prompt: str, observations: Sequence[Sequence[str]] = ()
    ) -> None:
        """Take in an own group. Its first answer is shown, whatever its reward; of a multi-turn
        rollout all that was said, with the `observations` between its turns."""
        rewards = group.claimed
        mixed = max(rewards) - min(rewards) > _EQUAL_WITHIN
        self._recent_groups.append((mixed, _mean(rewards), len(rewards), group.cut))
        row = _row(
            group, prompt, 0, rewards[0], observations=observations[0] if observations else ()
        )
        if row.family not in self._first:
            self._first[row.family] = row
        self._newest_rows[row.family] = row

    def external(self, group: VerifiedGroup) -> None:
        """Take in a peer's group. Its best answer is shown, because that is trained on."""
        best_index = max(range(len(group.rewards)), key=group.rewards.__getitem__)
        observations = group.observations[best_index] if group.observations else ()
        author, reward = group.author, group.rewards[best_index]
        row = _row(group.group, group.prompt, best_index, reward, author, observations)
        self._peers[row.family] = row

    def rows(self) -> list[SampleRow]:
        """Return, by family, the first own answer, the newest one, and the newest of a peer."""
        return list(self._rows())

    def recent(self) -> RecentRow:
        """Return the counts and the mean reward of the newest own groups."""
        return RecentRow(
            groups=len(self._recent_groups),
            mixed=sum(mixed for mixed, *_ in self._recent_groups),
            reward=_mean([reward for _, reward, *_ in self._recent_groups]),
            completions=sum(answers for _, _, answers, _ in self._recent_groups),
            truncated=sum(count for *_, count in self._recent_groups),
        )

    def examples(self, count: int) -> list[SampleRow]:
        """Own answers, of different families, the newest first."""
        return list(reversed(self._newest_rows.values()))[:count]

    def _rows(self) -> Iterator[SampleRow]:
        for family in sorted({*self._first, *self._newest_rows, *self._peers}):
            first, newest_row = self._first.get(family), self._newest_rows.get(family)
            if first is not None and first is not newest_row:
                yield first
            for row in (newest_row, self._peers.get(family)):
                if row is not None:
                    yield row


def _row(
    group: RolloutGroup,
    prompt: str,
    index: int,
    reward: float,
    author: str = "",
    observations: Sequence[str] = (),
) -> SampleRow:
    *earlier_texts, last = group.completions[index].turn_texts
    texts = [text for turn in zip(earlier_texts, observations, strict=True) for text in turn]
    texts.append(last)
    answer = "".join(f"\n> {text}\n" if place % 2 else text for place, text in enumerate(texts))
    return SampleRow(
        family=group.task.family,
        prompt=prompt[-_PROMPT_CHARS:],
        completion=answer[-_ANSWER_CHARS:],
        reward=reward,
        version=group.policy.version,
        author=author,
        turns=[text[-_TEXT_CHARS:] for text in texts[-_TEXTS:]] if earlier_texts else [],
    )


def _mean(values: tuple[float, ...] | list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
