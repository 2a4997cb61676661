"""Code that a text smuggled into a judge: what it tries, from within the real sandbox."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from builders import ROOT, printed_by
from lasting import LastingHost, lasting_host, started

from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.scores import GroupScores
from swarm_node.environments.splits.split import with_split
from swarm_node.environments.workers.messages import Sandbox
from swarm_node.rollout import TaskRef

#: Runs its answers: the worst environment there can be. An answer of 1 is an escape.
CAREFREE = '''
import ctypes, os, signal, socket, struct, subprocess, sys, threading, time

import msgpack

from swarm_node.environments.base import Task

LIBC = ctypes.CDLL(None, use_errno=True)


def send(type="Scored", id=None, **fields):
    """A reply of one's own, under the number that the request has, as it is found in memory."""
    frame = sys._getframe()
    while id is None:
        id = frame.f_locals.get("number")
        frame = frame.f_back
    body = fields.get("body", msgpack.packb({"type": type, **fields}))
    os.write(4, struct.pack(">IQ", len(body), id) + body)


def call(number, *arguments):
    """A system call by its number; its result, or OSError."""
    done = LIBC.syscall(number, *arguments)
    if done == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return done


class Carefree:
    name, version, families = "carefree", "1", ("one",)

    def derive(self, ref):
        return Task(ref, ref.seed)

    def render(self, task):
        return f"run {task.payload}"

    def score(self, task, text):
        names = dict(globals())
        exec(text, names)
        return float(names.get("escaped", True))


def create():
    return Carefree()
