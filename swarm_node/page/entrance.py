"""Access to a page: a key that works once becomes a pass.

A token in an address stays in the browser's history and can be passed on. A cookie goes to every
port of this machine, and so to any program that listens there. So `swarm-node open` gets a key that
is good for one minute and one use. It stands behind the # of the address, which browsers do not
send. The page exchanges it for a pass, keeps that in the storage of its own origin, and sends it
with each request. A pass is good for looking, until the node ends. Other users of the machine see
the arguments of a browser, and so the address: a key that comes a second time ends the pass that it
gave (RFC 6749, 4.1.2).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from swarm_node.errors import SwarmNodeError
from swarm_node.recent import Recent

_Answer = TypeVar("_Answer")
_KEY_SECONDS: Final = 60.0
_MOST_KEYS: Final = 16
_MOST_PASSES: Final = 64


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Key that lets a page in, once."""

    key: Annotated[str, Meta(max_length=64)]


class Pass(msgspec.Struct, frozen=True):
    """Bearer token that a page sends with each request."""

    token: str


def bearer(header: str) -> str:
    """The token in a header `Authorization: Bearer TOKEN`, the scheme in letters of any case; "" in
    any other."""
    scheme, _, token = header.partition(" ")
    return token if scheme.casefold() == "bearer" else ""


def is_local(host: str) -> bool:
    """Check that a header `Host` names this machine. A web page can let its name lead here
    (DNS rebinding)."""
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() and name else host) in ("127.0.0.1", "localhost", "[::1]")


def is_one_of(candidate: str, tokens: Iterable[str]) -> bool:
    """Check a token in a time that says nothing about the right ones."""
    raw = candidate.encode("utf-8", "replace")
    return any([hmac.compare_digest(raw, token.encode()) for token in tokens])


class Entrance:
    """Keys and passes of one server. `now` is a clock in seconds that never steps back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._keys: Recent[str, float] = Recent(_MOST_KEYS)
        self._passes: Recent[str, None] = Recent(_MOST_PASSES)
        #: Key -> the pass that it gave.
        self._pass_by_key: Recent[str, str] = Recent(_MOST_PASSES)

    def key(self) -> Key:
        """A new key. If there are too many, the oldest one ends."""
        token = secrets.token_urlsafe(32)
        self._keys[token] = self._now() + _KEY_SECONDS
        return Key(token)

    def enter(self, key: Key) -> Pass | None:
        """The pass for an unused key, None for any other."""
        ends = self._keys.pop(key.key, None)
        if ends is None or ends <= self._now():
            self._passes.pop(self._pass_by_key.get(key.key, ""), None)
            return None
        token = secrets.token_urlsafe(32)
        self._passes[token], self._pass_by_key[key.key] = None, token
        return Pass(token)

    def admits(self, page_pass: str) -> bool:
        """Check that this is a pass of this server."""
        return page_pass in self._passes


def decode_answer(raw: bytes, kind: type[_Answer]) -> _Answer:
    """Decode JSON that a program of this version sent or wrote.

    Raises:
        SwarmNodeError: it is something else.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:
        raise SwarmNodeError(
            f"this is not what a program of this version says ({error}): restart it"
        ) from error
