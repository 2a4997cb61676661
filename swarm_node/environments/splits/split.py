"""The rule that puts a question into the training or the held-out part: its text alone. Pure.

A held-out seed says nothing about the text that a generator makes of it: most texts of a small
generator occur under training seeds too. So the text decides, for every environment.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

from swarm_node.environments.splits.seeds import held_out_seed, task_seed
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
_OF = " of swarm-node "
_RELEASE = re.compile(r"[0-9.]{1,16}", re.ASCII)
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
    """Check that a question is held out for evaluation. It stays held out as the share grows."""
    return position(question) < bound_of(share)


def next_seed(ref: TaskRef, draw: int) -> int:
    """The seed of the draw number `draw`, from 1 on. It is used for a reference whose own seed
    makes a text of the other side, and is on the side that the reference names."""
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


def describe_version(version: str) -> str:
    """The environment's own part of a version, with the release of another split beside it."""
    match = _SUFFIXED.fullmatch(version)
    if match is None:
        return version
    return match[1] if int(match[2]) == SPLIT else f"{match[1]}{_OF}{match[3]}"


def release_needed(version: str) -> str:
    """The release that this node needs, because `version` is of another split than its own; "" for
    the same."""
    return release_remedy(describe_version(version))


def release_remedy(text: str) -> str:
    """As `release_needed`, for a text that ends with the words of `describe_version`."""
    _, separator, release = text.rpartition(_OF)
    if separator and _RELEASE.fullmatch(release):
        return f"this node runs an older release and needs swarm-node {release} or newer"
    return ""