'''
REF = TaskRef("carefree", with_split("1"), "one", 7)
LINUX = sys.platform == "linux"

#: What is tried, as statements that end without an exception when they succeed. {home} is a
#: directory with a secret in `secret`, {outside} a process to reach, {port} an open port, and
#: {mark} a name that no file has.
ATTACKS = {
    # files
    "read a file of the home": "open({home!r} + '/secret').read()",
    "read by a relative path": "open(os.path.relpath({home!r}) + '/secret').read()",
    "read through a file descriptor of a directory": (
        "os.open('secret', os.O_RDONLY, dir_fd=os.open({home!r}, os.O_RDONLY))"
    ),
    "list the home": "os.listdir({home!r})",
    "walk the root": "os.listdir('/')",
    "read the users": "open('/etc/passwd').read()",
    "read an own variable": "open('/proc/self/environ').read()",
    "read own memory": "open('/proc/self/mem', 'rb')",
    "read the node's memory": "open('/proc/{outside}/mem', 'rb')",
    "read the node's variables": "open('/proc/{outside}/environ').read()",
    "read the node's open files": "os.listdir('/proc/{outside}/fd')",
    "read the node's root": "os.listdir('/proc/{outside}/root')",
    "write a new file": "open({home!r} + '/new', 'w')",
    "write into a package": "open(os.__file__, 'a')",
    "write to /tmp": "open('/tmp/{mark}', 'w')",
    "write to shared memory": "open('/dev/shm/{mark}', 'w')",
    "make an unnamed file": "os.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
    "make a directory": "os.mkdir({home!r} + '/new')",
    "make a link": "os.symlink('/etc/passwd', {home!r} + '/new')",
    "make a hard link": "os.link(os.__file__, {home!r} + '/new')",
    "make a named pipe": "os.mkfifo({home!r} + '/new')",
    "delete": "os.unlink({home!r} + '/secret')",
    "rename": "os.rename({home!r} + '/secret', {home!r} + '/new')",
    "truncate": "os.truncate({home!r} + '/secret', 0)",
    "change a mode": "os.chmod({home!r} + '/secret', 0o666)",
    "change an owner": "os.chown({home!r} + '/secret', 1, 1)",
    "change a time": "os.utime({home!r} + '/secret')",
    "set an attribute": "os.setxattr({home!r} + '/secret', 'user.x', b'1')",
    "change the directory": "os.chdir({home!r})",
    "change the root": "os.chroot({home!r})",
    "mount": "call(165, b'none', {home!r}.encode(), b'tmpfs', 0, None)",
    "make a file in memory": "os.memfd_create('x')",
    "write to a terminal": "open('/dev/tty', 'w')",
    "type into the terminal": (
        "import fcntl; [fcntl.ioctl(2, 0x5412, bytes([letter])) for letter in b'ls']"
    ),
    # processes
    "run a program": "subprocess.run(['true'])",
    "run in a shell": "escaped = os.system('true') == 0",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {{}})",
    "replace itself": "os.execv('/bin/true', ['true'])",
    "run from a descriptor": "call(322, 3, b'', None, None, 0x1000)",
    "fork": "os.fork() or os._exit(0)",
    "fork by the raw call": "call(57) or os._exit(0)",
    "fork by clone": "call(56, 17, 0, 0, 0, 0) or os._exit(0)",
    "fork by clone3": "call(435, bytes(88), 88) or os._exit(0)",
    "fork bomb": "[os.fork() for _ in range(64)]",
    "start a thread": "threading.Thread(target=time.sleep, args=(1,)).start()",
    "start many processes": "import multiprocessing; multiprocessing.Pool(2)",
    "trace the node": "call(101, 16, {outside}, 0, 0)",
    "be traced": "call(101, 0, 0, 0, 0)",
    "read another's memory": "call(310, {outside}, None, 0, None, 0, 0)",
    "write another's memory": "call(311, {outside}, None, 0, None, 0, 0)",
    "take another's descriptor": "call(438, call(434, {outside}, 0), 1, 0)",
    "signal the node": "os.kill({outside}, 0)",
    "signal everybody": "os.kill(-1, 0)",
    "end as if it were killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "end as if it were ended": "signal.pthread_kill(threading.get_ident(), signal.SIGTERM)",
    "stop as if it were stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "signal the group": "os.kill(0, 0)",
    "signal through a descriptor": "os.pidfd_open({outside})",
    "queue a signal": "call(129, {outside}, 10, None)",
    "be signalled for another": "import fcntl; fcntl.fcntl(1, fcntl.F_SETOWN, {outside})",
    "raise a limit": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "change another's limits": (
        "import resource; resource.prlimit({outside}, resource.RLIMIT_CORE, (0, 0))"
    ),
    "change another's priority": "os.setpriority(os.PRIO_PROCESS, {outside}, 5)",
    "become another user": "os.setuid(12345)",
    "leave its parent": "LIBC.prctl(1, 0, 0, 0, 0) and call(-1)",
    "leave the session": "os.setsid()",
    "enter a namespace": "call(272, 0x10000000)",
    # network
    "open a socket": "socket.socket()",
    "connect": "socket.create_connection(('127.0.0.1', {port}))",
    "listen": "socket.create_server(('127.0.0.1', 0))",
    "send a datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "open a Unix socket": "socket.socket(socket.AF_UNIX)",
    "send from a pair to a named socket": "socket.socketpair(type=socket.SOCK_DGRAM)",
    "send to a named socket": ("socket.socketpair()[0].sendto(b'x', {home!r} + '/socket')"),
    "pass a descriptor": "socket.send_fds(socket.socketpair()[0], [b'x'], [0])",
    "resolve a name": "socket.getaddrinfo('localhost', 80, proto=6)[0][4] and open('/etc/hosts')",
    # the kernel
    "set up io_uring": "call(425, 8, bytes(120))",
    "load a program": "call(321, 0, None, 0)",
    "watch events": "call(298, bytes(120), 0, -1, -1, 0)",
    "handle page faults": "call(323, 0)",
    "use the key ring": "call(250, 0, -3, 0)",
    "open by handle": "call(304, -100, None, 0)",
    "load a module": "call(313, 0, b'', 0)",
    "reboot": "call(169, 0xfee1dead, 672274793, 0, 0)",
    "set the clock": "time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "replace the filter": "LIBC.prctl(22, 1, 0, 0, 0) and call(-1)",
    "a call of 32 bits": "call(0x40000000 + 257, -100, {home!r}.encode() + b'/secret', 0)",
    # memory
    "hoard": "bytearray(8 << 30)",
    "hoard by parts": "[bytearray(64 << 20) for _ in range(128)]",
    "grow the stack": "call(12, 1 << 40) > 1 << 40 or call(-1)",
}

#: What would harm the machine or its other programs where nothing holds it.
HARMFUL = {
    *("write into a package", "type into the terminal", "fork bomb", "start many processes"),
    *("change the root", "mount", "signal everybody", "signal the group", "queue a signal"),
    *("change another's limits", "change another's priority", "load a module", "reboot"),
    *("set the clock", "hoard", "hoard by parts", "grow the stack", "trace the node"),
    *("replace itself", "run from a descriptor", "take another's descriptor"),
    *("end as if it were killed", "end as if it were ended", "stop as if it were stopped"),
}
UNCONFINED = """
import os, sys
import carefree

def run(statement):
    names = dict(vars(carefree))
    exec(statement, names)
    if not names.get("escaped", True):
        sys.exit(1)
"""


SHARED = Path("/tmp"), Path("/dev/shm")


def _values(home: Path, server: socket.socket, mark: str) -> dict[str, object]:
    port = server.getsockname()[1]
    return {"home": str(home), "outside": os.getpid(), "port": port, "mark": mark}


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LastingHost]:
    modules = tmp_path_factory.mktemp("modules")
    (modules / "carefree.py").write_text(CAREFREE)
    before = children()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(modules))
        host = ProcessEnvironmentHost("carefree:create", {}, score_seconds=4.0)
        with lasting_host(host) as started:
            assert started.info.sandbox == Sandbox(files=True, system_calls=True)
            yield started
    assert children() <= before


@pytest.fixture
def judged(lasting: LastingHost) -> Iterator[Callable[[list[str]], GroupScores]]:
    """Have statements run by a confined judge; their rewards are 1 where they escaped."""
    before = children()
    yield lambda texts: lasting.use(lambda host: host.score(REF, texts))
    assert children() <= before | lasting.pids


def children() -> set[int]:
    """The processes that this one and its children have begun, and that still run."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.skipif(not LINUX, reason="the sandbox is Linux's")
def test_code_that_does_no_harm_runs(judged: Callable[..., GroupScores]) -> None:
    """The control: statements do run, and what they may do they can."""
    harmless = ["sum(range(10))", "import asyncio; asyncio.run(asyncio.sleep(0))", "time.time()"]
    assert judged([*harmless, "import json.tool", "os.stat('/')", "raise ValueError"]).rewards == (
        *(1.0, 1.0, 1.0, 1.0, 1.0),
        0.0,
    )


@pytest.mark.slow(reason="starts judges")
@pytest.mark.skipif(not LINUX, reason="the sandbox is Linux's")
def test_nothing_that_a_text_tries_leaves_its_judge(
    judged: Callable[..., GroupScores], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "secret").write_text("the root key")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named,
    ):
        named.bind(str(home / "socket"))
        named.setblocking(False)
        mark = f"swarm-node-escape-{os.getpid()}"
        values = _values(home, server, mark)
        attacks = list(ATTACKS.items())
        assert len(attacks) >= 40
        for start in range(0, len(attacks), 32):
            some = attacks[start : start + 32]
            result = judged([statement.format(**values) for _, statement in some])
            escaped = [name for (name, _), r in zip(some, result.rewards, strict=True) if r]
            assert escaped == []
            assert (result.faults, result.fault_reason) == (0, "")
        with pytest.raises(BlockingIOError):
            named.recv(1)
    assert sorted(path.name for path in home.iterdir()) == ["secret", "socket"]
    assert (home / "secret").read_text() == "the root key"
    assert not [place for place in SHARED if (place / mark).exists()]


@pytest.mark.skipif(not LINUX, reason="the sandbox is Linux's")
@pytest.mark.parametrize(("files", "cramped"), [(100, False), (10, True)])
def test_a_confined_process_is_killed_first_and_says_what_it_was_refused(
    files: int, cramped: bool
) -> None:
    program = f"""
import resource
from pathlib import Path
from swarm_node.environments.workers.sandbox import code_paths, confine
resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))
done = confine(iter([Path("/proc"), *code_paths()]))
print(Path("/proc/self/oom_score_adj").read_text().strip(), done.is_cramped)
print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CPU)[1])
"""
    most = min(files, 64)
    assert printed_by(program).splitlines() == [f"1000 {cramped}", f"({most}, {most}) 3600"]


@pytest.mark.skipif(not LINUX, reason="the sandbox is Linux's")
@pytest.mark.slow(reason="starts a process for every attack")
def test_most_of_it_succeeds_where_nothing_confines(tmp_path: Path) -> None:
    """The control: without it, attacks that are misspelt would pass for attacks that are held."""
    (tmp_path / "carefree.py").write_text(CAREFREE)
    home = tmp_path / "home"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named,
    ):
        mark = f"swarm-node-control-{os.getpid()}"
        values = _values(home, server, mark)
        tried = [name for name in ATTACKS if name not in HARMFUL]
        succeeded = []
        for name in tried:
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            (home / "secret").write_text("the root key")
            if name == "send to a named socket":
                named.bind(str(home / "socket"))
            program = f"{UNCONFINED}\nrun({ATTACKS[name].format(**values)!r})"
            done = subprocess.run(
                [sys.executable, "-S", "-c", program],
                env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])},
                capture_output=True,
                timeout=240,
            )
            succeeded += [name] if done.returncode == 0 else []
    for place in SHARED:
        (place / mark).unlink(missing_ok=True)
    assert len(succeeded) >= 40, sorted(set(tried) - set(succeeded))


@pytest.mark.skipif(not LINUX, reason="the sandbox is Linux's")
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("os._exit(0)", "crashed"),
        ("os.abort()", "crashed"),
        ("ctypes.string_at(0)", "crashed"),
        ("os.kill(os.getpid(), 40)", "crashed"),
        ("os.kill(os.getpid(), signal.SIGPROF)", "crashed"),
        ("[os.write(n, b'x' * 99) for n in range(3, 9)]", "forged"),
        ("send(verdicts=[[1.0, '', '']] * 2)", "forged"),
        ("send(id=7, verdicts=[[1.0, '', '']])", "forged"),
        ("send(verdicts=[[float('nan'), '', '']] * 3)", "forged"),
        ("send(verdicts=[[1e9, '', '']] * 3)", "forged"),
        ("send(verdicts=[['1', '', '']] * 3)", "forged"),
        ("send(verdicts=[[1.0, 'a fault', '']] * 3)", "forged"),
        ("send(verdicts=[[1.0, '', '\\x1b[2J']] * 3)", "forged"),
        ("send(verdicts=5)", "forged"),
        ("send(type='Unknown', why='it is not true')", "forged"),
        ("send(type='Derived', prompts=['x'], files=True, system_calls=True)", "forged"),
        ("send(type='Failed', kind='ConfigError', why='it is not true')", "forged"),
        ("os.write(4, struct.pack('>IQ', 1 << 30, 7) + bytes(9999)); time.sleep(600)", "forged"),
        ("send(body=b'\\xdd\\xff\\xff\\xff\\xff0000')", "forged"),
    ],
)
def test_what_ends_a_judge_costs_its_own_reward_only(
    judged: Callable[..., GroupScores], statement: str, reason: str
) -> None:
    """Among it forged replies: what is no frame, no reply, or none to this request."""
    muffled = f"import contextlib\nwith contextlib.suppress(OSError):\n  {statement}"
    result = judged(["1", muffled, "1"])
    assert result.rewards[0] == result.rewards[2] == 1.0
    assert (result.rewards[1], result.faults, result.fault_reason) == (0.0, 1, reason)


@pytest.mark.skipif(not LINUX, reason="the sandbox is Linux's")
def test_what_a_text_prints_reaches_nobody_who_reads_replies(
    judged: Callable[..., GroupScores],
) -> None:
    forged = "sys.stdout.write('x' * 9999); os.write(1, b'y' * 9999); raise ValueError"
    assert judged([forged, "1"]).rewards == (0.0, 1.0)


async def test_a_machine_without_a_sandbox_says_so(
    importable: Callable[[str, str], None],
) -> None:
    """A machine of which the filter knows no numbers: seen by the processes that are started."""
    importable("sitecustomize", "import platform\nplatform.machine = lambda: 'riscv64'\n")
    async with started(ProcessEnvironmentHost("drills", {})) as info:
        assert "system calls" in info.sandbox.describe()


async def test_memory_that_other_processes_see_is_told(
    importable: Callable[[str, str], None],
) -> None:
    importable(
        "shared",
        "import mmap\nfrom swarm_node.environments.bundled.drills import create\n"
        "SHARED = mmap.mmap(-1, 4096)\n",
    )
    async with started(ProcessEnvironmentHost("shared:create", {})) as info:
        assert not info.sandbox.files, "a judge could write what outlives it"
