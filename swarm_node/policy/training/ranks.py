"""The processes that train together, and how an update's rows are dealt to them.

`Alone` is the usual one process; `sharded.Group` is several. All of them are given the same batch,
so each knows what every other computes, and none has to ask.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn

from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.models.qwen2 import Qwen2
from swarm_node.policy.placement import Placement
from swarm_node.policy.training.packing import micro_batches, sequences, shared_length


class Ranks(Protocol):
    """Process number `index` of `count`. Every method is called by all of them, in one order."""

    index: int
    count: int

    def spread(self, model: Qwen2, placement: Placement, *, frozen: bool) -> None:
        """Bring `model` to its device, each process holding its part of every parameter; all of it
        where it stays `frozen`. Takes the place of `model.to`: parameters are new ones after it."""
        ...

    def local(self, parameter: nn.Parameter) -> nn.Parameter:
        """This process's part of `parameter`, in the same memory; may be empty."""
        ...

    def gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """This process's part of the gradient."""
        ...

    def gather(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        """The whole of what each process holds a `part` of, as it does of `parameter`."""
        ...

    def cut(self, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        """The inverse of `gather`."""
        ...

    def load(self, model: Qwen2, weights: Mapping[str, Tensor]) -> None:
        """`Qwen2.load_hf_state`, wherever the parts are."""
        ...

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of those that every process holds whole."""
        ...

    def norm(self, value: Tensor) -> float:
        """A norm over all gradients, as a number."""
        ...

    def sums(self, values: Sequence[float]) -> list[float]:
        """Of each number the sum over all processes."""
        ...

    def token_budget(self, wanted: int) -> int:
        """The tokens of a micro-batch: `wanted`, or fewer where a process ran out of memory."""
        ...

    def shrink(self, token_budget: int) -> None:
        """Note a smaller `token_budget`, for those who start after this process dies."""
        ...


class Alone:
    """One process that trains by itself."""

    index = 0
    count = 1

    def spread(self, model: Qwen2, placement: Placement, *, frozen: bool) -> None:
        model.to(placement.device)

    def local(self, parameter: nn.Parameter) -> nn.Parameter:
        return parameter

    def gradient(self, parameter: nn.Parameter) -> Tensor | None:
        return parameter.grad

    def gather(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        return part

    def cut(self, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        return whole

    def load(self, model: Qwen2, weights: Mapping[str, Tensor]) -> None:
        model.load_hf_state(weights)

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        pass

    def norm(self, value: Tensor) -> float:
        return float(value)

    def sums(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def token_budget(self, wanted: int) -> int:
        return wanted

    def shrink(self, token_budget: int) -> None:
        pass


ALONE = Alone()


def rounds(
    rows: Sequence[TrainRow], token_budget: int, ranks: Ranks, *, whole_groups: bool
) -> list[list[int]]:
    """The micro-batches of this process, as indices of `rows`.

    As many for every process, for each is a step that all take together: one that has nothing left
    gets empty ones.
    """
    shares = split(rows, ranks.count, token_budget, whole_groups=whole_groups)
    packed = [micro_batches([rows[index] for index in share], token_budget) for share in shares]
    mine = shares[ranks.index]
    own = [[mine[place] for place in group] for group in packed[ranks.index]]
    return own + [[]] * (max(map(len, packed)) - len(own))


def split(
    rows: Sequence[TrainRow], count: int, token_budget: int, *, whole_groups: bool
) -> list[list[int]]:
    """Indices of `rows` for each of `count` processes, with about as many tokens each: the longest
    first, each to who has least so far. What makes one sequence stays together; in `whole_groups`
    the rows of one task do."""
    if count == 1:
        return [list(range(len(rows)))]
    if whole_groups:
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            groups[row.group].append(index)
        pieces = [(sum(len(rows[i]) for i in group), group) for group in groups.values()]
    else:
        packs = sequences(rows, token_budget)
        pieces = [(shared_length(rows, pack), pack) for pack in packs]
    shares: list[list[int]] = [[] for _ in range(count)]
    load = [0] * count
    for size, piece in sorted(pieces, key=lambda item: -item[0]):
        least = load.index(min(load))
        shares[least].extend(piece)
        load[least] += size
    return shares
