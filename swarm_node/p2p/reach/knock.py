"""Whether a node answers at an address: a new TCP connection, and the proof of its key.

go-libp2p greets whoever connects, so the greeting alone would also be that of another node, for
example one behind the same router, or the one that knocks. So the TLS handshake follows, whose
certificate carries the node's key as libp2p's TLS 1.3 specification says, or Noise's where a node
speaks no TLS (py-libp2p). No request is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from swarm_node.p2p.identity import public_key_of
from swarm_node.p2p.reach.noise import MAX_ANSWER_BYTES, Initiator
from swarm_node.p2p.reach.verdict import Outcome

KNOCK_SECONDS = 3.0
_GREETING = b"\x13/multistream/1.0.0\n"
_TLS = b"\x0b/tls/1.0.0\n"
_NO, _NOISE = b"\x03na\n", b"\x07/noise\n"
_ALPN = "libp2p"
_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_SIGNED = b"libp2p-tls-handshake:"
#: SignedKey { OCTET STRING PublicKey { Ed25519, 32 bytes }, OCTET STRING of 64 bytes } in DER.
_KEY_HEAD, _SIGNATURE_HEAD = bytes.fromhex("3068042408011220"), bytes.fromhex("0440")


async def knock(ip: str, port: int, peer_id: str, seconds: float = KNOCK_SECONDS) -> Outcome:
    """How a new connection from an ephemeral port to `ip` and `port` ends, within `seconds`. "open"
    means that the node `peer_id` itself answered."""
    writer = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(ip, port, limit=4096)
            if await reader.readexactly(len(_GREETING)) != _GREETING:
                return "other"
            writer.write(_GREETING + _TLS)
            answer = await reader.readexactly(len(_NO))
            if answer == _NO:
                return await _noise(reader, writer, peer_id)
            if answer + await reader.readexactly(len(_TLS) - len(_NO)) != _TLS:
                return "other"
            await writer.start_tls(_context())
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return "open" if proves(shown, public_key_of(peer_id)) else "other"
    except TimeoutError:
        return "timeout" if writer is None else "silent"
    except (OSError, EOFError):
        return "refused" if writer is None else "other"
    finally:
        if writer is not None:
            writer.transport.abort()


async def _noise(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer_id: str
) -> Outcome:
    writer.write(_NOISE)
    if await reader.readexactly(len(_NOISE)) != _NOISE:
        return "other"
    initiator = Initiator()
    writer.write(len(initiator.hello).to_bytes(2) + initiator.hello)
    length = int.from_bytes(await reader.readexactly(2))
    if length > MAX_ANSWER_BYTES:
        return "other"
    proved = initiator.is_proved(await reader.readexactly(length), public_key_of(peer_id))
    return "open" if proved else "other"


def proves(certificate: bytes | None, public_key: bytes) -> bool:
    """Whether a certificate in DER carries the signature of this Ed25519 key for its own key."""
    with contextlib.suppress(
        ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, UnsupportedAlgorithm
    ):
        opened = x509.load_der_x509_certificate(certificate or b"")
        extension = opened.extensions.get_extension_for_oid(_EXTENSION).value
        assert isinstance(extension, x509.UnrecognizedExtension)
        head = _KEY_HEAD + public_key + _SIGNATURE_HEAD
        if not extension.value.startswith(head):
            return False
        own = opened.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        with contextlib.suppress(InvalidSignature):
            key = Ed25519PublicKey.from_public_bytes(public_key)
            key.verify(extension.value[len(head) :], _SIGNED + own)
            return True
    return False


@functools.cache
def _context() -> ssl.SSLContext:
    """No authority signs these certificates: `proves` checks them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([_ALPN])
    return context
