"""The proxy does what it says. Times are lower bounds only: a busy machine is no failure."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from sites.faults import FaultProxy, Faults, proxied


@contextmanager
def line(
    faults: Faults, seed: int = 0
) -> Iterator[tuple[FaultProxy, Callable[[], socket.socket], socket.socket]]:
    """A proxy with these faults, what connects through it, and the listener at its far end."""
    with ExitStack() as stack:
        far, near = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in "12")
        far.settimeout(60)
        where = near.getsockname()
        proxy = stack.enter_context(proxied(FaultProxy(far.getsockname(), faults, seed=seed), near))
        yield proxy, lambda: stack.enter_context(socket.create_connection(where, 60)), far


def test_without_faults_every_byte_and_each_end_comes_through() -> None:
    sent = bytes(range(256)) * 40_000
    with line(Faults()) as (_, dial, far):
        near = dial()
        with far.accept()[0] as other:
            near.sendall(b"ask")
            near.shutdown(socket.SHUT_WR)
            assert everything(other) == b"ask"
            other.sendall(sent)  # an end of one direction leaves the other open
            other.close()
        assert everything(near) == sent


def test_latency_delays_each_direction() -> None:
    with line(Faults(latency=0.15)) as (_, dial, far):
        near = dial()
        with far.accept()[0] as other:
            began = time.monotonic()
            near.sendall(b"ping")
            assert other.recv(9) == b"ping"
            assert time.monotonic() - began >= 0.15
            other.sendall(b"pong")
            assert near.recv(9) == b"pong"
            assert time.monotonic() - began >= 0.3


def test_a_rate_bounds_each_direction_and_can_be_changed() -> None:
    with line(Faults(rate=100_000)) as (proxy, dial, far):
        near = dial()
        with far.accept()[0] as other:
            began = time.monotonic()
            near.sendall(b"x" * 30_000)
            assert len(exactly(other, 30_000)) == 30_000
            assert time.monotonic() - began >= 0.25
            proxy.faults = Faults()
            near.sendall(b"y" * 5_000_000)  # 50 s at the old rate
            assert len(exactly(other, 5_000_000)) == 5_000_000
            assert time.monotonic() - began < 40


@pytest.mark.slow(reason="eighty connections")
def test_a_share_of_the_connections_is_dropped_and_the_seed_decides_which() -> None:
    assert fates(Faults(drop=1.0)) == "." * 20
    assert fates(Faults(drop=0.0)) == "x" * 20
    some = fates(Faults(drop=0.5), seed=1)
    assert set(some) == {".", "x"}
    assert some == fates(Faults(drop=0.5), seed=1) != fates(Faults(drop=0.5), seed=2)


def test_half_open_is_silent_until_it_is_mended() -> None:
    with line(Faults()) as (proxy, dial, far):
        near = dial()
        with far.accept()[0] as other:
            near.sendall(b"before")
            assert exactly(other, 6) == b"before"
            proxy.half_open()
            near.sendall(b"after")
            near.close()
            late = dial()
            late.sendall(b"late")
            with far.accept()[0] as second:  # it is connected, and just as silent
                for each in (other, second):
                    assert silent(each)
                proxy.mend()
                assert everything(other) == b"after"
                assert exactly(second, 4) == b"late"


def test_a_reset_reaches_both_ends_and_later_connections_work() -> None:
    with line(Faults()) as (proxy, dial, far):
        near = dial()
        with far.accept()[0] as other:
            other.settimeout(60)
            near.sendall(b"x")
            assert other.recv(9) == b"x"
            proxy.reset()
            for end in (near, other):
                with pytest.raises(ConnectionResetError):
                    end.recv(9)
        again = dial()
        with far.accept()[0] as other:
            again.sendall(b"y")
            assert other.recv(9) == b"y"


def fates(faults: Faults, seed: int = 0) -> str:
    """`x` for each of 20 connections that carries a byte, `.` for each that is reset."""
    seen = ""
    with line(faults, seed) as (_, dial, far):
        for _ in range(20):
            try:
                near = dial()
                near.sendall(b"x")
                far.settimeout(0)
                near.settimeout(0.01)
                seen += fate(near, far)
            except (ConnectionResetError, BrokenPipeError):
                seen += "."
    return seen


def fate(near: socket.socket, far: socket.socket) -> str:
    """What becomes of a connection: it arrives, or its near end is reset."""
    while True:
        try:
            with far.accept()[0] as other:
                other.setblocking(True)
                return other.recv(9).decode()
        except BlockingIOError:
            pass
        try:
            near.recv(9)
        except TimeoutError:
            continue


def silent(end: socket.socket) -> bool:
    """Nothing is to be read, not even an end."""
    end.settimeout(0.05)
    try:
        end.recv(9)
    except TimeoutError:
        return True
    finally:
        end.settimeout(60)
    return False


def exactly(end: socket.socket, count: int) -> bytes:
    end.settimeout(60)
    got = b""
    while len(got) < count and (more := end.recv(1 << 20)):
        got += more
    return got


def everything(end: socket.socket) -> bytes:
    end.settimeout(60)
    got = bytearray()
    while more := end.recv(1 << 20):
        got += more
    return bytes(got)
