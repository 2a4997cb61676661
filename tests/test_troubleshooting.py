"""docs/troubleshooting.md has every reason of a refusal, by whose fault it is, and every fault."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from builders import ROOT
from sources import COORDINATOR, PACKAGE, nodes

from swarm_node.node.loops.faults import PASSING
from swarm_node.p2p.peers.causes import CAUSES
from swarm_node.p2p.wire.reasons import REASONS, Blame

#: One worker parses the sources once.
pytestmark = pytest.mark.xdist_group("sources")

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
SECTIONS = {
    Blame.NONE: "### Nobody's fault",
    Blame.USELESS: "### Of no use here",
    Blame.VIOLATION: "### The protocol was broken",
}


def rows(heading: str) -> list[str]:
    """The first cells of the table below a heading, without their backquotes."""
    section = PAGE.split(f"\n{heading}\n")[1].split("\n## ")[0].split("\n### ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)


def coordinators() -> Iterator[str]:
    """Every reason for which a coordinator refuses a request."""
    for _, node in nodes(sorted(COORDINATOR.glob("*.py"))):
        match node:
            case ast.Call(func=ast.Name("Rejected"), args=[ast.Constant(str(reason)), *_]):
                yield reason


def faults() -> Iterator[str]:
    """Every fault that the code counts; one that is made of a reason ends with "…"."""
    for _, node in nodes(sorted(PACKAGE.rglob("*.py"))):
        match node:
            case ast.Subscript(slice=ast.Attribute(value=ast.Name("decided"), attr="part")):
                yield from (part for _, part, *_ in PASSING)
            case ast.Subscript(value=ast.Attribute(attr="faults" | "_faults"), slice=named):
                yield named.value if isinstance(named, ast.Constant) else _beginning(named)
            case ast.Assign(value=ast.Call(func=ast.Name("Counter"), args=[ast.Dict() as one])):
                yield from (key.value for key in one.keys if isinstance(key, ast.Constant))


def _beginning(named: ast.expr) -> str:
    assert isinstance(named, ast.JoinedStr), ast.unparse(named)
    assert isinstance(named.values[0], ast.Constant), ast.unparse(named)
    return f"{named.values[0].value}…"


# That `REASONS` has all reasons of the code is held by tests/p2p/wire/test_reasons.py.
@pytest.mark.parametrize("blame", SECTIONS)
def test_every_reason_of_a_refusal_stands_in_the_table_of_its_class(blame: Blame) -> None:
    of_class = sorted(code for code, reason in REASONS.items() if reason.blame is blame)
    assert rows(SECTIONS[blame]) == of_class


def test_every_further_reason_of_a_coordinator_stands_in_its_table() -> None:
    assert rows("### By a coordinator") == sorted(set(coordinators()) - set(REASONS))


def test_every_fault_is_explained_and_none_is_invented() -> None:
    assert rows("## Faults") == sorted(set(faults()))


def test_the_page_has_every_cause_for_which_a_node_is_alone_with_its_level() -> None:
    section = PAGE.split("\n## Why a node is alone\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `([a-z_]+)` \| (.) \|.*\| (.*) \|$", section, flags=re.MULTILINE)
    signs = {"bad": "✗", "warning": "▲", "good": "●"}
    assert [(code, sign, len(there) > 1) for code, sign, there in found] == [
        # Who lost its link tells nobody, and the others see that it left.
        (code, signs[kind.level], bool(kind.there) or code == "link_down")
        for code, kind in CAUSES.items()
    ]
