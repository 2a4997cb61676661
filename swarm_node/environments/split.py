"""The rule by which a question belongs to training or to the held-out part: its text alone. Pure.

A seed that is held out says nothing about the text that a generator makes of it: most texts of a
small generator occur under training seeds too. So the text decides, for every environment.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

from swarm_node.environments.seeds import held_out_seed, task_seed
from swarm_node.rollout import TaskRef

#: Changes whenever the same question could be on the other side, or the same reference could move
#: on to another question.
SPLIT = 1
#: The first release that splits so.
RELEASE = "0.2"
#: The share of all texts that are held out.
HELD_OUT_SHARE = 1 / 8
#: Further seeds that a reference moves on to before its family is refused.
MAX_DRAWS = 1024

_DOMAIN = b"swarm-node/split/1\0"
_POSITIONS = 1 << 64
#: No wire field takes a longer version.
_MAX_VERSION = 64
_SUFFIX = f" split {SPLIT}, swarm-node {RELEASE}"
_SUFFIXED = re.compile(r"(.*) split (\d{1,9}), swarm-node ([0-9.]{1,16})", re.ASCII | re.DOTALL)


def canonical(question: str) -> str:
    """The text of a question in Unicode's form NFC, with single spaces for runs of white space and
    none around it."""
    return " ".join(unicodedata.normalize("NFC", question).split())


def position(question: str) -> int:
    """The place of a question's canonical text in [0, 2^64), even over all texts."""
    text = canonical(question).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(_DOMAIN + text).digest()[:8], "big")


def bound_of(share: float) -> int:
    """The position below which a `share` of all texts lies."""
    return int(share * _POSITIONS)


def is_held_out(question: str, share: float = HELD_OUT_SHARE) -> bool:
    """Whether a question is kept for evaluation. A question stays held out as the share grows."""
    return position(question) < bound_of(share)


def next_seed(ref: TaskRef, draw: int) -> int:
    """The seed of the draw number `draw`, from 1 on, for a reference whose own seed makes a text of
    the other side. It is on the side that the reference names."""
    hashed = held_out_seed if ref.held_out else task_seed
    return hashed("split", SPLIT, ref.family, ref.seed, draw)


def with_split(version: str) -> str:
    """The version of an environment that announces this split and the release that has it. A
    version that leaves no room for that is shortened to its beginning and a hash."""
    room = _MAX_VERSION - len(_SUFFIX)
    if len(version) > room:
        digest = hashlib.sha256(version.encode()).hexdigest()[:12]
        version = f"{version[: room - 13]}-{digest}"
    return version + _SUFFIX


def without_split(version: str) -> str:
    """The environment's own part of a version that announces this split; any other as it is."""
    return version.removesuffix(_SUFFIX)


def release_needed(theirs: str, ours: str = _SUFFIX) -> str:
    """What keeps an environment of the version `theirs` apart from one of the version `ours`, if
    that is the release of one of the nodes; "" if not."""
    other, own = _announced(theirs), _announced(ours)
    if other is None:
        if own is None:
            return ""
        return f"its node runs an older release and needs swarm-node {own[1]} or newer"
    if own is None or other[0] > own[0]:
        return f"this node runs an older release and needs swarm-node {other[1]} or newer"
    if other[0] < own[0]:
        return f"its node runs an older release and needs swarm-node {own[1]} or newer"
    return ""


def _announced(version: str) -> tuple[int, str] | None:
    """The number of the split and the release in a version, None if it has none."""
    found = _SUFFIXED.fullmatch(version)
    return None if found is None else (int(found[2]), found[3])
