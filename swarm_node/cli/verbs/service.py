"""`swarm-node service install`: run a home's node as a systemd service of its user."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from swarm_node.cli.home import sound_home
from swarm_node.cli.options import HomeOption
from swarm_node.errors import HomeError, reason_of
from swarm_node.program.commands import home_option

service_app = typer.Typer(no_args_is_help=True, help="Run a node as a service.")

#: The first line of a unit file that this command wrote, and may replace.
_HEADER: Final = "# Written by swarm-node service install."
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}")
#: A line break would begin another directive.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@service_app.command()
def install(
    home: HomeOption = None,
    name: Annotated[str, typer.Option(help="Name of the service.")] = "swarm-node",
) -> None:
    """Write a systemd unit that runs the node of this data directory, and print how to start it.

    Run `swarm-node join` once before: the service runs `join` without options, with the model and
    the swarm that the data directory remembers. It restarts the node after a crash and after a
    reboot, but not once the swarm has refused it."""
    if not sys.platform.startswith("linux"):
        raise HomeError("systemd runs on Linux only", "use another supervisor")
    if not _NAME.fullmatch(name):
        raise HomeError(f"{name!r} cannot be the name of a service", "use letters, digits, _ and -")
    place = sound_home(home).path.resolve()
    variables = {"SWARM_NODE_HOME": str(place)}
    # An environment of the user's own is imported from there.
    if path := os.environ.get("PYTHONPATH"):
        variables["PYTHONPATH"] = os.pathsep.join(
            str(Path(part).resolve()) for part in path.split(os.pathsep) if part
        )
    file = _unit_directory() / f"{name}.service"
    _write(file, unit_text([sys.executable, "-P", "-m", "swarm_node", "join"], place, variables))
    typer.echo(f"Wrote {file}")
    typer.echo(f"Stop the node if it runs now (swarm-node stop{home_option(home)}), then:")
    typer.echo(f"  systemctl --user daemon-reload && systemctl --user enable --now {name}")
    typer.echo(f"  journalctl --user -u {name} -f    follow its log")
    typer.echo("  loginctl enable-linger    keep it running after you log out")
    typer.echo(f"Remove it: systemctl --user disable --now {name}, then delete the file.")


def unit_text(command: Sequence[str], home: Path, variables: Mapping[str, str]) -> str:
    """Return the unit of a node that `command` runs with the environment `variables`; see
    systemd.service(5).

    Raises:
        HomeError: a path has a control character.
    """
    if _CONTROL.search("".join([*command, str(home), *variables.values()])):
        raise HomeError("a path with a control character cannot be in a unit file", "rename it")
    settings = "".join(
        f"Environment={_quote_word(f'{key}={value}')}\n" for key, value in variables.items()
    )
    return f"""{_HEADER}
[Unit]
Description=Node of a decentralised reinforcement-learning swarm
Wants=network-online.target
After=network-online.target

[Service]
# The node reports READY=1 once others can connect to it; a first start downloads the model.
Type=notify
TimeoutStartSec=40min
ExecStart={" ".join(_quote_word(word, is_command=True) for word in command)}
ExecReload=/bin/kill -HUP $MAINPID
{settings}WorkingDirectory={str(home).replace("%", "%%")}
UMask=0077
Restart=on-failure
RestartSec=10s
# A wrong command line, or the swarm does not admit this node: a restart changes nothing.
RestartPreventExitStatus=2 3
# Only the node is told to stop: its trainer must live to store the last checkpoint.
KillMode=mixed
TimeoutStopSec=90s
LimitNOFILE=65536
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def _quote_word(word: str, *, is_command: bool = False) -> str:
    """A word of a directive: systemd expands % everywhere, and $ in commands."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{word.replace("$", "$$") if is_command else word}"'


def _unit_directory() -> Path:
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path.home() / ".config") / "systemd" / "user"


def _write(file: Path, text: str) -> None:
    try:
        if file.exists() and not file.read_text(errors="replace").startswith(_HEADER):
            raise HomeError(
                f"{file} was written by somebody else", "choose another --name, or remove the file"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise HomeError(f"cannot write {file}: {reason_of(error)}") from error
