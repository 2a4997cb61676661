"""Membership in a private swarm: the swarm's identity and two-level certificates.

The root key signs issuer certificates, and issuer keys sign member certificates: the depth is
exactly two. A certificate is an envelope, so its signature binds it to the swarm. Callers pass the
time in Unix seconds. docs/protocol-membership.md has details that the rules leave open.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from swarm_node.durable import replace_private
from swarm_node.errors import HomeError, Rejected
from swarm_node.p2p.wire.envelope import Kind, is_sound_key, open_sealed, seal
from swarm_node.p2p.wire.identity import (
    MAX_PRIVATE_BYTES,
    Identity,
    read_private,
)
from swarm_node.p2p.wire.wire import (
    MAX_CERTIFICATE_BYTES,
    Body,
    Counter,
    Digest,
    Version1,
    pack,
    unpack,
)

#: Tolerated difference between two honest clocks.
CLOCK_SKEW_SECONDS: Final = 300
MAX_MEMBER_SECONDS: Final = 10 * 366 * 24 * 3600
MAX_USES: Final = 1000

_SWARM_DOMAIN = b"swarm-node/swarm/v1"
_FILE_DOMAIN = b"swarm-node/swarm-file/v2"
_NAME = re.compile(r"[A-Za-z0-9 _.-]{1,32}")

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9 _.-]{1,32}\Z")]
#: The end of the year 9999. Every earlier time can be shown as a date.
MAX_UNIX_SECONDS: Final = 253_402_300_800
UnixSeconds = Annotated[int, Meta(ge=0, lt=MAX_UNIX_SECONDS)]
MemberSeconds = Annotated[int, Meta(ge=1, le=MAX_MEMBER_SECONDS)]
Uses = Annotated[int, Meta(ge=0, le=MAX_USES)]

Chain = tuple[bytes, bytes]


class IssuerBody(Body, frozen=True):
    """Kind.ISSUER, sealed by the root: `issuer_key` may admit members during this period, each for
    at most `member_seconds`.

    A `delegate` may also renew members that others admitted, and sign revocation lists and new
    secrets (statements.py). Every node accepts the first `uses` subjects of the issuer that it
    sees. 0 means no limit."""

    v: Version1
    issuer_key: Digest
    name: Name
    not_before: UnixSeconds
    not_after: UnixSeconds
    member_seconds: MemberSeconds
    delegate: bool
    uses: Uses


class MemberBody(Body, frozen=True):
    """Kind.CERT, sealed by an issuer: `subject` is a member during this period. `name` and
    `admitted_by` are the name and the key of the issuer that first admitted it. Only a delegate, in
    a renewal, may sign those of another issuer."""

    v: Version1
    subject: Digest
    not_before: UnixSeconds
    not_after: UnixSeconds
    name: Name
    admitted_by: Digest


#: The version of swarm files.
SWARM_FILE_VERSION: Final = 2


class _SwarmFile(Struct, forbid_unknown_fields=True, frozen=True):
    version: Annotated[int, Meta(ge=SWARM_FILE_VERSION, le=SWARM_FILE_VERSION)]
    name: Name
    root_key: str
    swarm_id: str
    secret: str
    secret_number: Counter
    check: str


@dataclass(frozen=True, slots=True)
class SwarmInfo:
    """The swarm's public identity and its secret, which every member knows. `root_key` (32 bytes)
    is the public key at the start of every certificate chain. `secret` (32 bytes) keeps outsiders
    from the swarm's records and is never shown. `secret_number` counts how often it was
    replaced."""

    name: str
    root_key: bytes
    secret: bytes = field(repr=False)
    secret_number: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError("a swarm name has 1 to 32 letters, digits, spaces, or any of _ . -")
        if not is_sound_key(self.root_key):
            raise ValueError("the root key is not a usable Ed25519 public key")
        if len(self.secret) != 32:
            raise ValueError("the swarm secret has 32 bytes")

    @property
    def swarm_id(self) -> bytes:
        """sha256 over a domain tag, the root key and the name; every signature covers it."""
        return hashlib.sha256(_SWARM_DOMAIN + self.root_key + self.name.encode()).digest()

    @property
    def fingerprint(self) -> str:
        """16 hex digits of sha256(root key) in groups of four, for people to compare."""
        digits = hashlib.sha256(self.root_key).hexdigest()[:16]
        return " ".join(digits[i : i + 4] for i in range(0, 16, 4))

    @property
    def _check(self) -> str:
        """Digest of the swarm id, the secret and its number. It reveals a changed bit of the secret
        in a swarm file."""
        parts = self.swarm_id, self.secret, self.secret_number.to_bytes(8)
        return hashlib.sha256(_FILE_DOMAIN + b"".join(parts)).hexdigest()

    def with_secret(self, secret: bytes, number: int) -> SwarmInfo:
        """The same swarm with its new secret."""
        return SwarmInfo(self.name, self.root_key, secret, number)

    @classmethod
    def load(cls, path: Path) -> SwarmInfo:
        """Read a swarm file.

        Raises:
            HomeError: missing, readable by others, damaged, or of another version.
        """
        data = read_private(path, "swarm file")
        try:
            if len(data) > MAX_PRIVATE_BYTES:
                raise ValueError("it is too long")
            swarm_file = msgspec.json.decode(data, type=_SwarmFile)
            info = cls(
                swarm_file.name,
                bytes.fromhex(swarm_file.root_key),
                bytes.fromhex(swarm_file.secret),
                swarm_file.secret_number,
            )
            if info.swarm_id.hex() != swarm_file.swarm_id:
                raise ValueError("its swarm id does not match its name and root key")
            if info._check != swarm_file.check:
                raise ValueError("its digest does not match its secret")
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise HomeError(
                f"{path} is not a usable swarm file ({error})",
                "restore it from a backup, or join again with a ticket",
            ) from error
        return info

    def save(self, path: Path) -> None:
        """Write the swarm file with mode 0600, durably and atomically.

        A file of this swarm is overwritten if it holds an older secret. A file of another swarm
        is never overwritten.

        Raises:
            HomeError: another swarm's file is there, or it cannot be written.
        """
        if path.exists():
            current_info = SwarmInfo.load(path)
            if current_info.swarm_id != self.swarm_id:
                raise HomeError(
                    f"{path} belongs to another swarm", "use another data directory for this one"
                )
            if current_info.secret_number >= self.secret_number:
                return
        swarm_file = _SwarmFile(
            version=SWARM_FILE_VERSION,
            name=self.name,
            root_key=self.root_key.hex(),
            swarm_id=self.swarm_id.hex(),
            secret=self.secret.hex(),
            secret_number=self.secret_number,
            check=self._check,
        )
        try:
            replace_private(path, msgspec.json.format(msgspec.json.encode(swarm_file)) + b"\n")
        except OSError as error:
            raise HomeError(f"cannot write the swarm file {path}: {error.strerror}") from error


def create_swarm(name: str, root: Identity, secret: bytes) -> SwarmInfo:
    """A new swarm under `root`; `secret` is 32 fresh random bytes.

    Raises:
        ValueError: the name or the secret has the wrong form.
    """
    return SwarmInfo(name=name, root_key=root.public_key, secret=secret)


def issue_issuer(
    root: Identity,
    info: SwarmInfo,
    issuer_key: bytes,
    *,
    name: str,
    not_before: float,
    not_after: float,
    member_seconds: float,
    delegate: bool = False,
    uses: int = 0,
) -> bytes:
    """Seal an issuer certificate. `IssuerBody` describes the fields. Fractions of seconds are cut
    off.

    Raises:
        ValueError: `root` is not the swarm's root, or a field is outside its bounds.
    """
    if root.public_key != info.root_key:
        raise ValueError("only the root key of the swarm can name issuers")
    if not is_sound_key(issuer_key):
        raise ValueError("the issuer key is not a usable Ed25519 public key")
    begin, end = _period(not_before, not_after)
    body = IssuerBody(1, issuer_key, name, begin, end, int(member_seconds), delegate, uses)
    return seal(root, info.swarm_id, Kind.ISSUER, pack(body))


def issue_member(
    issuer: Identity,
    info: SwarmInfo,
    subject_key: bytes,
    *,
    name: str,
    not_before: float,
    not_after: float,
    admitted_by: bytes | None = None,
) -> bytes:
    """Seal a member certificate. `name` is the issuer's own, unless a delegate renews a membership
    of the issuer key `admitted_by`. Every peer checks it against the issuer's certificate with
    `open_chain`. Fractions of seconds are cut off.

    Raises:
        ValueError: the key cannot be used, or a field is outside its bounds.
    """
    if not is_sound_key(subject_key):
        raise ValueError("the subject key is not a usable Ed25519 public key")
    first = issuer.public_key if admitted_by is None else admitted_by
    body = MemberBody(1, subject_key, *_period(not_before, not_after), name, first)
    return seal(issuer, info.swarm_id, Kind.CERT, pack(body))


def verify_issuer(certificate: bytes, info: SwarmInfo) -> IssuerBody | Rejected:
    """Open an issuer certificate that the root of `info` signed. Times are not checked."""
    envelope = open_sealed(certificate, info.swarm_id, Kind.ISSUER, max_bytes=MAX_CERTIFICATE_BYTES)
    if isinstance(envelope, Rejected):
        return envelope
    if envelope.author_key != info.root_key:
        return Rejected("wrong_root", "the issuer certificate is not signed by the swarm's root")
    body = unpack(IssuerBody, envelope.body, max_bytes=MAX_CERTIFICATE_BYTES)
    if isinstance(body, IssuerBody) and not is_sound_key(body.issuer_key):
        return Rejected("key", "the issuer key is not a usable Ed25519 public key")
    return body


def open_chain(
    chain: tuple[bytes, ...],
    info: SwarmInfo,
    subject_key: bytes,
    open_issuer: Callable[[bytes, SwarmInfo], IssuerBody | Rejected] = verify_issuer,
) -> tuple[IssuerBody, MemberBody] | Rejected:
    """Open a chain (issuer certificate, member certificate) that starts at the root of `info`, for
    `subject_key`, which the link authenticated. Times are not checked: see `check_times`.

    Besides the reasons of `open_sealed`: "schema", "wrong_root", "key", "wrong_issuer",
    "wrong_subject", "not_delegate". `open_issuer` may cache results of `verify_issuer`."""
    if len(chain) != 2:
        return Rejected("schema", "a chain has an issuer and a member certificate")
    issuer = open_issuer(chain[0], info)
    if isinstance(issuer, Rejected):
        return issuer
    envelope = open_sealed(chain[1], info.swarm_id, Kind.CERT, max_bytes=MAX_CERTIFICATE_BYTES)
    if isinstance(envelope, Rejected):
        return envelope
    if envelope.author_key != issuer.issuer_key:
        return Rejected("wrong_issuer", "another issuer signed the member certificate")
    member = unpack(MemberBody, envelope.body, max_bytes=MAX_CERTIFICATE_BYTES)
    if isinstance(member, Rejected):
        return member
    if member.subject != subject_key or not is_sound_key(subject_key):
        return Rejected("wrong_subject", "the certificate is for another key")
    is_first_issuer = member.name == issuer.name and member.admitted_by == issuer.issuer_key
    if not (is_first_issuer or issuer.delegate):
        return Rejected("not_delegate", "only a delegate renews what another issuer began")
    return issuer, member


def _period(not_before: float, not_after: float) -> tuple[int, int]:
    begin, end = int(not_before), int(not_after)
    if end <= begin:
        raise ValueError("a certificate must end after it begins")
    return begin, end


def check_times(issuer: IssuerBody, member: MemberBody, now: float) -> Rejected | None:
    """Check the periods of these certificates at `now`. Return the reason why their owner is no
    member, None if it is one: "outside_issuer", "not_yet_valid" or "expired".
    Two honest clocks may differ by CLOCK_SKEW_SECONDS, in both directions."""
    earliest = issuer.not_before - CLOCK_SKEW_SECONDS
    if not earliest <= member.not_before <= issuer.not_after:
        return Rejected("outside_issuer", "it begins when its issuer was not allowed to admit")
    if not 0 < member.not_after - member.not_before <= issuer.member_seconds:
        return Rejected("outside_issuer", f"at most {issuer.member_seconds} s were allowed")
    if now < member.not_before - CLOCK_SKEW_SECONDS:
        seconds = member.not_before - now
        return Rejected("not_yet_valid", f"valid from {member.not_before}", seconds)
    if not now <= member.not_after + CLOCK_SKEW_SECONDS:
        return Rejected("expired", f"valid until {member.not_after}", member.not_after - now)
    return None
