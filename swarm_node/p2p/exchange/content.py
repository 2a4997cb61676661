"""Digests that recognise a group again, whoever signs it and whatever its number. Pure.

A signature proves the sender of a group, not its maker: a member can sign groups that others made,
or repeat one task. So the digests of accepted groups are kept (`Storage.accept`), own groups
included. Nobody can prove which of two authors of equal texts was first, because times are claims.
So only one finding counts against an author: a task that this node chose for itself.
"""

from __future__ import annotations

import hashlib

import msgspec

from swarm_node.rollout import RolloutGroup, TaskRef


def task_digest(task: TaskRef, author: str) -> bytes:
    """The digest of "this author made a group of this task"."""
    return _digest("task", *_named(task), author)


def content_digest(group: RolloutGroup, prompt: str = "") -> bytes:
    """The digest of a group's task and texts, regardless of their order and white space. With
    `prompt`, the digest of the prompt and the texts: several seeds of a data set may have the same
    prompt."""
    texts = sorted(" ".join(each.text.split()) for each in group.completions)
    return _digest("content", *([prompt] if prompt else _named(group.task)), *texts)


def digests(group: RolloutGroup, prompt: str, author: str) -> tuple[bytes, ...]:
    """All digests that are stored for a group accepted from `author`."""
    return task_digest(group.task, author), content_digest(group), content_digest(group, prompt)


def _named(task: TaskRef) -> tuple[str, str, str, str]:
    return task.environment, task.version, task.family, str(task.seed)


def _digest(*parts: str) -> bytes:
    # A text may hold lone surrogates, which have no UTF-8 encoding.
    encoded = [part.encode(errors="surrogatepass") for part in parts]
    return hashlib.sha256(msgspec.msgpack.encode(encoded)).digest()
