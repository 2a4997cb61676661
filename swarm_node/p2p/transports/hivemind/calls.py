"""The gate of the DHT's calls: ping, find and store. No I/O, and no hivemind: its messages appear
by their field names.

A call passes in this order: size, form, the swarm's secret, the caller's budget, membership. What
comes back to a caller without membership is never longer than what it sent. A newcomer shows its
chain by a store of its own record. Until then its finds get empty answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from swarm_node.errors import Rejected
from swarm_node.p2p.transports.hivemind.records import SwarmAuthorizer
from swarm_node.p2p.wire.transport import TableGate

PING, FIND, STORE = "rpc_ping", "rpc_find", "rpc_store"
#: The calls with a gate. A hivemind that registers another cannot start.
CALLS: Final = (PING, FIND, STORE)
#: Bytes of a call. A store carries one record of less than 1,600 bytes.
MAX_CALL_BYTES: Final = 2048
_KEY_BYTES = 20
#: hivemind's subkeys of a whole dictionary and of a value without subkey.
_NO_OWNER = (b"", msgpack.packb(None))
#: An answer that no caller takes for one: it has no tag.
NOTHING: Final = b""


@dataclass(frozen=True, slots=True)
class TableCall:
    """A registered call: its name, hivemind's own handler behind its check of the secret, and the
    types of its messages."""

    name: str
    answer: Callable[[Any, Any], Awaitable[Any]]
    request: Callable[[], Any]
    response: Callable[[], Any]


class TableCalls:
    """Answers the DHT's calls of peers, and refuses those of others."""

    def __init__(
        self,
        authorizer: SwarmAuthorizer,
        gate: TableGate | None,
        is_member: Callable[[str], bool],
        disconnect: Callable[[str], Awaitable[bool]],
    ) -> None:
        """Without a `gate` calls have no price. `disconnect` closes the links of a peer that was
        cut off, and returns true if it was."""
        self._authorizer = authorizer
        self._gate = gate
        self.is_member = is_member
        self._disconnect = disconnect

    async def answer(self, call: TableCall, raw: bytes, caller: str, context: Any) -> bytes:
        """Return the packed answer to a packed call."""
        if await self._disconnect(caller):
            return NOTHING
        request = self._parse_call(call, raw, caller)
        if request is None:
            return NOTHING
        if not await self._authorizer.validate_request(request):
            self._count_refusal(caller)
            return NOTHING
        if self._gate is not None and not self._gate.asks(caller):
            return await self._empty(call, request)
        is_own_record = call.name == STORE and bytes(request.subkeys[0]) == msgpack.packb(caller)
        if not (self.is_member(caller) or call.name == PING or is_own_record):
            self._count_refusal(caller)
            return await self._empty(call, request)
        response = await call.answer(request, context)
        await self._authorizer.sign_response(response, request)
        answer: bytes = response.SerializeToString()
        if self._gate is not None:
            self._gate.charge_reply(caller, len(answer))
        return answer

    def _parse_call(self, call: TableCall, raw: bytes, caller: str) -> Any:
        """The request, None if no program of this swarm sends it."""
        if len(raw) > MAX_CALL_BYTES:
            return self._broke(caller, Rejected("size", f"a call of {len(raw)} bytes"))
        request = call.request()
        try:
            request.ParseFromString(raw)
        except ValueError:  # protobuf's DecodeError is one
            return self._broke(caller, Rejected("schema", "no call of the table"))
        if not _is_sound(call.name, request):
            return self._broke(caller, Rejected("schema", "not one key, or no record of a peer"))
        return request

    async def _empty(self, call: TableCall, request: Any) -> bytes:
        """The answer of a node that has no record, knows no peer, and names not even itself. A
        caller counts it as an answer, so this node keeps its place in the caller's table."""
        response = call.response()
        if call.name == FIND:
            response.results.add()
        elif call.name == STORE:
            response.store_ok.append(False)
        await self._authorizer.sign_response(response, request)
        answer: bytes = response.SerializeToString()
        return answer

    def _count_refusal(self, caller: str) -> None:
        if self._gate is not None:
            self._gate.count_refusal(caller)

    def _broke(self, caller: str, rejection: Rejected) -> None:
        if self._gate is not None:
            self._gate.broke(caller, rejection)


def _is_sound(name: str, request: Any) -> bool:
    """Check that the call asks for one key, and stores one record of one peer."""
    if len(request.peer.node_id) not in (0, _KEY_BYTES):
        return False
    if name == PING:
        return True
    if [len(key) for key in request.keys] != [_KEY_BYTES]:
        return False
    if name == FIND:
        return True
    fields = request.subkeys, request.values, request.expiration_time, request.in_cache
    return all(len(field) == 1 for field in fields) and request.subkeys[0] not in _NO_OWNER
