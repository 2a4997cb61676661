"""By what this node knows a group again, whoever signs it and whatever number it has. Pure.

A signature says who sent a group, not who made it: a member can sign what others made, or make one
task again and again. So the digests of what was taken are kept (`Storage.accept`), own groups
included. Which of two authors of equal texts was the first, nobody can prove: times are claims. So
only one finding speaks against an author: a task that this node chose for itself.
"""

from __future__ import annotations

import hashlib

import msgspec

from swarm_node.rollout import RolloutGroup, TaskRef


def task_digest(task: TaskRef, author: str) -> bytes:
    """The digest of "this author made a group of this task"."""
    return _digest("task", *_named(task), author)


def content_digest(group: RolloutGroup, prompt: str = "") -> bytes:
    """The digest of a group's task and texts, whatever their order and white space. With `prompt`,
    that of the question and the texts: seeds of a data set may name the same question."""
    texts = sorted(" ".join(each.text.split()) for each in group.completions)
    return _digest("content", *([prompt] if prompt else _named(group.task)), *texts)


def digests(group: RolloutGroup, prompt: str, author: str) -> tuple[bytes, ...]:
    """All digests that are kept of a group that was taken from `author`."""
    return task_digest(group.task, author), content_digest(group), content_digest(group, prompt)


def _named(task: TaskRef) -> tuple[str, str, str, str]:
    return task.environment, task.version, task.family, str(task.seed)


def _digest(*parts: str) -> bytes:
    # A text may hold lone surrogates, which UTF-8 has no bytes for.
    encoded = [part.encode(errors="surrogatepass") for part in parts]
    return hashlib.sha256(msgspec.msgpack.encode(encoded)).digest()
