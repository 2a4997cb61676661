"""Reads the files of a home for `file_checks.home_state`. Nothing is written.

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
from typing import Any, NamedTuple

import msgpack
import msgspec
from msgspec import Struct

from swarm_node.database import read_only
from swarm_node.durable import open_regular
from swarm_node.errors import HomeError, Rejected
from swarm_node.node.home.file_checks import RECORD, Found, HomeState, Record, home_state
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
    *("invitations.json", "tickets.json", "blocks.json"),
)
#: Files whose locks are held. They hold nothing.
_LOCKS = ("lock", "recording", "editing")
#: The digest of the database, while no node runs. A node that was killed leaves none.
DATABASE_DIGEST = "node.db.sha256"
#: Up to this size the digests of the newest checkpoint are checked: half a second a GB.
_DIGESTED_BYTES = 2 << 30


class Stock(NamedTuple):
    """The files of a home, and its record if that is sound."""

    files: Mapping[str, Found]
    record: Record | None

    def state(self, *, ticket: bool = False) -> HomeState:
        return home_state(self.files, self.record, ticket=ticket)


class _Versioned(Struct):
    version: int


def take_stock(path: Path, *, deep: bool = False, swarm: SwarmInfo | None = None) -> Stock:
    """Read the files of the home at `path`. `deep`: database and checkpoints too, which takes
    seconds where they are large. Signed files are checked by `swarm`, by default that of
    swarm.json."""
    read = {
        RECORD: _record(path / RECORD),
        "swarm.json": _swarm(path / "swarm.json"),
        **{name: _key(path / name) for name in _KEY_FILES},
        **{name: _content(path / name, MAX_KEPT_BYTES) for name in _SMALL_FILES},
    }
    files, contents = dict[str, Found](), dict[str, Any]()
    for name, content in read.items():
        if isinstance(content, Found):
            files[name] = content
        else:
            files[name], contents[name] = Found("sound"), content
    swarm = swarm or contents.get("swarm.json")
    if swarm is not None:
        _fit(files, contents, swarm)
    _check_running_files(path, files, deep)
    for name in _LOCKS:
        lock = _bytes(path / name, 0)
        if isinstance(lock, Found) and lock.state == "damaged":
            files[name] = lock
    return Stock(files, contents.get(RECORD))


def _record(path: Path) -> Record | Found:
    content = _content(path, MAX_PRIVATE_BYTES)
    if isinstance(content, Found):
        return content
    try:
        return msgspec.json.decode(content, type=Record)
    except (ValueError, RecursionError):
        return Found("damaged")


def _swarm(path: Path) -> SwarmInfo | Found:
    raw = _bytes(path, MAX_PRIVATE_BYTES)
    if isinstance(raw, Found):
        return raw
    try:
        version = msgspec.json.decode(raw, type=_Versioned).version
    except (ValueError, RecursionError):
        return Found("damaged" if raw else "empty")
    if version != SWARM_FILE_VERSION:
        return Found("newer" if version > SWARM_FILE_VERSION else "damaged", f"version {version}")
    try:
        return SwarmInfo.load(path)
    except HomeError as error:
        return _open(path) or Found("damaged", _reason(error))


def _key(path: Path) -> Identity | Found:
    raw = _bytes(path, KEY_BYTES)
    if isinstance(raw, Found):
        return raw
    if flaw := _open(path):
        return flaw
    if len(raw) != KEY_BYTES:
        return Found("damaged", f"a key has {KEY_BYTES} bytes") if raw else Found("empty")
    return Identity.from_seed(raw)


def _fit(files: dict[str, Found], contents: Mapping[str, Any], swarm: SwarmInfo) -> None:
    """Mark the files among `contents` that do not fit the swarm or the node's key."""
    node, root, issuer = (contents.get(name) for name in ("node.key", "root.key", "issuer.key"))
    if root is not None and root.public_key != swarm.root_key:
        files["root.key"] = Found("foreign", f"it is not the root of swarm {swarm.name!r}")
    verifiers: dict[str, Callable[[bytes, SwarmInfo], object]] = {
        "secret": verify_secret,
        "revoked": verify_revocations,
        "issuer.certificate": verify_issuer,
    }
    bodies = {
        name: check(contents[name], swarm) for name, check in verifiers.items() if name in contents
    }
    for name, body in bodies.items():
        if isinstance(body, Rejected):
            files[name] = Found("foreign", f"swarm {swarm.name!r} did not sign it")
    delegate = bodies.get("issuer.certificate")
    if isinstance(delegate, IssuerBody) and issuer and delegate.issuer_key != issuer.public_key:
        files["issuer.key"] = Found("foreign", "it is not the key of issuer.certificate")
    if "membership" in contents and node is not None:
        files.update(_member(contents["membership"], swarm, node))


def _member(raw: bytes, swarm: SwarmInfo, node: Identity) -> dict[str, Found]:
    try:
        issuer, member = msgpack.unpackb(raw)
        chain = open_chain((issuer, member), swarm, node.public_key)
    except (ValueError, TypeError):
        return {"membership": Found("damaged")}
    if not isinstance(chain, Rejected):
        return {}
    if chain.reason == "wrong_subject":
        return {"node.key": Found("foreign", "the membership is of another key")}
    return {"membership": Found("foreign", f"not of swarm {swarm.name!r}: {chain.reason}")}


def _check_running_files(path: Path, files: dict[str, Found], deep: bool) -> None:
    """Look at what a running node writes."""
    metrics = path / "metrics.jsonl"  # a crash may cut a line, so only its presence is checked
    database, directories = path / "node.db", checkpoints(path / "checkpoints")
    presence = {
        "metrics.jsonl": metrics.exists() and metrics.stat().st_size > 0,
        "node.db": database.exists(),
        "checkpoints": bool(directories),
    }
    files |= {name: Found("sound" if exists else "absent") for name, exists in presence.items()}
    if deep and presence["node.db"]:
        files["node.db"] = _database(database)
    if deep and directories:
        files["checkpoints"] = _checkpoints(directories)


def _database(path: Path) -> Found:
    fault = database_flaw(path)
    if fault is not None:
        return Found(*fault)
    digest = _content(path.with_name(DATABASE_DIGEST), 1024)
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


def _checkpoints(directories: list[Path]) -> Found:
    """Judge the checkpoints, the newest first."""
    faults: list[str] = []
    for path in directories:
        size = sum(file.stat().st_size for file in path.iterdir())
        fault = fault_of(path, digests=size <= _DIGESTED_BYTES)
        if fault is None:
            detail = f"checkpoints/{faults[0]}; training goes on from {path.name}" if faults else ""
            return Found("sound", detail)
        faults.append(f"{path.name}: {fault}")
    return Found("damaged", faults[0])


def _content(path: Path, max_bytes: int) -> bytes | Found:
    """The content of a small file, without its head."""
    raw = _bytes(path, max_bytes)
    content = raw if isinstance(raw, Found) else content_of(raw)
    return Found(content) if isinstance(content, str) else content


def _bytes(path: Path, max_bytes: int) -> bytes | Found:
    """The content of a file, up to `max_bytes` bytes and one more."""
    try:
        with open_regular(path) as file:
            return file.read(max_bytes + 1)
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
