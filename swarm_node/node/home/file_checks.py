"""Checks the files of a home before anything is written there. Pure; `read_files.py` reads them.

A home is new, or its founding was interrupted, or it is whole, or it is broken. Only the first two
are founded. A broken home names each file, its flaw and what restores it: nothing is made anew in
its place. `home.json` records which files a home had, because a missing file leaves no other trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Struct

State = Literal["absent", "sound", "empty", "damaged", "newer", "open", "foreign"]
Level = Literal["warning", "error"]

RECORD: Final = "home.json"
RECORD_VERSION: Final = 1
_KEYS = ("node.key", "swarm.json", "membership")
_BACKUP = "restore it from a backup (`tar -xf BACKUP -C HOME {name}`)"
_TICKET = "join again with a ticket of the same swarm (`swarm-node join --ticket-file FILE`)"
_ELSEWHERE = "copy it from another member's data directory, where it is the same"


class Found(NamedTuple):
    """A file as it lies in a home; `detail` tells its flaw. A key open to other users is "open". A
    file that is whole and belongs to another swarm or node is "foreign"."""

    state: State
    detail: str = ""


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """The files that a home has had. It is not `finished` while its swarm is founded or joined."""

    version: Annotated[int, Meta(ge=RECORD_VERSION, le=RECORD_VERSION)]
    finished: bool
    files: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=64)]


class Fault(NamedTuple):
    """A flaw of a home: a file, the text `problem`, and what restores it. A home with a fault of
    level "error" does not start."""

    file: str
    level: Level
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}"


class HomeState(NamedTuple):
    """A home as a whole."""

    state: Literal["new", "begun", "whole", "broken"]
    faults: tuple[Fault, ...]

    @property
    def errors(self) -> list[Fault]:
        return [fault for fault in self.faults if fault.level == "error"]


class _Kind(NamedTuple):
    """A file that a home may have. `missing_level` is the level of its absence, `loss` says what is
    lost then, and `remedy` is a remedy besides a backup."""

    missing_level: Level
    loss: str = ""
    remedy: str = ""


FILES: Final[Mapping[str, _Kind]] = {
    "node.key": _Kind("error", remedy="or join as a new node: a new ticket, another --home"),
    "swarm.json": _Kind("error", remedy=f"or {_TICKET}"),
    "membership": _Kind("error", remedy=f"or {_TICKET}"),
    "secret": _Kind("error", remedy=f"or {_ELSEWHERE}, or {_TICKET}"),
    "revoked": _Kind("warning", "until peers send the list, revoked nodes count as members"),
    "root.key": _Kind("warning", remedy="or delete it here, if it is kept offline"),
    "issuer.key": _Kind(
        "warning", "this node renews no members", "or `swarm-node delegate import`"
    ),
    "issuer.certificate": _Kind(
        "warning", "this node renews no members", "or `swarm-node delegate import`"
    ),
    "site.key": _Kind("error", remedy="or copy it from another host of the trainer"),
    "admitted": _Kind("warning", "the members of each ticket are counted anew"),
    "coordinator": _Kind("warning", "the coordinator's earlier batches are not compared any more"),
    "bootstrap": _Kind("warning", "the addresses of the ticket are gone; --bootstrap names others"),
    "port": _Kind("warning", "another port is chosen, and tickets with the old one miss this node"),
    "addresses": _Kind("warning", "`invite` needs a running node, or --address, until a start"),
    "settings.json": _Kind(
        "warning", "options of earlier starts and of `config set` are gone: give them again"
    ),
    "invitations.json": _Kind("warning", "`members` shows no ticket that was made before"),
    "tickets.json": _Kind("warning", "the tickets of the issuer file are gone", "or take it again"),
    "blocks.json": _Kind("warning", "nobody is blocked any more"),
    "node.db": _Kind(
        "warning", "groups that were not trained on, and which ones of peers were seen, are gone"
    ),
    "checkpoints": _Kind("warning", "training begins anew from the base model"),
    "metrics.jsonl": _Kind("warning", "the history of metrics starts again"),
}
#: Files that only the owner removes, or that belong to no swarm.
_UNRECORDED = frozenset({"root.key"})
_NO_SWARM = frozenset({"port", "bootstrap", "settings.json", "metrics.jsonl"})


def home_state(
    files: Mapping[str, Found], record: Record | None, *, ticket: bool = False
) -> HomeState:
    """Judge the files of a home, by name, and its record. A missing file need not be in `files`.
    With a `ticket`, what it would restore is no error."""
    names = {name for name, file in files.items() if file.state != "absent"}
    is_finished = record is not None and record.finished
    recorded_names = frozenset(record.files) if record is not None else frozenset()
    faults = [*_find_faults(files, ticket)]
    if RECORD in names and files[RECORD].state != "sound":
        return HomeState("broken", tuple(faults))
    swarm_files = names - _NO_SWARM - {RECORD}
    state: Literal["new", "begun", "whole"] = "whole"
    if not is_finished and "swarm.json" not in names and (not swarm_files or record is not None):
        state = "begun" if swarm_files else "new"
    else:
        progress = files["node.db"].detail if "node.db" in names else ""
        faults += _missing(names, recorded_names, progress, ticket)
        if record is None:
            text = "home.json, the record of this data directory's files, is missing"
            faults.append(Fault(RECORD, "warning", text, "the start records what lies here now"))
    errors = any(fault.level == "error" for fault in faults)
    return HomeState("broken" if errors else state, tuple(faults))


def present(files: Mapping[str, Found]) -> list[str]:
    """Return the names that a record of these files has."""
    return sorted(
        name
        for name, file in files.items()
        if file.state != "absent" and name in FILES and name not in _UNRECORDED
    )


def _find_faults(files: Mapping[str, Found], ticket: bool) -> Iterator[Fault]:
    for name, (state, detail) in files.items():
        kind = FILES.get(name, _Kind("warning"))
        suffix = f" ({detail})" if detail else ""
        backup = _BACKUP.format(name=name)
        if state == "sound" and name == "checkpoints" and detail:  # an older one is whole
            yield Fault(name, "warning", detail, "restore a backup, or go on from the older one")
        elif state == "newer":
            wrote = f"a newer swarm-node wrote {name}{suffix}"
            yield Fault(name, "error", wrote, "upgrade this one, or restore a backup from before")
        elif state == "open":
            yield Fault(name, "error", f"{name} is open to other users", f"run chmod 600 {detail}")
        elif state == "foreign":
            yield Fault(
                name, "error", f"{name} does not fit this data directory ({detail})", backup
            )
        elif state in ("damaged", "empty"):
            text = f"{name} is {state}{suffix}"
            yield _restorable(name, kind, text, _remedy(name, kind), ticket)


def _remedy(name: str, kind: _Kind) -> str:
    """Return what to do about a damaged file."""
    if name == RECORD:
        return "move it away: the start records what lies here then, and cannot tell what is lost"
    if name == "checkpoints":
        return f"restore a backup of it, or move it away: {kind.loss}"
    if name == "node.db":
        away = "move node.db, node.db-wal and node.db-shm away"
        return f"{away} ({kind.loss}), or restore a backup into another --home"
    if name not in FILES:
        return "remove it: it is only locked, and holds nothing"
    alternative = kind.remedy or f"or move it away: {kind.loss}"
    return f"{_BACKUP.format(name=name)}, {alternative}"


def _missing(
    names: set[str], recorded_names: frozenset[str], progress: str, ticket: bool
) -> Iterator[Fault]:
    """Yield a fault for each missing file that must be here or has been here. `progress` tells how
    far training was, by the database."""
    delegate = {"issuer.key", "issuer.certificate"} & names
    for name, kind in FILES.items():
        is_half_pair = name.startswith("issuer.") and delegate
        suffix = f", and {progress}" if name == "checkpoints" and progress else ""
        is_needed = name in _KEYS or name in recorded_names - _UNRECORDED or is_half_pair or suffix
        if name in names or not is_needed:
            continue
        if name == "revoked" and (delegate or "root.key" in names):
            remedy = f"{_BACKUP.format(name=name)}, or {_ELSEWHERE}"
            yield Fault(name, "error", "revoked, the list of former members, is missing", remedy)
        elif is_half_pair or kind.missing_level == "error":
            remedy = f"{_BACKUP.format(name=name)}, {kind.remedy}"
            yield _restorable(name, kind, f"{name} is missing", remedy, ticket)
        else:
            text = f"{name} is missing{suffix}: {kind.loss}"
            yield Fault(name, "warning", text, "restore it from a backup, or go on without it")


def _restorable(name: str, kind: _Kind, text: str, remedy: str, ticket: bool) -> Fault:
    if ticket and _TICKET in kind.remedy:
        return Fault(name, "warning", text, "the ticket restores it, if it is of the same swarm")
    return Fault(name, "error", text, remedy)
