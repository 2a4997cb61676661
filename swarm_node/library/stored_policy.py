"""Stored policies of a home: found by name, and loaded into a sampler. No node runs for it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from psutil import pid_exists

from swarm_node.errors import CheckpointError
from swarm_node.library.resolve_names import ALL, BASE, no_policy, policy_directory, require_policy
from swarm_node.policy.models.decoder.lora import ADAPTER_FILE
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import Placement
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.checkpoints.stored import (
    FILES,
    MANIFEST,
    MODEL,
    checkpoints,
    fault_of,
    head,
    newest_valid,
)


class StoredPolicy(NamedTuple):
    """A policy on the disk: the model in the directory `model`, with the weights or the adapter in
    the checkpoint `path`, if there is one."""

    name: str
    version: int
    model: Path
    path: Path | None = None
    rank: int = 0


#: Errors of a file system, or of a right, that forbid a second name of a file.
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.EROFS, errno.EXDEV, errno.ENOTSUP, errno.EMLINK}


_HELD = ".held-"


@contextmanager
def holding(store: Path) -> Iterator[Callable[[Path], Path]]:
    """Yield a function that holds a checkpoint: it returns a directory with second names of its
    files, which stay until the end, although a running node replaces the checkpoint. Where there
    can be none, it returns the checkpoint itself.

    The function raises FileNotFoundError if the checkpoint is gone already.
    """
    for left in store.glob(f"{_HELD}*"):  # by an evaluation that was killed
        number = left.name.removeprefix(_HELD)
        if number.isdecimal() and not pid_exists(int(number)):
            shutil.rmtree(left, ignore_errors=True)
    place = store / f"{_HELD}{os.getpid()}"

    def hold(path: Path) -> Path:
        try:
            (place / path.name).mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in (MANIFEST, *FILES):
                os.link(path / name, place / path.name / name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return path
        return place / path.name

    try:
        yield hold
    finally:
        shutil.rmtree(place, ignore_errors=True)


def stored_policies(
    checkpoint: str | None,
    store: Path,
    model: Path,
    hold: Callable[[Path], Path] = lambda path: path,
    on_replaced: Callable[[str], object] = lambda name: None,
) -> list[StoredPolicy]:
    """The policies that `checkpoint` names, from the oldest on: a checkpoint, by its directory or
    its name below `store`; the directory of a whole model; `BASE` or `ALL`; None is the newest.
    `model` is the directory of the base. `hold` is that of `holding`; `on_replaced` gets the name
    of each checkpoint of `ALL` that was replaced before it could be held.

    Raises:
        CheckpointError: there is none, it is damaged, or it was made from another model.
        ModelError: a directory holds no model.
    """
    base = StoredPolicy(BASE, 0, model)
    if checkpoint == BASE:
        return [base]
    if checkpoint == ALL:
        policies = [base]
        for path in reversed(checkpoints(store)):
            try:
                policies.append(_checkpoint(hold(path), model))
            except FileNotFoundError:
                on_replaced(path.name)
        return policies
    require_policy(checkpoint, store)
    if checkpoint is None:
        newest_path = newest_valid(store)
        if newest_path is None:
            raise CheckpointError(f"no checkpoint under {store} any more", "try again")
        return [_hold_policy(newest_path, model, hold)]
    path = policy_directory(checkpoint, store)
    if (path / MANIFEST).is_file():
        is_in_store = path.parent.resolve() == store.resolve()
        return [_hold_policy(path, model, hold) if is_in_store else _checkpoint(path, model)]
    if (path / "config.json").is_file():
        return [StoredPolicy(path.name, 0, resolve(str(path)))]
    raise no_policy(path, store)


def _hold_policy(path: Path, model: Path, hold: Callable[[Path], Path]) -> StoredPolicy:
    try:
        return _checkpoint(hold(path), model)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} was replaced meanwhile", "try again") from error


def _checkpoint(path: Path, model: Path) -> StoredPolicy:
    fault = fault_of(path)
    if fault is not None:
        if not path.exists():
            raise FileNotFoundError(path)
        raise CheckpointError(f"{path} cannot be used: {fault}", "name another with --checkpoint")
    header = head(path)
    if header.model != policy_digests(model)[0]:
        raise CheckpointError(
            f"{path} was not made from the model in {model}", "name its base with --model"
        )
    return StoredPolicy(path.name, header.version, model, path, header.rank)


async def open_sampler(
    policy: StoredPolicy, codec: Codec, placement: Placement, threads: int
) -> TorchSampler:
    """A sampler with the weights of a stored policy.

    Raises:
        ModelError: they do not fit the model, or memory.
    """
    sampler = TorchSampler.from_directory(policy.model, placement, codec=codec, threads=threads)
    if policy.path is None:
        return sampler
    try:
        if not policy.rank:
            await sampler.load(policy.path / MODEL, policy.version)
            return sampler
        with tempfile.TemporaryDirectory(prefix="swarm-node-adapter-") as directory:
            (Path(directory) / ADAPTER_FILE).symlink_to((policy.path / MODEL).absolute())
            await sampler.load(Path(directory), policy.version)
    except BaseException:
        await sampler.close()
        raise
    return sampler
