"""What a start is refused for besides its machine (`preflight.doctor`): the choice of tasks, a
model on this disk, and the checkpoint to go on from.

One list for both: `join` refuses the first that raises, and `swarm-node doctor` shows all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from swarm_node.config import Settings
from swarm_node.environments.presets import Tried, check_choice
from swarm_node.environments.splits.splitting import Asking
from swarm_node.errors import ModelError, SwarmNodeError
from swarm_node.node.loops.sampling.fit import check_groups
from swarm_node.node.metrics.snapshot import saved_in
from swarm_node.node.preflight.doctor import Finding
from swarm_node.p2p.addresses.addresses import require_endpoints
from swarm_node.policy.models.model import Model
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.training.checkpoints.stored import newest_readable


class Check(NamedTuple):
    """One reason to refuse a start: `score` raises a `SwarmNodeError`, or returns."""

    subject: str
    run: Callable[[], object]


def of_choice(settings: Settings) -> Iterator[Check]:
    """The checks of what the settings name."""
    network, table = settings.network, settings.environment
    yield Check("port", partial(require_endpoints, (*network.listen, *network.advertise)))
    choice = partial(check_choice, table.name, table.options, table.families)
    yield Check("environment", choice)


def of_model(settings: Settings, model: Model, trial: Tried, checkpoints: Path) -> Iterator[Check]:
    """The checks of a model that was read, for an environment by its `trial`, and of what is
    stored under `checkpoints`. `settings` are those of the start."""
    yield Check("turns", partial(_check_turns, settings, model, trial))
    max_tokens = settings.sampling.max_new_tokens
    yield Check("context", partial(check_positions, model.codec, max_tokens))
    codec = model.codec.asking(Asking.of(settings.environment.options).system)
    yield Check("prompts", partial(check_prompts, codec, max_tokens, trial.shortest_prompt))
    rank, base = settings.training.lora_rank, model.policy.model
    yield Check("checkpoints", partial(_check_newest, checkpoints, rank, base))


def run_checks(checks: Iterable[Check]) -> Iterator[Finding]:
    """The findings of the checks that refuse a start."""
    for check in checks:
        try:
            check.run()
        except SwarmNodeError as error:
            yield Finding(check.subject, "error", *error.split_remedies())


def check_positions(codec: Codec, max_tokens: int) -> None:
    """Refuse answers of `max_tokens` tokens that leave no room for a prompt.

    Raises:
        ModelError: they do.
    """
    if not codec.fits((), max_tokens + 1):
        raise ModelError(
            f"sampling.max_new_tokens is {max_tokens} and the model's context "
            f"length is {codec.positions}, for prompt and completion together",
            "lower it",
        )


def check_prompts(codec: Codec, max_tokens: int, shortest_prompt: str) -> None:
    """Refuse a list whose questions are all too long for the model, by the `shortest_prompt` of
    some of its prompts; "": it is not known.

    Raises:
        ModelError: it is.
    """
    if not shortest_prompt:
        return
    prompt_ids = codec.encode_prompt(shortest_prompt)
    if not codec.fits(prompt_ids, max_tokens):
        left = codec.positions - len(prompt_ids)
        lower = f"lower it to {left:,} or less, " if left > 0 else ""
        raise ModelError(
            f"no prompt that was tried fits the model's context length of {codec.positions:,}: the "
            f"shortest has {len(prompt_ids):,} tokens, and its completion may have {max_tokens:,} "
            f"(sampling.max_new_tokens): {lower}take shorter prompts, or a model with a longer "
            "context"
        )


def _check_turns(settings: Settings, model: Model, trial: Tried) -> None:
    try:
        check_groups(trial, model.codec, settings.sampling)
    except ModelError as error:
        raise ModelError(f"{settings.model} cannot play {trial.name}: {error}") from error


def _check_newest(checkpoints: Path, rank: int, base: bytes) -> None:
    """Refuse to go on from the newest checkpoint with adapters of another `rank`, or on another
    `base`."""
    state = newest_readable(checkpoints)
    if state is not None:
        state.require(rank, base)
        saved_in(state.extra)
