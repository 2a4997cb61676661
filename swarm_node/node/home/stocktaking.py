"""Reads the files of a home for `inventory.judge`. Nothing is written.

Of each file the version is checked first, then the digest, then the fit to the others: the
membership is of this key, the root's key of this swarm.
"""

from __future__ import annotations

import hashlib
import sqlite3
import stat
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgpack
import msgspec
from msgspec import Struct

from swarm_node.database import read_only
from swarm_node.durable import open_regular
from swarm_node.errors import HomeError, Rejected
from swarm_node.node.home.inventory import RECORD, Found, HomeState, Record, judge
from swarm_node.p2p.membership.membership import (
    SWARM_FILE_VERSION,
    IssuerBody,
    SwarmInfo,
    open_chain,
    verify_issuer,
)
from swarm_node.p2p.membership.statements import verify_revocations, verify_secret
from swarm_node.p2p.wire.identity import KEY_BYTES, MAX_PRIVATE_BYTES, Identity
from swarm_node.policy.training.checkpoints.stored import checkpoints, fault_of
from swarm_node.program.private_directory import MAX_KEPT_BYTES, content_of
from swarm_node.storage import database_flaw

_KEY_FILES = ("node.key", "root.key", "site.key", "issuer.key")
_SMALL_FILES = (
    *("membership", "secret", "revoked", "issuer.certificate", "admitted", "coordinator"),
    *("bootstrap", "port", "addresses", "settings.json"),
    *("invitations.json", "tickets.json", "bans.json"),
)
#: Files whose locks are held. They hold nothing.
_LOCKS = ("lock", "recording", "editing")
#: The digest of the database, while no node runs. A node that was killed leaves none.
DATABASE_DIGEST = "node.db.sha256"
#: Up to this size the digests of the newest checkpoint are checked: half a second a GB.
_DIGESTED_BYTES = 2 << 30
_Read = bytes | Found


class Stock(NamedTuple):
    """The files of a home, and its record if that is sound."""

    files: Mapping[str, Found]
    record: Record | None

    def judged(self, *, ticket: bool = False) -> HomeState:
        return judge(self.files, self.record, ticket=ticket)


class _Versioned(Struct):
    version: int


def take_stock(path: Path, *, deep: bool = False, swarm: SwarmInfo | None = None) -> Stock:
    """Read the files of the home at `path`. `deep`: database and checkpoints too, which takes
    seconds where they are large. Signed files are checked by `swarm`, by default that of
    swarm.json."""
    files: dict[str, Found] = {}
    record = _record(path, files)
    own = _swarm(path / "swarm.json", files)
    swarm = swarm or own
    keys = {name: _key(path / name, files) for name in _KEY_FILES}
    contents = {name: _small(path / name, files) for name in _SMALL_FILES}
    if swarm is not None:
        _fit(files, keys, contents, swarm)
    _stored(path, files, deep)
    for name in _LOCKS:
        held = _bytes(path / name, 0)
        if isinstance(held, Found) and held.state == "damaged":
            files[name] = held
    return Stock(files, record)


def _record(path: Path, files: dict[str, Found]) -> Record | None:
    raw = _bytes(path / RECORD, MAX_PRIVATE_BYTES)
    content = raw if isinstance(raw, Found) else content_of(raw)
    if isinstance(content, bytes):
        try:
            record = msgspec.json.decode(content, type=Record)
        except (ValueError, RecursionError):
            content = "damaged"
        else:
            files[RECORD] = Found("sound")
            return record
    files[RECORD] = content if isinstance(content, Found) else Found(content)
    return None


def _swarm(path: Path, files: dict[str, Found]) -> SwarmInfo | None:
    raw = _bytes(path, MAX_PRIVATE_BYTES)
    found = raw if isinstance(raw, Found) else _swarm_version(raw)
    info = None
    if found.state == "sound":
        try:
            info = SwarmInfo.load(path)
        except HomeError as error:
            found = _open(path) or Found("damaged", _reason(error))
    files[path.name] = found
    return info


def _swarm_version(raw: bytes) -> Found:
    try:
        version = msgspec.json.decode(raw, type=_Versioned).version
    except (ValueError, RecursionError):
        return Found("damaged") if raw else Found("empty")
    if version > SWARM_FILE_VERSION:
        return Found("newer", f"version {version}")
    older = version < SWARM_FILE_VERSION
    return Found("damaged", f"version {version}") if older else Found("sound")


def _key(path: Path, files: dict[str, Found]) -> Identity | None:
    raw = _bytes(path, KEY_BYTES)
    if isinstance(raw, Found):
        files[path.name] = raw
        return None
    flaw = _open(path)
    if flaw is None and len(raw) != KEY_BYTES:
        flaw = Found("damaged", f"a key has {KEY_BYTES} bytes") if raw else Found("empty")
    files[path.name] = flaw or Found("sound")
    return None if flaw else Identity.from_seed(raw)


