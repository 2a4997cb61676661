"""Admission of records to hivemind's DHT: their form, their owners, and their storage. No I/O, no
hivemind.

hivemind calls these objects by name (duck typing), so its types appear as small protocols here:
`HeartbeatRecords` is its record validator, `SwarmAuthorizer` its authorizer and `HeartbeatStore`
its storage. The DHT holds one dictionary: peer id -> signed heartbeat.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import random
import secrets
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from swarm_node.p2p.limits.round_robin import drawn_in_turn
from swarm_node.p2p.wire.identity import Identity, peer_id_of, public_key_of
from swarm_node.p2p.wire.wire import MAX_PRESENCE_BYTES
from swarm_node.recent import Recent

MAX_TTL_SECONDS = 2 * 3600.0
#: Records that a holder stores under one key.
MAX_RECORDS = 128
#: Records in one answer. A read asks up to 20 holders, each of which draws its own sample.
SAMPLE_RECORDS = 4
#: Seconds for which the previous secret stays valid after a change. By then heartbeats of members
#: that missed the change have expired.
OVERLAP_SECONDS = MAX_TTL_SECONDS / 2
MAX_CLOCK_SKEW_SECONDS = 60.0
_SIGNATURE_BYTES = 64
_MAX_SUBKEY_BYTES = 80
#: A MessagePack bin header is at most 3 bytes for values of this size.
_MAX_VALUE_BYTES = _SIGNATURE_BYTES + 3 + MAX_PRESENCE_BYTES
_MAX_VERIFIED = 16384
_MAX_NONCES = 65536
_NONCE_BYTES = 16


class DhtRecord(Protocol):
    """hivemind's DHTRecord. `key` is the SHA-1 of the DHT key, `subkey` and `value` MessagePack;
    `expiration_time` is Unix seconds."""

    key: bytes
    subkey: bytes
    value: bytes
    expiration_time: float


def heartbeat_key(swarm_id: bytes) -> str:
    """The DHT key of a swarm's heartbeats."""
    return hashlib.sha256(b"swarm-node/peers" + swarm_id).hexdigest()


class HeartbeatRecords:
    """Signs own records and accepts records that their owner signed, under one key only.
    `proves_membership` must hold for the presence in a record: the swarm once admitted this peer
    id.

    `validate` does not depend on the records seen before. If it refuses one record, hivemind drops
    all records of that holder. So it does not refuse outdated records, because fresh ones would be
    lost too. `HeartbeatStore` ignores outdated records.
    """

    priority = 0

    def __init__(
        self,
        identity: Identity,
        key: bytes,
        wall: Callable[[], float],
        proves_membership: Callable[[bytes, str], bool],
    ) -> None:
        self._identity = identity
        self._key = key
        self._wall = wall
        self._proves_membership = proves_membership
        self._verified_digests: Recent[bytes, None] = Recent(_MAX_VERIFIED)

    def sign_value(self, record: DhtRecord) -> bytes:
        return self._identity.sign(_signed_bytes(record, record.value)) + record.value

    def strip_value(self, record: DhtRecord) -> bytes:
        return record.value[_SIGNATURE_BYTES:]

    def validate(self, record: DhtRecord) -> bool:
        """Check that the record is well-formed, within its bounds, and signed by its subkey's
        owner, and that it carries a certificate chain for that owner. Never raises."""
        if record.key != self._key or not self._is_bounded(record):
            return False
        owner, presence = _owner(record.subkey), _presence(self.strip_value(record))
        if owner is None or presence is None:
            return False
        signature = record.value[:_SIGNATURE_BYTES]
        message = _signed_bytes(record, self.strip_value(record))
        digest = hashlib.blake2b(signature + message, digest_size=16).digest()
        if digest in self._verified_digests:
            self._verified_digests.move_to_end(digest)
            return True
        try:
            Ed25519PublicKey.from_public_bytes(owner).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        if not self._proves_membership(presence, peer_id_of(owner)):
            return False
        self._verified_digests[digest] = None
        return True

    def merge_with(self, other: object) -> bool:
        return False

    def _is_bounded(self, record: DhtRecord) -> bool:
        expires = record.expiration_time
        return (
            _SIGNATURE_BYTES < len(record.value) <= _MAX_VALUE_BYTES
            and len(record.subkey) <= _MAX_SUBKEY_BYTES
            and isinstance(expires, float)
            and math.isfinite(expires)
            and expires <= self._wall() + MAX_TTL_SECONDS
        )


