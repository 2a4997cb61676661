"""Writes the screens below tests/cli/screens: `python -m screens`, in `tests`, with tmux. Two real
nodes trade; what `status --json` and `samples --json` say of one is kept, and shown by the shipped
views in terminals of several widths. `join` draws in terminals of these widths, too.

`python -m screens VIEW` shows one view of what was kept, in this terminal. `python -m screens
texts` writes only what needs no node: `findings.txt`, what `status` says first of many nodes, and
`full.txt`, what the views show of a node with something in every line."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console, RenderableType
from shown_cases import all_shown
from verdict_cases import all_told

from swarm_node.cli.views.live import node_view
from swarm_node.cli.views.peers_view import peers_view
from swarm_node.cli.views.samples_view import samples_view
from swarm_node.cli.views.status_view import status_view
from swarm_node.node.metrics.samples import SamplesReport
from swarm_node.node.metrics.snapshot import Snapshot

PLACE = Path(__file__).with_name("cli") / "screens"
TEXTS: dict[str, Callable[[], str]] = {"findings": all_told, "full": all_shown}
WIDTHS = (60, 80, 120, 200)
_JOIN = "join --model tiny --listen /ip4/127.0.0.1/tcp/0 --device cpu"


def snapshot() -> Snapshot:
    return msgspec.json.decode((PLACE / "status.json").read_bytes(), type=Snapshot)


def samples() -> SamplesReport:
    return msgspec.json.decode((PLACE / "samples.json").read_bytes(), type=SamplesReport)


#: Each view of what was kept.
VIEWS: dict[str, Callable[[], RenderableType]] = {
    "status": lambda: status_view(snapshot()),
    "top": lambda: node_view(snapshot()),
    "peers": lambda: peers_view(snapshot(), {}),
    "samples": lambda: samples_view(samples().samples, snapshot().peers),
}


def in_terminal(command: str, width: int, done: str, keys: str = "", seconds: float = 240) -> str:
    """What a terminal of `width` columns shows of a command once it shows `done`. `keys` are typed
    then, and it is shown again at the command's end."""
    name = f"screens-{width}"
    _tmux("new-session", "-d", "-s", name, "-x", str(width), "-y", "200", f"{command}; sleep 60")
    try:
        text = _wait(name, done, seconds)
        if keys:
            time.sleep(3)  # a row of history
            text = _tmux("capture-pane", "-p", "-t", name)
            _tmux("send-keys", "-t", name, keys)
            ended = _wait(name, "stopped:", seconds)
            text = f"{text.rstrip()}\n----\n{ended[ended.index('stopped:') :]}"
        return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"
    finally:
        _tmux("kill-session", "-t", name)


def _wait(name: str, done: str, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while done not in (text := _tmux("capture-pane", "-p", "-t", name)):
        if time.monotonic() > deadline:
            raise AssertionError(f"no {done!r} within {seconds} s:\n{text}")
        time.sleep(0.3)
    return text


def _tmux(*arguments: str) -> str:
    return subprocess.run(
        ["tmux", *arguments], check=True, capture_output=True, encoding="utf-8"
    ).stdout


def _traded(place: Path) -> None:
    """Keep what one of two nodes says of itself after they traded."""
    from running import RunningNode

    def well(status: dict[str, object]) -> bool:
        found, evals = status["findings"], status["evals"]
        assert isinstance(found, list)
        assert isinstance(evals, list)
        return found[0]["kind"] == "sharing" and len(evals) > 4 and status["taught"] != []

    first = RunningNode(place / "first", [*_JOIN.split()[1:3]])
    first.start()
    try:
        ticket = first.invite(1, name="laptop")
        other = RunningNode(place / "other", [*_JOIN.split()[1:3], "--ticket-file", ticket])
        other.start()
        try:
            first.wait(well)
            for name in ("status", "samples"):
                (PLACE / f"{name}.json").write_text(first.run(name, "--json").stdout)
        finally:
            other.end()
    finally:
        first.end()


def main() -> None:
    PLACE.mkdir(exist_ok=True)
    _keep_texts()
    _tmux("new-session", "-d", "-s", "screens", "sleep 3600")  # a server that stays
    try:
        with tempfile.TemporaryDirectory() as directory:
            _traded(Path(directory))
            for width in WIDTHS:
                _keep(Path(directory), width)
    finally:
        _tmux("kill-session", "-t", "screens")


def _keep_texts() -> None:
    for name, text in TEXTS.items():
        (PLACE / f"{name}.txt").write_text(text())


def _keep(place: Path, width: int) -> None:
    for view in VIEWS:
        shown = in_terminal(f"{sys.executable} -m screens {view}; echo done", width, "done")
        (PLACE / f"{view}-{width}.txt").write_text(shown.removesuffix("done\n"))
    command = f"{sys.executable} -m swarm_node {_JOIN} --home {place / str(width)}"
    shown = in_terminal(command, width, "last step", "q")
    (PLACE / f"join-{width}.txt").write_text(shown.replace(str(place), "/home/me"))


if __name__ == "__main__":
    if sys.argv[1:] == ["texts"]:
        _keep_texts()
    elif len(sys.argv) > 1:
        Console(highlight=False).print(VIEWS[sys.argv[1]]())
    else:
        main()