def _small(path: Path, files: dict[str, Found]) -> bytes | None:
    raw = _bytes(path, MAX_KEPT_BYTES)
    content = raw if isinstance(raw, Found) else content_of(raw)
    if isinstance(content, bytes):
        files[path.name] = Found("sound")
        return content
    files[path.name] = content if isinstance(content, Found) else Found(content)
    return None


def _fit(
    files: dict[str, Found],
    keys: Mapping[str, Identity | None],
    contents: Mapping[str, bytes | None],
    swarm: SwarmInfo,
) -> None:
    """Mark the files that are whole and do not fit the swarm or the node's key."""
    node, root, issuer = keys["node.key"], keys["root.key"], keys["issuer.key"]
    if root is not None and root.public_key != swarm.root_key:
        files["root.key"] = Found("foreign", f"it is not the root of swarm {swarm.name!r}")
    verifiers: dict[str, Callable[[bytes, SwarmInfo], object]] = {
        "secret": verify_secret,
        "revoked": verify_revocations,
        "issuer.certificate": verify_issuer,
    }
    for name, verify in verifiers.items():
        content = contents[name]
        opened = None if content is None else verify(content, swarm)
        if isinstance(opened, Rejected):
            files[name] = Found("foreign", f"swarm {swarm.name!r} did not sign it")
    certificate = contents["issuer.certificate"]
    steward = None if certificate is None else verify_issuer(certificate, swarm)
    if isinstance(steward, IssuerBody) and issuer and steward.issuer_key != issuer.public_key:
        files["issuer.key"] = Found("foreign", "it is not the key of issuer.certificate")
    chain = contents["membership"]
    if chain is not None and node is not None:
        files.update(_member(chain, swarm, node))


def _member(raw: bytes, swarm: SwarmInfo, node: Identity) -> dict[str, Found]:
    try:
        issuer, member = msgpack.unpackb(raw)
        opened = open_chain((issuer, member), swarm, node.public_key)
    except (ValueError, TypeError):
        return {"membership": Found("damaged")}
    if not isinstance(opened, Rejected):
        return {}
    if opened.reason == "wrong_subject":
        return {"node.key": Found("foreign", "the membership is of another key")}
    return {"membership": Found("foreign", f"not of swarm {swarm.name!r}: {opened.reason}")}


def _stored(path: Path, files: dict[str, Found], deep: bool) -> None:
    """Look at what a running node writes."""
    metrics = path / "metrics.jsonl"  # a crash may cut a line, so only its being there is judged
    there = metrics.exists() and metrics.stat().st_size > 0
    files[metrics.name] = Found("sound" if there else "absent")
    database, root = path / "node.db", path / "checkpoints"
    if not database.exists():
        files[database.name] = Found("absent")
    else:
        files[database.name] = _database(database) if deep else Found("sound")
    if not (listed := checkpoints(root)):
        files[root.name] = Found("absent")
    else:
        files[root.name] = _checkpoints(listed) if deep else Found("sound")


def _database(path: Path) -> Found:
    fault = database_flaw(path)
    if fault is not None:
        return Found(*fault)
    kept = _bytes(path.with_name(DATABASE_DIGEST), 1024)
    digest = kept if isinstance(kept, Found) else content_of(kept)
    if isinstance(digest, bytes):
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").digest() != digest:
                return Found("damaged", f"or another copy, and then remove {DATABASE_DIGEST}")
    return Found("sound", _progress(path))


def _progress(path: Path) -> str:
    """Tell how far training was, "" if it had not begun."""
    try:
        with closing(read_only(path)) as database:
            (version,) = database.execute("SELECT max(arrived) FROM groups").fetchone()
    except sqlite3.Error:
        return ""
    return f"node.db has groups of version {version}" if version else ""


def _checkpoints(listed: list[Path]) -> Found:
    """Judge the checkpoints, the newest first."""
    faults: list[str] = []
    for path in listed:
        size = sum(file.stat().st_size for file in path.iterdir())
        fault = fault_of(path, digests=size <= _DIGESTED_BYTES)
        if fault is None:
            told = f"checkpoints/{faults[0]}; training goes on from {path.name}" if faults else ""
            return Found("sound", told)
        faults.append(f"{path.name}: {fault}")
    return Found("damaged", faults[0])


def _bytes(path: Path, most: int) -> _Read:
    """The content of a file, up to `most` bytes and one more."""
    try:
        with open_regular(path) as file:
            return file.read(most + 1)
    except FileNotFoundError:
        return Found("absent")
    except OSError as error:
        return Found("damaged", str(error.strerror))


def _open(path: Path) -> Found | None:
    mode = path.stat().st_mode
    return Found("open", str(path)) if mode & (stat.S_IRWXG | stat.S_IRWXO) else None


def _reason(error: HomeError) -> str:
    """Return the reason in the brackets of the message."""
    return str(error).partition("(")[2].rpartition("): ")[0] or str(error)
