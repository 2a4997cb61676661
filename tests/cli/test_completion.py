"""Completion in real shells on a terminal, set up as docs/operations.md says."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import ROOT

SECONDS = 60.0
#: By shell: how it starts without anybody's own settings, the file of the script in the home, and
#: the line that a user's settings have for it.
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "script", ". ~/script"),
    "zsh": (
        ["zsh", "-f", "-i"],
        ".zfunc/_swarm-node",
        "fpath=(~/.zfunc $fpath); autoload -Uz compinit; compinit -u -D",
    ),
    "fish": (["fish", "-i"], ".config/fish/completions/swarm-node.fish", "true"),
}
#: The program for completion. Called otherwise, it writes down with which arguments.
PROGRAM = """#!/bin/sh
[ -n "$_SWARM_NODE_COMPLETE" ] && exec {python} -c '{call}' "$@"
for argument; do echo "$argument"; done > ~/called.new; mv ~/called.new ~/called
"""
CALL = 'import sys; sys.argv[0] = "swarm-node"; from swarm_node.cli.main import app; app()'


@contextlib.contextmanager
def typing_into(command: list[str], environ: dict[str, str]) -> Iterator[tuple[int, list[bytes]]]:
    """A program on a pseudo-terminal: the end where somebody types, and what it showed."""
    ours, theirs = pty.openpty()
    command = ["setsid", "--ctty", *command]  # a shell takes its terminal for its own jobs
    shell = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the shell has ended
            while part := os.read(ours, 4096):
                shown.append(part)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield ours, shown
    finally:
        shell.kill()
        shell.wait()
        reader.join(10)
        os.close(ours)


@pytest.mark.nightly(reason="shells, whose scripts typer and click write")
@pytest.mark.slow(reason="starts the command line at each press of the tab key")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_tab_completes_commands_options_and_values(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"NOT RUN: needs {shell}")
    command, place, line = SHELLS[shell]
    program, script, called = tmp_path / "bin" / "swarm-node", tmp_path / place, tmp_path / "called"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable, call=CALL))
    program.chmod(0o755)
    environ = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "PYTHONPATH": str(ROOT),
    }
    script.parent.mkdir(parents=True, exist_ok=True)
    asked = {**environ, "_SWARM_NODE_COMPLETE": f"source_{shell}"}
    made = subprocess.run([program], env=asked, stdout=subprocess.PIPE, text=True, check=True)
    # As the page has it: zsh loads the file as a function, whose first line must be #compdef.
    as_function = made.stdout.partition("\n")[2] + '_swarm_node_completion "$@"\n'
    script.write_text(as_function if shell == "zsh" else made.stdout)
    with typing_into(command, environ) as (keys, shown):
        os.write(keys, f"{line}\n".encode())
        for typed, expected in (
            ("swarm-node ev", ["eval"]),
            ("swarm-node eval --chec", ["eval", "--checkpoint"]),
            ("swarm-node track ten", ["track", "tensorboard"]),
        ):
            os.write(keys, f"{typed}\t\n".encode())
            deadline = time.monotonic() + SECONDS
            while not called.exists():
                assert time.monotonic() < deadline, b"".join(shown).decode()
                time.sleep(0.1)
            assert called.read_text().split() == expected, b"".join(shown).decode()
            called.unlink()
