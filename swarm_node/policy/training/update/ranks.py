"""The processes that train together, and the split of an update's rows among them.

`Ranks` itself is one process, the usual case; `sharded.Group` is several. Every process gets the
whole batch, so each can compute every other's share without communication.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.models.loading import PolicyModel, load_model
from swarm_node.policy.placement import Placement
from swarm_node.policy.training.objective.packing import micro_batches, sequences, shared_length


class Ranks:
    """Process number `index` of `count`. All processes call every method, in the same order. This
    is one process that trains alone; `sharded.Group` is of several, and overrides all of it."""

    index: int = 0
    count: int = 1

    def agree_on(self, placement: Placement) -> None:
        """Prepare this process's device.

        Raises:
            ModelError: other processes compute in another way.
        """

    def load_sharded(self, directory: Path, placement: Placement) -> PolicyModel:
        """`load_model` on its device, sharded: each process reads and holds a part of
        every parameter."""
        return load_model(directory).to(placement.device)

    def local(self, parameter: nn.Parameter) -> nn.Parameter:
        """This process's part of `parameter`, in the same memory; may be empty."""
        return parameter

    def gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """This process's part of the gradient."""
        return parameter.grad

    def gather(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        """The whole tensor. Each process gives the `part` that matches its part of `parameter`."""
        return part

    def cut(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """This process's part of `tensor`; the inverse of `gather`. No other part is read."""
        return tensor

    def load(self, model: PolicyModel, weights: Mapping[str, Tensor]) -> None:
        """`CausalLM.load_hf_state` for a model that may be sharded; see `cut`."""
        model.load_hf_state(weights)

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of the parameters that every process holds whole."""

    def norm(self, value: Tensor) -> float:
        """`value`, a norm over the gradients of all processes, as a number."""
        return float(value)

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum of each number over all processes."""
        return list(values)

    def agree_on_path(self, find: Callable[[], Path | None], root: Path) -> Path | None:
        """Return to all processes the directory of files that `find` gives in the first. A process
        of another host gets a copy of it below its own `root`.

        Raises:
            CheckpointError: `find` raised one, in the first process.
        """
        return find()

    def token_budget(self, budget: int) -> int:
        """Tokens per micro-batch: `budget`, or fewer after a process ran out of memory."""
        return budget

    def shrink(self, token_budget: int) -> None:
        """Store a smaller `token_budget` for the processes that start after this one ends."""


ALONE = Ranks()


def rounds(
    rows: Sequence[TrainRow],
    token_budget: int,
    ranks: Ranks,
    *,
    whole_groups: bool,
    share: bool = True,
) -> list[list[int]]:
    """The micro-batches of this process, as indices of `rows`. For `share` see `sequences`.

    Every process has the same number, because all process a micro-batch in one collective step. A
    process with fewer rows gets empty ones.
    """
    shares = split(rows, ranks.count, token_budget, whole_groups=whole_groups)
    rank_batches = [
        micro_batches([rows[index] for index in indices], token_budget, share) for indices in shares
    ]
    indices = shares[ranks.index]
    batches = [[indices[place] for place in group] for group in rank_batches[ranks.index]]
    return batches + [[]] * (max(map(len, rank_batches)) - len(batches))


def split(
    rows: Sequence[TrainRow], count: int, token_budget: int, *, whole_groups: bool
) -> list[list[int]]:
    """Indices of `rows` for each of `count` processes, with about as many tokens each. The longest
    sequence goes first, always to the process with the fewest tokens so far. The rows of a shared
    sequence stay together; with `whole_groups`, the rows of one task do."""
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
        lightest_rank = load.index(min(load))
        shares[lightest_rank].extend(piece)
        load[lightest_rank] += size
    return shares
