"""Ledgers of a home's owner: the tickets made here, and the blocks.

Each is one small file of the home, JSON below its first line. Both are for people and for this
node alone: the swarm's own rules are in certificates and in the revocation list.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec
import structlog
from msgspec import Meta, Struct

from swarm_node.errors import HomeError
from swarm_node.node.home.home import Home
from swarm_node.p2p.membership.membership import Name, UnixSeconds
from swarm_node.p2p.wire.identity import read_private
from swarm_node.program.private_directory import MAX_KEPT_BYTES, content_of

MAX_ENTRIES = 10_000
_log = structlog.get_logger(__name__)

_Key = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
#: So short, and at most MAX_ENDPOINTS, that a file of MAX_ENTRIES stays within its limit.
_Endpoint = Annotated[str, Meta(max_length=80)]
MAX_ENDPOINTS = 4
_PeerId = Annotated[str, Meta(pattern=r"\A[1-9A-HJ-NP-Za-km-z]{1,64}\Z")]


class IssuedTicket(Struct, frozen=True, forbid_unknown_fields=True):
    """A ticket that was made here. `issuer_key` (hex) signs the certificates of its members: `uses`
    of them (0: any number), until `expires`, each valid for `member_seconds`. A ticket of an issuer
    file is not `given` to anybody yet. A `delegate` admits nobody by a ticket. `endpoints` are
    those of this node in the ticket. Host 0.0.0.0 there stands for a host in front of this
    machine that forwards the port. With `others` the ticket also names a relay, a coordinator, or a
    port that cannot be told to be this node's."""

    name: Name
    issuer_key: _Key
    made: UnixSeconds
    expires: UnixSeconds
    uses: int
    member_seconds: int
    given: bool = True
    delegate: bool = False
    endpoints: tuple[_Endpoint, ...] = ()
    others: bool = False


class Block(Struct, frozen=True, forbid_unknown_fields=True):
    """A blocked peer id, or a blocked issuer key (hex), which stands for all members of its
    ticket."""

    name: Annotated[str, Meta(max_length=64)]
    since: UnixSeconds
    peer_id: _PeerId | None = None
    issuer_key: _Key | None = None


Entry = TypeVar("Entry", IssuedTicket, Block)
Made = TypeVar("Made")


class Ledger(Generic[Entry]):
    """The entries of one file, the oldest first. A file that does not exist has none."""

    def __init__(self, home: Home, name: str, kind: type[Entry]) -> None:
        self._home = home
        self._name = name
        self._decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    @property
    def path(self) -> Path:
        """The file, which need not exist."""
        return self._home.path / self._name

    def entries(self) -> list[Entry]:
        """Read all entries.

        Raises:
            HomeError: the file is damaged, or readable by others.
        """
        path = self.path
        if not path.exists():
            return []
        content = content_of(read_private(path, "list", MAX_KEPT_BYTES))
        try:
            if not isinstance(content, bytes):
                raise ValueError(content)
            entries: list[Entry] = self._decoder.decode(content)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise HomeError(
                f"{path} is damaged ({error})", "restore it from a backup, or move it away"
            ) from error
        return entries

    def write(self, entries: list[Entry]) -> None:
        """Replace all entries. Beyond MAX_ENTRIES, the oldest are dropped.

        Raises:
            HomeError: the file cannot be written.
        """
        self._home.save(self._name, msgspec.json.encode(entries[-MAX_ENTRIES:]))


class Followed(Generic[Entry, Made]):
    """The result of `make` for the entries of a ledger of a running node's home. A change of the
    file counts at once. A damaged file changes nothing."""

    def __init__(self, ledger: Ledger[Entry], make: Callable[[list[Entry]], Made]) -> None:
        self._ledger: Ledger[Entry] = ledger
        self._make: Callable[[list[Entry]], Made] = make
        self._read: tuple[int, int] | None = None
        self._result = make([])

    def now(self) -> Made:
        """Return the result for the entries that are in the file now."""
        try:
            stat = self._ledger.path.stat()
            state = (stat.st_mtime_ns, stat.st_ino)
        except OSError:
            state = None
        if state == self._read:
            return self._result
        self._read = state
        try:
            self._result = self._make(self._ledger.entries())
        except HomeError as error:
            _log.warning("a list of the data directory cannot be read", error=str(error))
        return self._result
