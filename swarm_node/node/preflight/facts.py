"""Facts that a node's start depends on, of the machine, the installation and the home.

`gather` collects them and checks nothing. It writes nothing, and every query to another program has
a deadline. `doctor.py` checks the facts. Torch is not imported here.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import NamedTuple

from swarm_node.environments.extras import installed_extras as installed_extras
from swarm_node.errors import (
    HomeError,
    Rejected,
    TicketError,
    TicketExpiredError,
    reason_of,
    words_of,
)
from swarm_node.node.home.file_checks import Fault
from swarm_node.node.home.home import Home
from swarm_node.node.preflight.probe import (
    NOTHING_SEEN,
    Seen,
    gpu_memory,
    has_nvidia,
    probe,
    visible_gpu,
)
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.transports.libp2p import is_installed
from swarm_node.policy.memory.free import available_memory, checkpoint_room, free_disk
from swarm_node.policy.placement import ProductTimes, has_bitsandbytes
from swarm_node.policy.planning.fit import GpuMemory
from swarm_node.policy.sampling.vllm.engine import VllmBuild, installed_vllm
from swarm_node.process.bounded import bounded_run

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only its free space is asked
_SMI_SECONDS, _CLOCK_SECONDS = 20.0, 5.0
_MOST_CHARS = 1 << 16
_MOST_HOLDERS = 16
_LISTEN = re.compile(r"/ip(?P<kind>[46])/(?P<host>[0-9a-fA-F.:]{2,45})/tcp/(?P<port>\d{1,5})")


class Card(NamedTuple):
    """The GPU that the node would use, as nvidia-smi describes it. `cuda` is the newest CUDA
    version that the driver supports, as (major, minor)."""

    name: str
    driver: str
    cuda: tuple[int, int] | None
    memory: GpuMemory | None

    def __str__(self) -> str:
        cuda = f" (CUDA {self.cuda[0]}.{self.cuda[1]})" if self.cuda else ""
        return f"{self.name} with driver {self.driver}{cuda}"


class Holder(NamedTuple):
    """A process that computes on the GPU. `memory` is its GPU memory in bytes, if known."""

    pid: int
    name: str
    memory: int | None


class Torch(NamedTuple):
    """The installed torch, and the CUDA version that it was built with ("13.0"), if any."""

    version: str
    cuda: str | None


class Paper(NamedTuple):
    """A ticket or a membership: the end of its validity in Unix seconds, or the reason why it
    cannot be used. `is_needed` is false for a ticket whose home is already a member of its
    swarm."""

    valid_until: float | None
    fault: str = ""
    is_needed: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that `doctor` checks. Sizes are in bytes and free, times in Unix seconds.

    `bitsandbytes` and `libp2p` are True if they are installed. `extras` are the environments of
    `EXTRAS` with an installed package. `smi_fault` is the reason why nvidia-smi named no card, ""
    without an nvidia-smi. `installed_at` is the time of this program's installation. `synchronized`
    is None if unknown. `shared_memory` is None without /dev/shm. `disk` is the space for the home's
    checkpoints. `busy_addresses` are (address, reason) of addresses that cannot be listened on.
    `faults` are those of the home's files. `database` is the size of node.db. `products` are the
    times that products take on the CPU, None if they were not measured."""

    system: str
    python: tuple[int, int]
    card: Card | None
    smi_fault: str
    holders: tuple[Holder, ...]
    torch: Torch | None
    probe: Seen
    vllm: VllmBuild | None
    bitsandbytes: bool
    libp2p: bool
    extras: frozenset[str]
    compiler: str | None
    headers: bool
    memory: int
    shared_memory: int | None
    temp_space: int
    disk: int
    now: float
    installed_at: float
    synchronized: bool | None
    home: Path
    is_running: bool
    busy_addresses: tuple[tuple[str, str], ...]
    ticket: Paper | None
    membership: Paper | None
    faults: tuple[Fault, ...] = ()
    database: int = 0
    products: ProductTimes | None = None


