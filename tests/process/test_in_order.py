"""Supervised children: real processes that answer, fail, hang and die."""

import asyncio

import pytest
from obedient import Do, Echo, Echoed, Request, Wait, Waited

from swarm_node.errors import ChildError
from swarm_node.process import Child, ReportedError


def test_answers_in_order_whatever_it_prints(with_child) -> None:
    async def body(child: Child) -> None:
        values = [b"\x00" * 100_000, "text", [1, 2.5, None]]
        calls = (child.call(Echo(v), Echoed, patience=20) for v in values)
        assert [reply.value for reply in await asyncio.gather(*calls)] == values

    with_child(body)


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_reported_error_leaves_it_alive(with_child, concurrent: bool) -> None:
    async def body(child: Child) -> None:
        with pytest.raises(ReportedError, match=r"^echo: \w+: no"):
            await child.call(Do("fail"), Echoed, patience=20)
        with pytest.raises(ReportedError, match="ValidationError"):
            await child.call(Echoed(1), Echoed, patience=20)
        assert (await child.call(Echo(1), Echoed, patience=20)).value == 1

    with_child(body, concurrent)


@pytest.mark.slow(reason="processes are ended and started again")
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Do("die"), "exit code 3"),
        (Do("bug"), "died"),
        (Do("garbage"), "protocol"),
        (Do("nothing"), "protocol"),
        (Do("another type"), "protocol"),
        (Wait(60), "did not answer"),
    ],
)
def test_a_dead_or_silent_child_is_an_error_and_can_be_started_again(
    with_child, request_: Request, message: str
) -> None:
    async def body(child: Child) -> None:
        await child.call(Echo(), Echoed, patience=20)
        with pytest.raises(ChildError, match=message):
            await child.call(request_, Echoed, patience=0.5 if request_ == Wait(60) else 20)
        assert not child.alive
        with pytest.raises(ChildError, match="not running"):
            await child.call(Echo(1), Echoed, patience=2)
        await child.start("in-order")
        assert (await child.call(Echo(1), Echoed, patience=20)).value == 1

    with_child(body)


def test_the_death_of_a_child_ends_a_call_at_once_however_patient_it_is(
    with_child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipe and its exit both ended, so nothing is waited for."""
    monkeypatch.setattr("swarm_node.process.child._LAST_SECONDS", 600.0)

    async def body(child: Child) -> None:
        async with asyncio.timeout(60):
            with pytest.raises(ChildError, match="exit code 3"):
                await child.call(Do("die"), Echoed, patience=600)

    with_child(body)


@pytest.mark.slow(reason="a process is ended and started again")
def test_a_cancelled_call_does_not_leave_half_a_reply_behind(with_child) -> None:
    async def body(child: Child) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await child.call(Wait(60), Waited, patience=60)
        assert not child.alive

    with_child(body)
