"""The bed is what it says: each kind of NAT, each fault, and nothing is left of it afterwards."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from builders import ROOT
from sites.bed import Bed, Nat, claimed
from sites.capture import tcp_streams

#: A port that Nat.OPEN forwards.
PORT = 25000
#: The kinds that filter as RESTRICTED does.
CLOSED = Nat.RESTRICTED, Nat.SYMMETRIC, Nat.NO_UDP, Nat.HTTPS_ONLY

pytestmark = pytest.mark.sites


@pytest.fixture
def bed() -> Iterator[Bed]:
    with Bed({"a": Nat.RESTRICTED, "b": Nat.RESTRICTED}) as bed:
        yield bed


@pytest.mark.parametrize("nat", Nat)
def test_only_a_symmetric_nat_gives_another_port_for_every_connection(bed: Bed, nat: Nat) -> None:
    bed.kind("a", nat)
    seen = [connected(bed, "a1", f"pub{n}", 443)[1].getpeername() for n in range(1, 5)]
    assert {address for address, _ in seen} == {bed.address("a")}
    ports = {port for _, port in seen}
    assert (len(ports) > 1) if nat is Nat.SYMMETRIC else ports == {PORT}


@pytest.mark.parametrize(
    ("nat", "before", "asked", "stranger"),
    [
        (Nat.OPEN, "open", "open", "open"),
        (Nat.CONE, "dropped", "open", "open"),
        (Nat.ADDRESS, "dropped", "open", "dropped"),
        (Nat.REJECT, "refused", "refused", "refused"),
        *((nat, "dropped", "dropped", "dropped") for nat in CLOSED),
    ],
)
def test_who_may_come_in(bed: Bed, nat: Nat, before: str, asked: str, stranger: str) -> None:
    """Before the host sent anything; then from another port of whom it sent to, and a stranger."""
    bed.kind("a", nat)
    listening(bed, "a1", PORT)
    assert knock(bed, "pub2", "a", PORT) == before
    _, far = connected(bed, "a1", "pub1", 443)
    mapped = far.getpeername()[1]
    assert knock(bed, "pub1", "a", mapped) == asked
    assert knock(bed, "pub2", "a", mapped) == stranger
    assert knock(bed, "b1", "a", mapped) == stranger


@pytest.mark.parametrize("nat", Nat)
def test_what_may_go_out(bed: Bed, nat: Nat) -> None:
    bed.kind("a", nat)
    dropped = bed.dropped("a")
    listener = listening(bed, "pub1", 5000)
    caller = calling(bed, "a1", (bed.address("pub1"), 5000))
    if nat is Nat.HTTPS_ONLY:
        until(lambda: bed.dropped("a") > dropped)
        assert not readable(listener)
    else:
        assert outcome(caller) == "open"


@pytest.mark.parametrize("nat", Nat)
def test_datagrams_go_out_and_their_answers_come_in(bed: Bed, nat: Nat) -> None:
    bed.kind("a", nat)
    far, near = (bed.socket_in(host, socket.SOCK_DGRAM) for host in ("pub1", "a1"))
    far.bind(("", 443))
    far.settimeout(60)
    near.settimeout(60)
    dropped = bed.dropped("a")
    near.sendto(b"ask", (bed.address("pub1"), 443))
    if nat in (Nat.HTTPS_ONLY, Nat.NO_UDP):
        until(lambda: bed.dropped("a") > dropped)
        assert not readable(far)
    else:
        asked, where = far.recvfrom(9)
        assert (asked, where[0]) == (b"ask", bed.address("a"))
        far.sendto(b"answer", where)
        assert near.recv(9) == b"answer"


@pytest.mark.parametrize(("other", "meet"), [(Nat.RESTRICTED, True), (Nat.SYMMETRIC, False)])
def test_two_that_call_each_other_meet_unless_one_is_symmetric(
    bed: Bed, other: Nat, meet: bool
) -> None:
    bed.kind("b", other)
    one = calling(bed, "a1", (bed.address("b"), PORT), PORT)
    until(lambda: bed.dropped("b") > 0)
    dropped = bed.dropped("a")
    two = calling(bed, "b1", (bed.address("a"), PORT), PORT)
    if meet:
        assert (outcome(one), outcome(two)) == ("open", "open")
    else:
        until(lambda: bed.dropped("a") > dropped)
        assert outcome(one, 0) == outcome(two, 0) == ""


def test_flushed_mappings_that_keep_their_port_come_back_with_what_the_host_sends(bed: Bed) -> None:
    near, far = connected(bed, "a1", "pub1", 443)
    bed.flush("a")
    far.sendall(b"lost")
    until(lambda: bed.dropped("a") > 0)
    assert not readable(near)
    near.sendall(b"here")
    assert far.recv(9) == b"here"
    assert near.recv(9) == b"lost", "sent again by TCP"


def test_flushed_mappings_of_a_symmetric_nat_end_its_connections(bed: Bed) -> None:
    bed.kind("a", Nat.SYMMETRIC)
    near, _ = connected(bed, "a1", "pub1", 443)
    bed.flush("a")
    near.sendall(b"x")  # comes from another port, where nobody is known
    with pytest.raises(ConnectionResetError):
        near.recv(9)


def test_a_new_address_ends_connections_and_is_seen_by_the_next(bed: Bed) -> None:
    before = bed.address("a")
    near, _ = connected(bed, "a1", "pub1", 443)
    assert bed.readdress("a") == bed.address("a") != before
    near.sendall(b"x")
    with pytest.raises(ConnectionResetError):
        near.recv(9)
    near.close()
    _, far = connected(bed, "a1", "pub2", 443)
    assert far.getpeername() == (bed.address("a"), PORT)
    bed.kind("a", Nat.OPEN)
    listening(bed, "a1", PORT)
    assert knock(bed, "pub2", "a", PORT) == "open"


@pytest.mark.parametrize("name", ["a", "a1", "pub1"])
def test_what_is_sent_over_a_cut_link_arrives_after_it_is_joined(bed: Bed, name: str) -> None:
    near, far = connected(bed, "a1", "pub1", 443)
    bed.cut(name)
    near.sendall(b"late")
    until(lambda: retransmitted(near) > 0)
    assert not readable(far)
    bed.join(name)
    assert far.recv(9) == b"late", "the mapping is as before"


def test_behind_two_routers_both_decide(bed: Bed) -> None:
    listening(bed, "a1", PORT)
    bed.double("a", Nat.RESTRICTED)
    _, far = connected(bed, "a1", "pub1", 443)
    assert far.getpeername() == (bed.address("a"), PORT)
    bed.kind("a", Nat.OPEN)
    assert knock(bed, "pub1", "a", PORT) == "dropped"
    with pytest.raises(ValueError, match="has a carrier"):
        bed.double("a", Nat.OPEN)


def test_addresses_of_ipv6_are_each_hosts_own_and_routers_drop_what_is_unasked(bed: Bed) -> None:
    bed.kind("b", Nat.OPEN)
    given = bed.six(["pub1", "a1", "b1"], only=["a1", "b1"])

    def calls(host: str, other: str) -> tuple[socket.socket, socket.socket]:
        listener, caller = (bed.socket_in(each, family=socket.AF_INET6) for each in (other, host))
        listener.bind(("", PORT))
        listener.listen()
        listener.settimeout(60)
        caller.setblocking(False)
        with suppress(BlockingIOError):
            caller.connect((given[other], PORT))
        return caller, listener

    for other in ("pub1", "b1"):
        caller, listener = calls("a1", other)
        assert outcome(caller) == "open"
        far, (seen, *_) = listener.accept()
        assert seen == given["a1"]
        far.close()
    caller, listener = calls("pub1", "a1")
    until(lambda: bed.dropped("a") > 0)
    assert not readable(listener)
    with pytest.raises(OSError, match="unreachable"):
        bed.socket_in("a1").connect((bed.address("pub1"), PORT))


def test_what_passes_an_overlay_is_no_tcp_of_the_network_below(bed: Bed, tmp_path: Path) -> None:
    given = bed.overlay(["pub1", "pub2", "pub3"])
    with bed.capture("pub1", tmp_path / "below.pcap"):
        for other in ("pub2", "pub3"):
            listener = listening(bed, other, PORT)
            caller = calling(bed, "pub1", (given[other], PORT))
            far, (seen, _) = listener.accept()
            assert seen == given["pub1"]
            assert outcome(caller) == "open"
            caller.sendall(b"over it")
            assert far.recv(9) == b"over it"
            far.close()
    assert tcp_streams(tmp_path / "below.pcap") == {}
    assert b"over it" in (tmp_path / "below.pcap").read_bytes()


@pytest.mark.parametrize("host", ["pub1", "a1"])
def test_nothing_leaves_the_machine(bed: Bed, host: str) -> None:
    caller = bed.socket_in(host)
    caller.settimeout(60)
    with pytest.raises(OSError, match="unreachable") as caught:
        caller.connect(("192.0.2.1", 443))
    assert caught.value.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)


def test_a_capture_has_what_passed_and_nothing_else(bed: Bed, tmp_path: Path) -> None:
    near, far = connected(bed, "a1", "pub1", 443)
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected(bed, "b1", "pub1", 444)[0].sendall(b"of another site")
    with bed.capture("a", tmp_path / "a.pcap") as taken:
        for piece in (b"a need", b"le in two packets"):
            near.sendall(piece)
            assert far.recv(99) == piece
        far.sendall(b"answer")
        assert near.recv(99) == b"answer"
    near.sendall(b" after the capture")
    assert far.recv(99)
    assert b"a needle" not in taken.path.read_bytes()
    site, public = (bed.address("a"), PORT), (bed.address("pub1"), 443)
    assert tcp_streams(taken.path) == {
        (*site, *public): b"a needle in two packets",
        (*public, *site): b"answer",
    }


def test_a_host_that_moves_has_another_address_and_its_connections_are_dead(bed: Bed) -> None:
    near, far = connected(bed, "a1", "pub1", 443)
    at_home = bed.address("a1")
    assert bed.move("a1", "b") == bed.address("a1") != at_home
    near.setblocking(False)
    near.send(b"from its old address")
    again, other = connected(bed, "a1", "pub1", 8080)
    assert other.getpeername()[0] == bed.address("b")
    again.sendall(b"x")
    assert other.recv(9) == b"x"
    assert not readable(far)
    bed.move("a1", "a")


def test_two_beds_do_not_meet(bed: Bed) -> None:
    with Bed({"a": Nat.OPEN}, public=1, hosts=1) as other:
        here, there = listening(bed, "pub1", 443), listening(other, "pub1", 443)
        assert outcome(calling(other, "a1", (other.address("pub1"), 443))) == "open"
        assert readable(there)
        assert not readable(here)
    assert outcome(calling(bed, "a1", (bed.address("pub1"), 443))) == "open", (
        "it outlives the other"
    )


def test_nothing_is_left_of_a_bed_and_the_machines_own_network_is_untouched() -> None:
    before = machine()
    with Bed({"a": Nat.SYMMETRIC}) as bed:
        parent = bed.run("a1", ["sh", "-c", "sleep 1000 & sleep 1000"])
        bed.socket_in("a1")
        assert left(bed.prefix)
        assert machine() == before
    assert parent.returncode == -signal.SIGKILL
    assert left(bed.prefix) == []
    assert machine() == before


def test_beds_that_end_while_others_begin_are_not_taken_for_left_over() -> None:
    def claim(_: int) -> None:
        with claimed():
            pass

    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(claim, range(400)))) == 400


def test_a_bed_that_cannot_be_built_leaves_nothing() -> None:
    class Broken(Bed):
        def _build(self) -> None:
            super()._build()
            assert left(self.prefix)
            self._ip("a1", ["addr add 300.0.0.1/16 dev eth0"])

    bed = Broken({"a": Nat.OPEN}, public=1)
    with pytest.raises(RuntimeError, match="prefix"), bed:
        pass
    assert left(bed.prefix) == []
    with pytest.raises(ValueError, match="7 letters"):
        Bed({"a1": Nat.OPEN})


def test_what_a_killed_run_left_is_removed_by_the_next_bed() -> None:
    code = (
        "import signal, sys\n"
        "from sites.bed import Bed, Nat, claimed\n"
        "with Bed({'a': Nat.OPEN}, public=1) as bed:\n"
        "    print(bed.prefix, bed.run('a1', ['sleep', '1000']).pid, flush=True)\n"
        "    signal.pause()\n"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT / "tests", stdout=subprocess.PIPE, text=True
    )
    with killed:
        prefix, sleeper = killed.stdout.readline().split()
        with Bed({}, public=1):
            assert running(int(sleeper)), "the bed of a live process stays"
        killed.kill()
    assert running(int(sleeper))
    assert left(prefix)
    with Bed({}, public=1):
        until(lambda: not running(int(sleeper)))
        assert left(prefix) == []


def test_a_machine_without_the_tools_says_loudly_that_nothing_was_run() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            __file__,
            "-k",
            "two_beds",
        ],
        cwd=ROOT,
        env={**os.environ, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert "\nNOT RUN: " in done.stdout


def listening(bed: Bed, host: str, port: int) -> socket.socket:
    listener = bed.socket_in(host)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("", port))
    listener.listen()
    listener.settimeout(60)
    return listener


def calling(bed: Bed, host: str, address: tuple[str, int], port: int = 0) -> socket.socket:
    """A connection under way, from this port if one is named."""
    caller = bed.socket_in(host)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    caller.bind(("", port))
    caller.setblocking(False)
    with suppress(BlockingIOError):
        caller.connect(address)
    return caller


def connected(bed: Bed, host: str, public: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection from PORT of a host to a public host."""
    listener = listening(bed, public, port)
    near = calling(bed, host, (bed.address(public), port), PORT)
    far = listener.accept()[0]
    assert outcome(near) == "open"
    for end in (near, far):
        end.settimeout(60)
        bed.keep(end)
    return near, far