def gather(
    home: Home,
    device: str,
    listen: Sequence[str],
    ticket: str | None = None,
    cards: int = 1,
) -> Facts:
    """Collect the facts for a node that computes on `device` (the setting), or on `cards` GPUs from
    it on. The node wants to listen on the addresses `listen` and joins by the text `ticket`."""
    now = time.time()
    card, smi_fault, probe_result = find_gpu(device, cards)
    is_running = home.in_use()
    # What a running node writes is its own to check.
    home_state = home.state(deep=not is_running, ticket=ticket is not None)
    return Facts(
        system=platform.system(),
        python=sys.version_info[:2],
        card=card,
        smi_fault=smi_fault,
        holders=find_holders() if card is not None else (),
        torch=installed_torch(),
        probe=probe_result,
        vllm=installed_vllm(),
        bitsandbytes=has_bitsandbytes(),
        libp2p=is_installed(),
        extras=installed_extras(),
        compiler=os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"),
        headers=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        memory=available_memory(),
        shared_memory=free_disk(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK) else None,
        temp_space=free_disk(Path(tempfile.gettempdir())),
        disk=checkpoint_room(home.checkpoints),
        now=now,
        installed_at=Path(__file__).stat().st_mtime,
        synchronized=_is_clock_synchronized(),
        home=home.path,
        is_running=is_running,
        busy_addresses=() if is_running else find_busy(listen, home.kept_port()),
        ticket=None if ticket is None or home_state.errors else read_ticket(ticket, home, now),
        membership=None if home_state.errors else read_membership(home),
        faults=home_state.faults,
        database=sum(file.stat().st_size for file in home.path.glob(f"{home.database.name}*")),
    )


def find_gpu(device: str, cards: int = 1) -> tuple[Card | None, str, Seen]:
    """Return what nvidia-smi and torch say of the GPU that a node on `device` would use; see
    `find_card`. Torch is asked where it is built for CUDA and a driver is there, in a process of
    its own: on other machines that would only take time."""
    card, smi_fault = find_card(int(device.partition(":")[2] or 0), cards)
    torch = installed_torch()
    has_gpu = card is not None or smi_fault
    if device == "cpu" or not has_gpu or torch is None or torch.cuda is None:
        return card, smi_fault, NOTHING_SEEN
    return card, smi_fault, probe(device, cards)


def find_card(index: int, count: int = 1) -> tuple[Card | None, str]:
    """Return the GPU with CUDA's number `index`, or None and the reason why nvidia-smi named none.
    Its memory is that of the card with the least free among `count`."""
    if shutil.which("nvidia-smi") is None:
        return None, "a GPU of NVIDIA, and no nvidia-smi" if has_nvidia() else ""
    gpu_id = visible_gpu(index)
    if gpu_id is None:
        return None, "CUDA_VISIBLE_DEVICES names no such GPU"
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    answer, fault = _run_command([*command, "-i", gpu_id], _SMI_SECONDS)
    name, comma, driver = (answer or "").partition("\n")[0].rpartition(",")
    if not comma:
        return None, fault or "it names no GPU"
    log, _ = _run_command(["nvidia-smi", "-q", "-d", "MEMORY", "-i", gpu_id], _SMI_SECONDS)
    card = Card(
        name.strip()[:80], driver.strip()[:40], parse_cuda(log or ""), gpu_memory(index, count)
    )
    return card, ""


def parse_cuda(log: str) -> tuple[int, int] | None:
    """Read the driver's CUDA version from the output of `nvidia-smi -q`."""
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d{1,3})\.(\d{1,3})", log)
    return None if match is None else (int(match[1]), int(match[2]))


