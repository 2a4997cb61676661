"""A child that answers out of order: real processes that answer, fail, hang and die."""

import asyncio

import pytest
from obedient import Counted, Do, Dropped, Echo, Echoed, Wait, Waited

from swarm_node.errors import ChildError
from swarm_node.process import Child

CONCURRENT = True


@pytest.mark.slow(reason="a process answers late")
def test_requests_are_answered_when_they_are_done(with_child) -> None:
    async def body(child: Child) -> None:
        slow = asyncio.ensure_future(child.call(Wait(0.5), Waited, patience=20))
        values = [b"\x00" * 300_000, "text", None]
        calls = (child.call(Echo(value), Echoed, patience=20) for value in values)
        assert [reply.value for reply in await asyncio.gather(*calls)] == values
        assert not slow.done()
        assert (await slow).ended == "late"

    with_child(body)


def test_a_call_can_be_cut_short_and_still_answers(with_child) -> None:
    async def body(child: Child) -> None:
        cut = asyncio.Event()
        call = asyncio.ensure_future(child.call(Wait(60), Waited, patience=20, stop_event=cut))
        await child.call(Echo(), Echoed, patience=20)
        cut.set()
        assert (await call).ended == "early"

    with_child(body)


def test_a_cancelled_call_is_dropped_in_the_child(with_child) -> None:
    async def body(child: Child) -> None:
        call = asyncio.ensure_future(child.call(Wait(60), Waited, patience=20))
        await child.call(Echo(), Echoed, patience=20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await child.call(Dropped(), Counted, patience=20)).count == 1

    with_child(body)


@pytest.mark.slow(reason="processes are ended and started again")
@pytest.mark.parametrize(
    ("what", "message"), [("die", "exit code 3"), ("bug", "died"), ("garbage", "protocol")]
)
def test_a_dead_child_fails_every_call_and_can_be_started_again(
    with_child, what: str, message: str
) -> None:
    async def body(child: Child) -> None:
        other = asyncio.ensure_future(child.call(Wait(60), Waited, patience=20))
        with pytest.raises(ChildError, match=message):
            await child.call(Do(what), Echoed, patience=20)
        with pytest.raises(ChildError, match=message):
            await other
        with pytest.raises(ChildError, match="not running"):
            await child.call(Echo(), Echoed, patience=2)
        await child.start("concurrent")
        assert (await child.call(Echo(1), Echoed, patience=20)).value == 1

    with_child(body)
