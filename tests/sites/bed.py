"""A small internet of network namespaces, in which real nodes sit behind real NAT.

A bed has public hosts (`pub1`, `pub2`, …) and sites. A site is a router with NAT and the hosts
behind it (`a1` and `a2` of site `a`). No namespace has a way out: nothing leaves the machine.
Every name begins with the bed's own prefix, so that several beds run side by side.

Public addresses are 11.0.x.y. The ranges for tests and documentation would not do: go-libp2p counts
them as unroutable, and treats a relay there like a private host.

Needs root, iproute2, nftables, conntrack and util-linux; `why_not()` says what is missing.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import string
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import IO, Any

from sites.capture import Capture

TOOLS = ("ip", "nft", "conntrack", "nsenter")
#: What a router of kind OPEN forwards to host 1 of its site.
FORWARDED = range(20000, 40000)
_NAMESPACES = Path("/run/netns")
#: One file for each bed, locked by its process. If it can be locked, the bed is left over.
_BEDS = Path("/run/swarm-beds")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Nat(Enum):
    """What the router of a site does. `RESTRICTED` is the common home router.

    Mapping: the port of a host is kept, towards every destination, except by `SYMMETRIC`.
    Filtering: what comes in unasked is dropped without an answer, except by `REJECT`.
    """

    OPEN = "open"
    """Everything to `FORWARDED` ports goes to host 1: a port that its owner forwarded."""
    CONE = "cone"
    """Anybody may send to a port that a host has sent from (endpoint-independent filtering). Two
    hosts of such a site must not send from the same port."""
    ADDRESS = "address"
    """The same, for addresses that the host has sent to (address-dependent filtering)."""
    RESTRICTED = "restricted"
    """Answers come in, and nothing else (address- and port-dependent filtering)."""
    REJECT = "reject"
    """The same, but what is not let in is answered with a reset."""
    SYMMETRIC = "symmetric"
    """The same, and another random port for every connection."""
    HTTPS_ONLY = "https only"
    """As RESTRICTED, and only TCP to port 443 may go out."""
    NO_UDP = "no udp"
    """As RESTRICTED, and no UDP may go out."""


#: Rules by which a kind differs from RESTRICTED, in the chains `pre` and `forward` below.
_UNASKED = "iifname eth0 ct state new counter name dropped drop;"
_NOTE_SENDER = "oifname eth0 ct state new add @sender { th sport : ip saddr };"
_TO_SENDER = "iifname eth0 meta l4proto { tcp, udp } dnat to th dport map @sender"
_TO_FIRST = (
    f"iifname eth0 meta l4proto {{ tcp, udp }} th dport {FORWARDED[0]}-{FORWARDED[-1]} dnat to"
)
_FORWARD: dict[Nat, str] = {
    Nat.OPEN: "",
    Nat.CONE: _NOTE_SENDER,
    Nat.ADDRESS: f"{_NOTE_SENDER} oifname eth0 ct state new add @asked {{ th sport . ip daddr }};"
    f" iifname eth0 th dport . ip saddr @asked accept; {_UNASKED}",
    Nat.HTTPS_ONLY: f"{_UNASKED} oifname eth0 tcp dport 443 accept;"
    " oifname eth0 counter name dropped drop;",
    Nat.NO_UDP: f"{_UNASKED} oifname eth0 meta l4proto udp counter name dropped drop;",
}
_RULES = """
flush ruleset
table ip nat {{
    map sender {{ type inet_service : ipv4_addr; size 65536; flags dynamic; }}
    chain pre {{ type nat hook prerouting priority dstnat; {dnat}; }}
    chain post {{ type nat hook postrouting priority srcnat; oifname eth0 masquerade{how}; }}
    set asked {{ type inet_service . ipv4_addr; size 65536; flags dynamic; }}
    counter dropped {{ }}
    chain forward {{
        type filter hook forward priority filter;
        ct state established,related accept;
        {forward}
    }}
    chain input {{
        type filter hook input priority filter;
        iifname eth0 ct state {{ new, invalid }} counter name dropped {unasked};
    }}
}}
table ip6 filter {{
    counter dropped {{ }}
    chain forward {{
        type filter hook forward priority filter;
        ct state established,related accept;
        {six}
    }}
}}
"""


class Bed:
    """Public hosts, and sites behind the NAT that `sites` names, with `hosts` each.

    Use it as a context manager: at its end every process in it is killed and every namespace is
    removed. What a killed run left is removed when the next bed begins.
    """

    def __init__(self, sites: Mapping[str, Nat], public: int = 4, hosts: int = 2) -> None:
        wrong = [name for name in sites if not (name.isalpha() and len(name) < 8)]
        if wrong or "pub" in sites or not 1 <= public < 250 or not 1 <= hosts <= 200:
            raise ValueError("a site has a name of at most 7 letters, but not pub")
        self.sites = dict(sites)
        self.prefix = ""
        self._carriers: dict[str, Nat] = {}
        self._addresses = {f"pub{n}": f"11.0.0.{n}" for n in range(1, public + 1)}
        self._addresses |= {site: f"11.0.{n}.1" for n, site in enumerate(sites, 1)}
        self._hosts = {f"{site}{n}": site for site in sites for n in range(1, hosts + 1)}
        self._own = {
            host: f"192.168.1.{10 + int(host.removeprefix(site))}"
            for host, site in self._hosts.items()
        }
        self._moved = 0
        self._processes: list[subprocess.Popen[Any]] = []
        self._sockets: list[socket.socket] = []
        self._exits = ExitStack()

    def __enter__(self) -> Bed:
        with ExitStack() as exits:
            self.prefix = exits.enter_context(claimed())
            exits.callback(self._remove)
            self._build()
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def address(self, name: str) -> str:
        """The address of a host as its own interface has it, or the public one of a site."""
        return self._own.get(name) or self._addresses[name]

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` in a host. Only its network is another."""
        return ["nsenter", f"--net={_NAMESPACES / self._namespace(host)}", "--", *argv]

    def run(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process in a host; `options` are those of `Popen`."""
        process = subprocess.Popen(self.command(host, argv), **options)
        self._processes.append(process)
        return process

    def socket_in(
        self, host: str, kind: int = socket.SOCK_STREAM, family: int = socket.AF_INET
    ) -> socket.socket:
        """A socket of this process in the network of a host; it stays there. TCP or UDP."""
        return self._open(self._namespace(host), family, kind)

    def keep(self, opened: socket.socket) -> socket.socket:
        """Closes this socket with the bed, as it does those that it made."""
        self._sockets.append(opened)
        return opened

    def kind(self, site: str, nat: Nat) -> None:
        """From now on the router of a site does this. It forgets its mappings."""
        self.sites[site] = nat
        self.flush(site)

    def double(self, site: str, nat: Nat) -> None:
        """Puts the router of a site behind one of its carrier, which takes the public address."""
        if site in self._carriers:
            raise ValueError(f"site {site} has a carrier")
        self._carriers[site] = nat
        router, carrier = f"r-{site}", f"c-{site}"
        self._ip("inet", [f"link del e-{router}"])
        steps = _Steps(self.prefix)
        steps.host(carrier, "inet", "br0", f"{self.address(site)}/16")
        steps.bridge(carrier, "lan", "100.64.0.1/24")
        steps.link(router, carrier, "lan", "100.64.0.2/24", "100.64.0.1")
        steps.take(self._ip)
        self.flush(site)

    def six(self, hosts: Sequence[str], only: Collection[str] = ()) -> dict[str, str]:
        """Gives hosts an address of IPv6 each, which no router translates, and returns them. Those
        in `only` lose their IPv4. Routers drop what comes in unasked, but of kind OPEN nothing."""
        numbers = {site: number for number, site in enumerate(self.sites, 1)}
        ways = {n: f"route add {_six(n)}/64 via {_six(0, f'ff:{n}')}" for n in numbers.values()}
        for site, number in numbers.items():
            lines = [
                f"addr add {_six(0, f'ff:{number}')}/64 dev eth0 nodad",
                f"addr add {_six(number, 'ff')}/64 dev lan nodad",
                *(way for other, way in ways.items() if other != number),
            ]
            self._ip(f"r-{site}", lines)
        given = {}
        for host in hosts:
            site = self._hosts.get(host, "")
            number = numbers.get(site, 0)
            given[host] = _six(number, host.lstrip(string.ascii_letters))
            way = [f"route add default via {_six(number, 'ff')}"] if number else ways.values()
            self._ip(host, [f"addr add {given[host]}/64 dev eth0 nodad", *way])
            if host in only:
                self._ip(host, [f"addr del {self.address(host)}/{24 if number else 16} dev eth0"])
        return given

    def overlay(self, hosts: Sequence[str]) -> dict[str, str]:
        """Gives public hosts an address each in a private network over their links (VXLAN), and
        returns them. It is what a VPN does, but for the encryption."""
        given = {host: f"10.99.0.{number}" for number, host in enumerate(hosts, 1)}
        for host, address in given.items():
            own = f"local {self.address(host)} dev eth0"
            lines = [
                f"link add over type vxlan id 7 dstport 4789 {own}",
                f"addr add {address}/24 dev over",
                "link set over up",
            ]
            self._ip(host, lines)
            for each in (self.address(each) for each in hosts if each != host):
                entry = f"bridge fdb append 00:00:00:00:00:00 dev over dst {each}"
                _done(self.command(host, entry.split()))
        return given

    def cut(self, name: str) -> None:
        """Pulls the cable of a site's uplink, or of one host. Mappings stay."""
        self._plug(name, "down")

    def join(self, name: str) -> None:
        """Plugs the cable in again."""
        self._plug(name, "up")

    def flush(self, site: str) -> None:
        """The routers of a site forget all mappings, as after a restart."""
        if site in self._carriers:
            self._load(f"c-{site}", self._carriers[site], "100.64.0.2")
        self._load(f"r-{site}", self.sites[site], "192.168.1.11")

    def readdress(self, site: str) -> str:
        """Gives a site the next public address and returns it. Mappings are forgotten."""
        head, last = self._addresses[site].rsplit(".", 1)
        self._addresses[site] = f"{head}.{int(last) + 1}"
        outermost = f"c-{site}" if site in self._carriers else f"r-{site}"
        self._ip(
            outermost, ["addr flush dev eth0", f"addr add {self._addresses[site]}/16 dev eth0"]
        )
        self.flush(site)
        return self._addresses[site]

    def move(self, host: str, site: str) -> str:
        """Takes a host to another site, as a laptop, and returns its new own address. Its processes
        run on; nothing answers for its old address any more."""
        self._ip(f"r-{self._hosts[host]}", [f"link del e-{host}"])
        self._hosts[host] = site
        self._moved += 1
        self._own[host] = f"192.168.1.{210 + self._moved}"
        steps = _Steps(self.prefix)
        steps.link(host, f"r-{site}", "lan", f"{self.address(host)}/24", "192.168.1.1")
        steps.take(self._ip)
        return self.address(host)

    def dropped(self, site: str) -> int:
        """Packets that the routers of a site have not let through since they last forgot."""
        routers = [f"r-{site}", *([f"c-{site}"] if site in self._carriers else [])]
        return sum(self._counted(router) for router in routers)

    def received(self, host: str) -> int:
        """Bytes that came to a host so far."""
        shown = json.loads(_done(self.command(host, ["ip", "-s", "-j", "link", "show", "eth0"])))
        return int(shown[0]["stats64"]["rx"]["bytes"])

    @contextmanager
    def capture(self, name: str, path: Path) -> Iterator[Capture]:
        """Writes what passes the interface of a host, or of a site towards the internet, to a pcap
        file. It is complete when the context ends."""
        at = self._namespace(name if name not in self.sites else self._outermost(name))
        everything = socket.htons(0x0003)
        with Capture(self._open(at, socket.AF_PACKET, socket.SOCK_RAW, everything), path) as taken:
            yield taken

    def _build(self) -> None:
        steps = _Steps(self.prefix)
        steps.namespace("inet")
        steps.bridge("inet", "br0")
        for name, address in self._addresses.items():
            steps.host(f"r-{name}" if name in self.sites else name, "inet", "br0", f"{address}/16")
        for site in self.sites:
            steps.bridge(f"r-{site}", "lan", "192.168.1.1/24")
        for host, site in self._hosts.items():
            address = f"{self.address(host)}/24"
            steps.host(host, f"r-{site}", "lan", address, "192.168.1.1")
        steps.take(self._ip)
        for site in self.sites:
            self.flush(site)

    def _load(self, router: str, nat: Nat, first: str) -> None:
        """Gives a router the rules of a kind; `first` gets what OPEN forwards."""
        to_sender = _TO_SENDER if nat in (Nat.CONE, Nat.ADDRESS) else ""
        rules = _RULES.format(
            dnat=f"{_TO_FIRST} {first}" if nat is Nat.OPEN else to_sender,
            how=" random,fully-random" if nat is Nat.SYMMETRIC else "",
            forward=_FORWARD.get(nat, _UNASKED),
            six="" if nat is Nat.OPEN else "iifname eth0 counter name dropped drop;",
            unasked="meta l4proto tcp reject with tcp reset" if nat is Nat.REJECT else "drop",
        )
        steps = (
            *("echo 1 > /proc/sys/net/ipv4/ip_forward", "nft -f -", "conntrack -F 2>&1"),
            "if cd /proc/sys/net/ipv6; then echo 1 > conf/all/forwarding; fi",
        )
        _done(self.command(router, ["sh", "-c", " && ".join(steps)]), rules)

    def _plug(self, name: str, state: str) -> None:
        if name in self.sites:
            name = self._outermost(name)
        elsewhere = f"r-{self._hosts[name]}" if name in self._hosts else "inet"
        self._ip(elsewhere, [f"link set e-{name} {state}"])

    def _counted(self, router: str) -> int:
        answer = json.loads(_done(self.command(router, ["nft", "-j", "list", "counters"])))
        return sum(
            int(each["counter"]["packets"]) for each in answer["nftables"] if "counter" in each
        )

    def _outermost(self, site: str) -> str:
        return f"c-{site}" if site in self._carriers else f"r-{site}"

    def _namespace(self, name: str) -> str:
        if not self.prefix:
            raise RuntimeError("enter the bed first")
        return f"{self.prefix}-{name}"

    def _open(self, namespace: str, *arguments: int) -> socket.socket:
        with _inside(namespace):
            return self.keep(socket.socket(*arguments))

    def _ip(self, name: str, lines: Sequence[str]) -> None:
        """Carries out lines of `ip`; with no name outside, where only names are made."""
        where = ["-n", self._namespace(name)] if name else []
        _done(["ip", *where, "-batch", "-"], "\n".join(lines))

    def _remove(self) -> None:
        for each in self._sockets:
            each.close()
        _remove(self.prefix)
        for process in self._processes:
            process.wait(30)


class _Steps:
    """Lines for `ip`, collected for each namespace: one process carries out many."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lines: dict[str, list[str]] = {"": []}

    def take(self, ip: Callable[[str, Sequence[str]], None]) -> None:
        for name, lines in self._lines.items():
            ip(name, lines)

    def namespace(self, name: str) -> None:
        self._lines[""].append(f"netns add {self._prefix}-{name}")
        self._to(name, "link set lo up")

    def bridge(self, name: str, bridge: str, address: str = "") -> None:
        self._to(name, f"link add {bridge} type bridge", f"link set {bridge} up")
        if address:
            self._to(name, f"addr add {address} dev {bridge}")

    def host(self, name: str, at: str, bridge: str, address: str, gateway: str = "") -> None:
        """A namespace whose eth0 is plugged into a bridge of another one."""
        self.namespace(name)
        self.link(name, at, bridge, address, gateway)

    def link(self, name: str, at: str, bridge: str, address: str, gateway: str = "") -> None:
        ends = f"e-{name} netns {self._prefix}-{at} type veth peer name eth0"
        self._lines[""].append(f"link add {ends} netns {self._prefix}-{name}")
        self._to(at, f"link set e-{name} master {bridge} up")
        self._to(name, f"addr add {address} dev eth0", "link set eth0 up")
        if gateway:
            self._to(name, f"route add default via {gateway}")

    def _to(self, name: str, *lines: str) -> None:
        self._lines.setdefault(name, []).extend(lines)


def _six(network: int, host: str = "") -> str:
    """An address in the network of the public hosts (0), or in that of a site."""
    return str(ipaddress.IPv6Address(f"2a00:11:{network}::{host}"))


@cache
def why_not() -> str:
    """Why no bed can be built here, "" if one can: found out by building one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root and network namespaces"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return (
            f"needs the programs {', '.join(missing)}: apt-get install iproute2 nftables conntrack"
        )
    try:
        with Bed({"a": Nat.ADDRESS, "b": Nat.REJECT}, public=1, hosts=1) as bed:
            bed.kind("a", Nat.SYMMETRIC)
    except (OSError, RuntimeError) as error:
        return f"needs root and network namespaces with NAT: {error}"
    return ""


