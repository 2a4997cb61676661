"""Packing: rows become sequences, and sequences micro-batches. Pure.

The answers to one task share its prompt. A shared sequence holds the prompt once and then every
answer; attention lets each answer attend to the prompt and to itself only (Prefix Grouper, arXiv
2506.05433). So the prompt is computed once. Attention grows with the square of the sequence's
length. So a shared sequence must be short, and it pays only if prompts are long compared with
answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.memory.footprint import MOST_KEYS, MOST_SHARED_TOKENS, WORTHWHILE

# A shared sequence has at most MOST_SHARED_TOKENS, and at most the share WORTHWHILE of its rows'
# tokens: masked attention costs twice as much as causal attention, and must not cost more than
# sharing saves. It has at most MOST_KEYS keys for each of its tokens, because each answer copies
# those of the prompt.
#: Most padding in a micro-batch: this share of its tokens, or the tokens that one more micro-batch
#: would cost (benchmarks/trainer.py measures both).
_PADDING_SHARE = 0.1
_PADDING_TOKENS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """A micro-batch as the model takes it. `ids` i64[B, T] are its input. `segments` i64[B, T]
    number the answer of its sequence that a token belongs to; 0 is the prompt, −1 padding. They are
    None where every sequence is one row. `places` i64[3, N] has for every completion token, row
    after row, its sequence, the position that predicts it, and its id. A token that stands between
    the turns of a multi-turn rollout is in `ids` and has no place, so nothing is trained on it."""

    ids: NDArray[np.int64]
    segments: NDArray[np.int64] | None
    places: NDArray[np.int64]


def micro_batches(
    rows: Sequence[TrainRow], token_budget: int, share: bool = True
) -> list[list[int]]:
    """Indices of `rows`, grouped so that sequences × longest one ≤ `token_budget` in every group.

    Sequences of similar length share a group. A group ends where one more sequence would make over
    a tenth of it padding, unless that padding costs less than another group. The longest sequences
    come first, so that a lack of memory shows at once. A row over the budget gets its own group.
    """
    packs = [
        (shared_length(rows, pack), pack) for pack in sequences(rows, token_budget if share else 0)
    ]
    groups: list[list[int]] = []
    #: Prompts of the group, each with its shortest answer, and whether sequences of it may join.
    min_answers: dict[bytes, int] = {}
    may_join = False
    max_length = tokens = count = 0
    for length, pack in sorted(packs, key=lambda item: -item[0]):
        prompt_ids = rows[pack[0]].prompt_ids
        prompt = prompt_ids.tobytes()
        answer = min(rows[index].answer_size for index in pack)
        padded_size = max_length * (count + 1)
        size_bound = padded_size
        # `arrange` makes sequences of the group anew, and may join others of the same prompt. If
        # sharing does not pay for the shortest of the answers, it pays for none of them.
        if share and prompt in min_answers:
            answer = min(answer, min_answers[prompt])
            may_join |= answer <= WORTHWHILE * (prompt_ids.size + answer)
            if may_join:
                size_bound = padded_tokens(rows, [*groups[-1], *pack])
        padding = padded_size - tokens - length
        padding_limit = max(_PADDING_SHARE * padded_size, _PADDING_TOKENS)
        if groups and max(padded_size, size_bound) <= token_budget and padding <= padding_limit:
            groups[-1].extend(pack)
            min_answers[prompt] = answer
            tokens += length
            count += 1
        else:
            groups.append(list(pack))
            min_answers, may_join = {prompt: answer}, False
            max_length, tokens, count = length, length, 1
    return groups


def padded_tokens(rows: Sequence[TrainRow], group: Sequence[int], share: bool = True) -> int:
    """Tokens of the micro-batch `group`, padding included: sequences × longest one."""
    group_rows = [rows[index] for index in group]
    packs = sequences(group_rows, MOST_SHARED_TOKENS if share else 0)
    return len(packs) * max(shared_length(group_rows, pack) for pack in packs)


def sequences(rows: Sequence[TrainRow], most_tokens: int = MOST_SHARED_TOKENS) -> list[list[int]]:
    """Indices of `rows`, one list for each sequence. A shared sequence has at most `most_tokens`
    tokens: with 0, which is for models that take none, there are none."""
    by_prompt: defaultdict[bytes, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_prompt[row.prompt_ids.tobytes()].append(index)
    packs: list[list[int]] = []
    for indices in by_prompt.values():
        for pack in _cut(rows, indices, min(most_tokens, MOST_SHARED_TOKENS)):
            split_size = sum(len(rows[index]) for index in pack)
            is_shared = shared_length(rows, pack) <= WORTHWHILE * split_size
            packs.extend([pack] if is_shared else [[index] for index in pack])
    return packs


def shared_length(rows: Sequence[TrainRow], pack: Sequence[int]) -> int:
    """Tokens of the shared sequence of rows with one prompt."""
    return int(rows[pack[0]].prompt_ids.size) + sum(rows[index].answer_size for index in pack)


def arrange(rows: Sequence[TrainRow], share: bool = True) -> Arrangement:
    """The model's input for the rows of a micro-batch. The last token of an answer predicts nothing
    and is left out. Without `share` every sequence is one row."""
    packs = sequences(rows, MOST_SHARED_TOKENS if share else 0)
    width = max(shared_length(rows, pack) - len(pack) for pack in packs)
    ids = np.zeros((len(packs), width), np.int64)
    segments = np.full((len(packs), width), -1, np.int64)
    places: list[NDArray[np.int64]] = [np.zeros((3, 0), np.int64)] * len(rows)
    for number, pack in enumerate(packs):
        prompt = rows[pack[0]].prompt_ids
        end = prompt.size
        ids[number, :end], segments[number, :end] = prompt, 0
        for answer, index in enumerate(pack, 1):
            token_ids, sampled_places = rows[index].ids_after_prompt()
            columns = np.arange(end, end + token_ids.size - 1)
            ids[number, columns], segments[number, columns] = token_ids[:-1], answer
            # The first token of every answer is predicted by the last one of the prompt.
            position = np.concatenate([[prompt.size - 1], columns])[sampled_places]
            places[index] = np.stack(
                [np.full_like(position, number), position, token_ids[sampled_places]]
            )
            end += token_ids.size - 1
    return Arrangement(
        ids, segments if len(packs) < len(rows) else None, np.concatenate(places, axis=1)
    )


def _cut(rows: Sequence[TrainRow], indices: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Rows of one prompt, in order, in as few sequences as the limit allows."""
    packs: list[list[int]] = []
    keys = 0
    for index in indices:
        keys += len(rows[index])
        joined_size = shared_length(rows, [*packs[-1], index]) if packs else 0
        if packs and joined_size <= most_tokens and keys <= MOST_KEYS * joined_size:
            packs[-1].append(index)
        else:
            packs.append([index])
            keys = len(rows[index])
    return packs
