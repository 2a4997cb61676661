"""Console blocks of a page and their output: CONTRIBUTING.md has the notation."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from builders import ROOT

from swarm_node.environments.bundled.drills import create
from swarm_node.p2p.addresses.addresses import unused_port
from swarm_node.rollout import TaskRef

_BLOCK = re.compile(
    r"(?:^<!-- (?P<marks>[^\n]*) -->\n)?^```console\n(?P<code>.*?)^```$"
    r"(?:\n\n```text\n(?P<shown>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"\d(?:[\d.,]*\d)?")
_BARS = re.compile(r"[▁▂▃▄▅▆▇█]+")
#: What such a command says changes while the node runs.
_CHANGES = {"status", "peers"}
_PATIENCE_S = 240.0
#: What a page calls a stick, and the port of its nodes.
_STICK, _PORT = "/media/stick", "31330"


@dataclass(frozen=True)
class Block:
    """One console block: its commands, what they print, and its marks."""

    line: int
    commands: tuple[str, ...]
    shown: str | None
    marks: frozenset[str]

    @property
    def not_run(self) -> str:
        """The reason why the block is not run, "" if it is."""
        return self._marked("not run: ")

    @property
    def machine(self) -> str:
        """The machine on which it is typed, "" for the page's first one."""
        return self._marked("on: ")

    def _marked(self, kind: str) -> str:
        return next((mark.removeprefix(kind) for mark in self.marks if mark.startswith(kind)), "")


def blocks(text: str) -> Iterator[Block]:
    """The console blocks of a page, in their order."""
    for found in _BLOCK.finditer(text):
        lines = found["code"].replace("\\\n", " ").splitlines()
        marks = frozenset((found["marks"] or "").split("; ")) - {""}
        commands = tuple(line for line in lines if line.strip())
        line = text.count("\n", 0, found.start("code"))
        yield Block(line, commands, found["shown"], marks)


def pattern(shown: str, numbers_differ: bool) -> re.Pattern[str]:
    """The pattern of what a block may print. "…" stands for the rest of a word or more, on a line
    of its own for any lines; white space for any white space."""
    parts = []
    for line in shown.splitlines():
        if line.strip() == "…":
            parts.append(r"(?:.*\s|\s*)")
            continue
        for word in line.split():
            parts.append(_word(word, numbers_differ) + r"\s+")
    return re.compile(r"\s*" + "".join(parts), re.DOTALL)


def _word(word: str, numbers_differ: bool) -> str:
    """The pattern of one word."""
    if numbers_differ:
        word = _BARS.sub("▁", _NUMBER.sub("0", word))
    escaped = re.escape(word).replace("…", r"[^\n]*?")
    if numbers_differ:
        escaped = escaped.replace("0", _NUMBER.pattern).replace("▁", _BARS.pattern)
    return escaped


def says(printed: str, block: Block) -> bool:
    """Whether a page shows what was printed."""
    shown = pattern(block.shown or "…", "numbers differ" in block.marks)
    return shown.fullmatch(printed + "\n") is not None


def _questions(count: int) -> Iterator[str]:
    """Rows of questions some of which the model `tiny` gets right."""
    names = ("position", "largest", "sorting", "successors", "reversal")
    drills = create(families={name: [2, 4] for name in names})
    for seed in range(count):
        family = drills.families[seed % len(drills.families)]
        task = drills.derive(TaskRef(drills.name, drills.version, family, seed))
        row = {"question": drills.render(task), "answer": drills.answer(task)}
        yield json.dumps(row) + "\n"


@dataclass
class Reader:
    """Somebody who types what a page says, on machines that share a folder and have homes.

    A command that runs a node goes on beside the next ones. Port 31330 is a free one, and
    /media/stick a folder. What a reader brings is there: `my-model` and `questions.jsonl`."""

    place: Path
    port: int = field(default_factory=unused_port)
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("examples", "constraints.txt"):
            (self.place / name).symlink_to(ROOT / name)
        (self.place / "my-model").symlink_to(ROOT / "swarm_node" / "policy" / "models" / "tiny")
        (self.place / "questions.jsonl").write_text("".join(_questions(200)))
        (self.place / "stick").mkdir()

    def _environment(self, block: Block) -> dict[str, str]:
        home = self.place / f"home {block.machine}"
        home.mkdir(exist_ok=True)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SWARM_NODE", "XDG"))
        }
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "COLUMNS": "120",
            "OMP_NUM_THREADS": "1",
            # A minute of a page must not take one.
            "SWARM_NODE_NETWORK__POLL_SECONDS": "0.3",
            "SWARM_NODE_RUN__EVAL_SECONDS": "5",
        }

    def types(self, block: Block) -> None:
        """Run each command of a block. The last one must print what the page shows."""
        *first, last = block.commands
        for command in first:
            self._run(command, block, None)
        self._run(last, block, block.shown)

    def _run(self, command: str, block: Block, shown: str | None) -> None:
        stick = str(self.place / "stick")
        command = command.replace(_PORT, str(self.port)).replace(_STICK, stick)
        if re.search(r"swarm-node join\b(?!.*--steps)", command):
            self._join(command, block)
            return
        ends_with = 1 if "ends with 1" in block.marks else 0
        changes = any(f"swarm-node {verb}" in command for verb in _CHANGES)
        deadline = time.monotonic() + (_PATIENCE_S if changes else 0)
        while True:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.place,
                env=self._environment(block),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
            )
            told = (done.stdout, done.stderr, done.stdout + done.stderr)
            told = tuple(
                text.replace(str(self.port), _PORT).replace(stick, _STICK) for text in told
            )
            right = done.returncode == ends_with and any(says(text, block) for text in told)
            if right or (shown is None and done.returncode == ends_with):
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"line {block.line}: `{command}` ended with {done.returncode} and printed\n"
                    f"{told[2]}\nwhere the page has\n{shown}"
                )
            time.sleep(1)

    def _join(self, command: str, block: Block) -> None:
        """Start a node, and wait until it runs."""
        log = self.place / f"log-{len(self.nodes)}"
        with log.open("wb") as written:
            node = subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.place,
                env=self._environment(block),
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
            )
        self.nodes.append(node)
        deadline = time.monotonic() + _PATIENCE_S
        while " node started " not in log.read_text():
            if node.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"line {block.line}: `{command}` said\n{log.read_text()}")
            time.sleep(0.2)

    def leave(self) -> None:
        """Kill all nodes that still run, with their children; their homes go with the test."""
        for node in self.nodes:
            if node.poll() is None:
                family = psutil.Process(node.pid).children(recursive=True)
                node.kill()
                for each in family:
                    with contextlib.suppress(psutil.NoSuchProcess):  # its guard was faster
                        each.kill()
            node.wait(30)