@contextmanager
def claimed() -> Iterator[str]:
    """A prefix that no other bed has, after what ended runs left was removed."""
    _BEDS.mkdir(exist_ok=True)
    with _locked():
        for path in _BEDS.glob("bed*"):
            with path.open() as file:
                if _lock(file, fcntl.LOCK_NB):
                    _remove(path.name)
                    path.unlink()
        mine = _BEDS / f"bed{secrets.token_hex(3)}"
        owned = mine.open("w")
        _lock(owned)
    try:
        yield mine.name
    finally:
        # Under the lock: another run may have listed this file, and would take it as left over.
        with _locked():
            mine.unlink()
            owned.close()


@contextmanager
def _locked() -> Iterator[None]:
    with (_BEDS / "lock").open("w") as file:
        _lock(file)
        yield


def _lock(file: IO[str], how: int = 0) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | how)
    except BlockingIOError:
        return False
    return True


def _remove(prefix: str) -> None:
    """Kills what runs in the namespaces of a bed, and removes them."""
    paths = list(_NAMESPACES.glob(f"{prefix}-*"))
    deadline = time.monotonic() + 60
    while pids := _pids(paths):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {pids} of a bed do not end")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for path in paths:
        _done(["ip", "netns", "del", path.name])


def _pids(namespaces: Sequence[Path]) -> list[int]:
    """The processes whose network is one of these, but never this one."""
    wanted = {(state.st_dev, state.st_ino) for state in map(os.stat, namespaces)}
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            state = path.stat()
            if (state.st_dev, state.st_ino) in wanted:
                found.append(int(path.parts[2]))
    return [pid for pid in found if pid != os.getpid()]


@contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """This thread is in a network namespace meanwhile."""
    with open("/proc/thread-self/ns/net") as own, (_NAMESPACES / namespace).open() as other:
        _set_namespace(other)
        try:
            yield
        finally:
            _set_namespace(own)


def _set_namespace(file: IO[str]) -> None:
    # os.setns is Python's from 3.12 on.
    if _libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _done(argv: Sequence[str], text: str = "") -> str:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(f"NOT RUN: {why_not()}" if why_not() else 0)