def _owner(subkey: bytes) -> bytes | None:
    """The public key in a MessagePack subkey, None unless it is a peer id in canonical form."""
    try:
        peer_id = msgpack.unpackb(subkey)
        if not isinstance(peer_id, str):
            return None
        public_key = public_key_of(peer_id)
    except (ValueError, msgpack.UnpackException):
        return None
    canonical_key: bytes = msgpack.packb(peer_id_of(public_key))
    return public_key if canonical_key == subkey else None


def _presence(data: bytes) -> bytes | None:
    try:
        presence = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException):
        return None
    return presence if isinstance(presence, bytes) else None


def _signed_bytes(record: DhtRecord, value: bytes) -> bytes:
    """All fields that a holder could change, with the lengths that separate them."""
    head = struct.pack(">dHH", record.expiration_time, len(record.key), len(record.subkey))
    return b"SWARMNODEv1 dht-record " + head + record.key + record.subkey + value


class SwarmAuthorizer:
    """Proves knowledge of the swarm's secret in every DHT request and response.

    The proof is an HMAC-SHA-256 over message type, message bytes, time and nonce. A request is
    accepted once and within `MAX_CLOCK_SKEW_SECONDS`, a response only if it repeats the nonce of
    its request and uses the same secret.

    After `use` a node signs with the new secret. The previous secret stays valid for
    OVERLAP_SECONDS: requests under it are accepted, and answered under it. Members that missed the
    change can still connect with it and learn the new one.
    """

    def __init__(self, secret: bytes, swarm_id: bytes, wall: Callable[[], float]) -> None:
        self._swarm_id = swarm_id
        self._key = self._derive_key(secret)
        self._previous_key: tuple[bytes, float] | None = None  # with the end of its time
        self._wall = wall
        self._nonces: OrderedDict[bytes, float] = OrderedDict()

    def use(self, secret: bytes) -> None:
        """Replace the secret."""
        key = self._derive_key(secret)
        if key != self._key:
            self._previous_key = self._key, self._wall() + OVERLAP_SECONDS
            self._key = key

    async def sign_request(self, request: Any, service_public_key: object) -> None:
        request.auth.time = self._wall()
        request.auth.nonce = secrets.token_bytes(_NONCE_BYTES)
        request.auth.signature = _mac(request, self._key)

    async def validate_request(self, request: Any) -> bool:
        now = self._wall()
        # Negated, so that a NaN fails.
        if not abs(request.auth.time - now) < MAX_CLOCK_SKEW_SECONDS:
            return False
        if len(request.auth.nonce) != _NONCE_BYTES or self._key_of(request) is None:
            return False
        return self._use_nonce(request.auth.nonce, now)

    async def sign_response(self, response: Any, request: Any) -> None:
        response.auth.nonce = request.auth.nonce
        response.auth.signature = _mac(response, self._key_of(request) or self._key)

    async def validate_response(self, response: Any, request: Any) -> bool:
        if response.auth.nonce != request.auth.nonce:
            return False
        key = self._key_of(request)
        return key is not None and _is_tag(response, key)

    def _key_of(self, message: Any) -> bytes | None:
        """The valid key that made the tag of `message`, None if there is none."""
        keys = [self._key]
        if self._previous_key is not None and self._wall() < self._previous_key[1]:
            keys.append(self._previous_key[0])
        return next((key for key in keys if _is_tag(message, key)), None)

    def _derive_key(self, secret: bytes) -> bytes:
        return hmac.digest(secret, b"swarm-node/dht/1" + self._swarm_id, "sha256")

    def _use_nonce(self, nonce: bytes, now: float) -> bool:
        """Check that `nonce` is new, and remember it. At most _MAX_NONCES are remembered, a number
        that honest members never reach."""
        while self._nonces:
            oldest_nonce, forgotten_at = next(iter(self._nonces.items()))
            if forgotten_at > now and len(self._nonces) < _MAX_NONCES:
                break
            del self._nonces[oldest_nonce]
        if nonce in self._nonces:
            return False
        # The time of a request may be one skew ahead; the request is then valid for two.
        self._nonces[nonce] = now + 2 * MAX_CLOCK_SKEW_SECONDS
        return True