def knock(bed: Bed, host: str, site: str, port: int) -> str:
    """What becomes of a new connection to the public side of a site: open, refused or dropped."""
    before = bed.dropped(site)
    with calling(bed, host, (bed.address(site), port)) as caller:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if result := outcome(caller, 0.02):
                return result
            if bed.dropped(site) > before:
                return "dropped"
    raise AssertionError("neither an answer nor a drop")


def outcome(caller: socket.socket, seconds: float = 60) -> str:
    """ "open" or "refused", "" if neither is known in time."""
    if not select.select([], [caller], [], seconds)[1]:
        return ""
    error = caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    assert error in (0, errno.ECONNREFUSED), os.strerror(error)
    return "refused" if error else "open"


def readable(end: socket.socket) -> bool:
    return bool(select.select([end], [], [], 0)[0])


def retransmitted(end: socket.socket) -> int:
    """How often TCP has sent anew what was not acknowledged."""
    info: int = struct.unpack_from("B", end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8), 2)[
        0
    ]
    return info


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


def left(prefix: str) -> list[str]:
    """What there is of a bed."""
    places = Path("/run/netns"), Path("/run/swarm-beds")
    return [path.name for place in places for path in place.glob(f"{prefix}*")]


def machine() -> str:
    """The machine's own network, which is none of a bed's business."""
    asked = ["ip", "-brief", "link"], ["ip", "route"], ["nft", "list", "ruleset"]
    shown = [subprocess.run(each, capture_output=True, text=True, check=True) for each in asked]
    forwards = Path("/proc/sys/net/ipv4/ip_forward").read_text()
    return "".join([*(each.stdout for each in shown), forwards])
