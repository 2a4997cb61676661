"""The commands that the pages name exist, with the options that they give them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from builders import ROOT
from typer.main import get_command

from coordinator.main import app as coordinator
from swarm_node.cli.main import app

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Made once: typer makes all of an application's commands anew each time that it is asked.
APPS = {"swarm-node": get_command(app), "swarm-coordinator": get_command(coordinator)}
_NAMES = f"(?:{'|'.join(APPS)})"
#: What follows a command in a shell.
_END = re.compile(r"\s(#|&&|\|\|?|>|;)|$", re.MULTILINE)


def commands(text: str) -> Iterator[str]:
    """Every command of a page that is not a sentence: in a block of code or between backquotes."""
    text = text.replace("\\\n", " ")
    for block in re.findall(r"^```(?:console|bash)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from re.findall(rf"{_NAMES} (?=[a-z-]+(?:\s|$))(?!-)[^\n`]*", block)
    yield from re.findall(rf"`(?:[A-Z_]+=\S+ )?({_NAMES} [a-z-][^`\n]*)`", text)


def fault(command: str) -> str:
    """What is wrong with a command, "" if nothing is."""
    end = _END.search(command)
    name, *words = shlex.split(command[: end.start() if end else None].replace("…", ""))
    place = APPS[name]
    while words and hasattr(place, "commands") and not words[0].startswith("-"):
        if words[0] not in place.commands:
            return f"no command {words[0]}"
        place = place.commands[words.pop(0)]
    known = {name for option in place.params for name in (*option.opts, *option.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
    return ", ".join(f"no option {name}" for name in sorted(given - known - {"--help"}))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_commands_that_exist(page: Path) -> None:
    wrong = {said: fault(said) for said in commands(page.read_text())}
    assert {said: why for said, why in wrong.items() if why} == {}


def test_a_command_that_does_not_exist_is_found() -> None:
    text = "Run `swarm-node statsu`.\n```console\nswarm-node join --modle tiny  # why --no\n```\n"
    assert list(map(fault, commands(text))) == ["no option --modle", "no command statsu"]
    assert fault("swarm-node delegate import FILE && swarm-node nothing") == ""
    assert fault("swarm-coordinator serv") == "no command serv"


def test_the_go_of_the_network_daemon_is_the_one_that_the_security_page_names() -> None:
    found = find_spec("hivemind")
    if found is None or found.origin is None:
        pytest.skip("hivemind is not installed")
    daemon = Path(found.origin).parent / "hivemind_cli" / "p2pd"
    built = re.search(rb"go(1\.\d+\.\d+)", daemon.read_bytes())
    page = (ROOT / "SECURITY.md").read_text()
    assert f"Go {built[1].decode()}" in page
    assert f"hivemind\n  {version('hivemind')}" in page


PROGRAM = sorted([*(ROOT / "swarm_node").rglob("*.py"), *(ROOT / "coordinator").rglob("*.py")])


def test_every_page_that_the_program_names_exists() -> None:
    named = {
        (str(file.relative_to(ROOT)), page, heading)
        for file in PROGRAM
        for page, heading in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", file.read_text())
    }
    assert named
    assert [place for place in sorted(named) if not exists(*place[1:])] == []


def test_a_page_or_heading_that_does_not_exist_is_found() -> None:
    assert exists("docs/engines.md", "when-the-engine-keeps-failing")
    assert not exists("docs/engines.md", "when-nothing-fails")
    assert not exists("docs/sites.md", "")


def exists(page: str, heading: str) -> bool:
    """Check that a page exists, and has the heading that an anchor names, if it names one."""
    if not (ROOT / page).is_file():
        return False
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
    return not heading or heading in anchors