def _is_tag(message: Any, key: bytes) -> bool:
    return hmac.compare_digest(_mac(message, key), message.auth.signature)


def _mac(message: Any, key: bytes) -> bytes:
    """The tag of `message` without its signature field."""
    signature, message.auth.signature = message.auth.signature, b""
    body = message.SerializeToString(deterministic=True)
    message.auth.signature = signature
    kind = message.DESCRIPTOR.full_name.encode()
    return hmac.digest(key, struct.pack(">H", len(kind)) + kind + body, "sha256")


class HeartbeatStore:
    """The part of hivemind's DHTLocalStorage that its protocol and node use, for one key.

    hivemind's own store shortens a record's life when it refuses an older one later. It returns its
    inner dictionary, into which records of others are then merged. It has no bounds. `pack` makes
    hivemind's dictionary value from (peer id, value, expiration) triples and wraps it with the
    latest expiration. Records of peers that are no members now are hidden, and a reader deletes
    them.

    Above MAX_RECORDS peers, a record of the issuer with the most makes room, so the keys of one
    ticket displace no others. Of an issuer's records those with the least keyed hashes stay. They
    are a uniform sample of all that were ever offered (the sampler of Brahms, Bortnikov et al.,
    2009). So an early or frequent peer displaces no later one, and each holder keeps another
    sample.
    """

    def __init__(
        self,
        key: int,
        wall: Callable[[], float],
        pack: Callable[[list[tuple[str, bytes, float]]], Any],
        is_member: Callable[[str], bool],
        issuer: Callable[[str], str],
        rng: random.Random,
    ) -> None:
        self._key = key
        self._wall = wall
        self._pack = pack
        self._is_member = is_member
        self._issuer = issuer
        self._rng = rng
        self._records: dict[str, tuple[bytes, float, bytes]] = {}
        self._salt = secrets.token_bytes(16)

    def store(
        self, key: int, value: bytes, expiration_time: float, subkey: str | None = None
    ) -> bool:
        """See `store_subkey`. Values without a subkey are refused."""
        if subkey is None:
            return False
        return self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: int, subkey: str, value: bytes, expiration_time: float) -> bool:
        """Keep a validated record if it expires later than the one held.

        Returns True if the record is for this key, even if it is not kept. hivemind stops copying a
        dictionary at the first False.
        """
        if key != self._key:
            return False
        now, record = self._wall(), self._records.get(subkey)
        if expiration_time <= now or (record and record[1] >= expiration_time):
            return True
        if not self._is_member(subkey):
            return True
        rank = hashlib.blake2b(subkey.encode(), key=self._salt, digest_size=8).digest()
        self._records[subkey] = (value, expiration_time, rank)
        if len(self._records) > MAX_RECORDS:
            self._make_room(now)
        return True

    def get(self, key: int) -> Any:
        """A sample of SAMPLE_RECORDS, by issuer in turn, as hivemind's value with expiration. None
        if the store is empty."""
        if key != self._key:
            return None
        self._forget_expired()
        if not self._records:
            return None
        sample = drawn_in_turn(self._rng, self._records, self._issuer, SAMPLE_RECORDS)
        return self._pack([(peer, *self._records[peer][:2]) for peer in sample])

    def items(self) -> Iterator[tuple[int, Any]]:
        """Return nothing. hivemind would hand all items to every peer that enters its table, and
        members publish at each beat anyway."""
        return iter(())

    def __contains__(self, key: int) -> bool:
        return self.get(key) is not None

    def _make_room(self, now: float) -> None:
        """Drop a record: an expired one first. A holder is offered a record of every peer of the
        swarm. So only reads check the membership of all stored peers."""
        of = self._records
        victim = next((peer for peer in of if of[peer][1] <= now), None)
        if victim is None:
            issuers = {peer: self._issuer(peer) for peer in of}
            counts = Counter(issuers.values())
            victim = max(of, key=lambda peer: (counts[issuers[peer]], of[peer][2]))
        del of[victim]

    def _forget_expired(self) -> None:
        now = self._wall()
        for peer, (_, expires, _) in list(self._records.items()):
            if expires <= now or not self._is_member(peer):
                del self._records[peer]
