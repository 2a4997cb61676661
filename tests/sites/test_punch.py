"""Two nodes behind routers that let in nothing but answers connect to each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from sites.bed import Bed, Nat

pytestmark = pytest.mark.sites

PORT = 31330
#: Listens as a network daemon does (its port is shared) and echoes; then holds a SYN and passes on
#: what it meets.
HOLDER = """
import asyncio, sys
from swarm_node.p2p.reach.punch import hold, splice

async def echo(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()

async def main(port, ip):
    host = "::" if ":" in ip else "0.0.0.0"
    server = await asyncio.start_server(echo, host, port, reuse_port=True)
    print("listening", flush=True)
    sys.stdin.readline()
    met = await hold(port, ip, port)
    print("met" if met else "nobody", flush=True)
    if met is not None:
        await splice(met, port)

asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""
#: Dials as a network daemon does, from its own port.
DIALLER = """
import socket, sys
port, ip = int(sys.argv[1]), sys.argv[2]
family, host = (socket.AF_INET6, "::") if ":" in ip else (socket.AF_INET, "0.0.0.0")
with socket.socket(family) as dials:
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        dials.setsockopt(socket.SOL_SOCKET, option, 1)
    dials.bind((host, port))
    dials.settimeout(15)
    try:
        dials.connect((ip, port))
        dials.sendall(b"through both routers")
        print(dials.recv(64).decode())
    except OSError as error:
        print(type(error).__name__)
"""


def met(bed: Bed, holding: str, dialling: str, *, six: bool = False) -> tuple[str, str]:
    """What host 1 of a site that holds a SYN, and of one that dials, say in the end."""
    given = bed.six([f"{holding}1", f"{dialling}1"]) if six else {}

    def start(site: str, program: str, other: str) -> subprocess.Popen[str]:
        address = given.get(f"{other}1") or bed.address(other)
        arguments: Sequence[str] = (sys.executable, "-c", program, str(PORT), address)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return bed.run(f"{site}1", arguments, **pipes)

    holder = start(holding, HOLDER, dialling)
    assert holder.stdout.readline() == "listening\n"
    holder.stdin.write("now\n")
    holder.stdin.flush()
    dialler = start(dialling, DIALLER, holding)
    said, _ = dialler.communicate(timeout=120)
    verdict = holder.stdout.readline().strip()
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    return verdict, said.strip()


@pytest.mark.parametrize(
    ("holds", "dials"),
    [
        (Nat.RESTRICTED, Nat.RESTRICTED),
        (Nat.ADDRESS, Nat.RESTRICTED),
        (Nat.RESTRICTED, Nat.ADDRESS),
        (Nat.RESTRICTED, Nat.REJECT),
    ],
)
def test_a_held_syn_meets_the_others(holds: Nat, dials: Nat) -> None:
    with Bed({"a": holds, "b": dials}, public=1, hosts=1) as bed:
        assert met(bed, "a", "b") == ("met", "through both routers")


def test_a_held_syn_meets_the_others_through_two_firewalls_of_ipv6() -> None:
    with Bed({"a": Nat.RESTRICTED, "b": Nat.RESTRICTED}, public=1, hosts=1) as bed:
        assert met(bed, "a", "b", six=True) == ("met", "through both routers")


@pytest.mark.nightly(reason="another kind of router")
@pytest.mark.slow(reason="a SYN that nobody meets is given up after eight seconds")
def test_behind_a_symmetric_router_no_syn_is_met() -> None:
    with Bed({"a": Nat.RESTRICTED, "b": Nat.SYMMETRIC}, public=1, hosts=1) as bed:
        verdict, said = met(bed, "a", "b")
        assert verdict == "nobody"
        assert said != "through both routers"