def find_holders() -> tuple[Holder, ...]:
    """Return the processes that compute on GPUs here. A container does not see those outside of
    it."""
    query = ["--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"]
    answer, _ = _run_command(["nvidia-smi", *query], _SMI_SECONDS)
    return parse_holders(answer or "")


def parse_holders(answer: str) -> tuple[Holder, ...]:
    """Parse the rows "pid, name, MiB" of nvidia-smi. A name may hold commas, and a size may be
    unknown."""
    rows = re.findall(r"^\s*(\d{1,10}), (.{1,4096}), (\d{1,9}|\[.{1,30}\])\s*$", answer, re.M)
    return tuple(
        Holder(int(pid), name[-60:], int(size) << 20 if size.isdecimal() else None)
        for pid, name, size in rows[:_MOST_HOLDERS]
    )


def installed_torch() -> Torch | None:
    """Return the installed torch, from its metadata and the text of its version.py. It is not
    imported."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        with (Path(spec.origin).parent / "version.py").open() as file:
            text = file.read(_MOST_CHARS)
        cuda = re.search(r"^cuda\b[^=\n]*=\s*'([\d.]{1,10})'", text, re.M)
        return Torch(metadata.version("torch"), cuda and cuda[1])
    except (OSError, metadata.PackageNotFoundError):
        return None


def find_busy(listen: Sequence[str], home_port: int) -> tuple[tuple[str, str], ...]:
    """Return the addresses of `listen` that are malformed or whose port cannot be bound, with the
    reason. Port 0 stands for the home's own port, `home_port`, or any."""
    conflicts = []
    for address in listen:
        match = _LISTEN.fullmatch(address)
        port = int(match["port"]) if match else 0
        if port > 65_535 or not (match or address.startswith(("/dns4/", "/dns6/"))):
            conflicts.append((address[:80], "not an address like /ip4/0.0.0.0/tcp/31330"))
        if match is None or not 0 < (port := port or home_port) < 65_536:
            continue
        family = socket.AF_INET if match["kind"] == "4" else socket.AF_INET6
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((match["host"], port))
        except OSError as error:
            endpoint = f"/ip{match['kind']}/{match['host']}/tcp/{port}"
            conflicts.append((endpoint, reason_of(error)))
    return tuple(conflicts)


def read_ticket(text: str, home: Home, now: float) -> Paper:
    """Return the end of a ticket's validity, or the reason why it does not admit."""
    try:
        return Paper(parse_ticket(text, now).expires)
    except TicketExpiredError as error:
        member = home.has_swarm and home.swarm().swarm_id == error.swarm_id
        return Paper(None, str(error), is_needed=not member)
    except TicketError as error:
        return Paper(None, str(error))


def read_membership(home: Home) -> Paper | None:
    """Return the end of this home's membership, None if it belongs to no swarm."""
    try:
        if not home.has_swarm:
            return None
        chain = home.membership().open_chain()
    except HomeError as error:
        return Paper(None, str(error))
    if isinstance(chain, Rejected):
        return Paper(None, f"{chain.detail or chain.reason}: join again with a ticket")
    return Paper(chain[1].not_after)


def _is_clock_synchronized() -> bool | None:
    answer, _ = _run_command(
        ["timedatectl", "show", "-p", "NTPSynchronized", "--value"], _CLOCK_SECONDS
    )
    return {"yes": True, "no": False}.get((answer or "").strip())


def _run_command(command: list[str], seconds: float) -> tuple[str | None, str]:
    """Return a program's output, None if it failed, and the last line of its error output."""
    try:
        result = bounded_run(command, seconds)
    except (OSError, subprocess.SubprocessError) as error:
        return None, words_of(error)[:200]
    output = result.stdout[:_MOST_CHARS].decode(errors="replace")
    complaint = result.stderr[-_MOST_CHARS:].decode(errors="replace").strip()
    if result.returncode:
        return None, (complaint or output.strip()).rpartition("\n")[2][:300]
    return output, complaint.rpartition("\n")[2][:300]
