"""docs/troubleshooting.md and docs/rejections.md explain every code that the program can show, and
invent none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from builders import ROOT
from sources import COORDINATOR, PACKAGE, nodes

from swarm_node.node.loops.faults import PASSING
from swarm_node.p2p.peers.causes import CAUSES
from swarm_node.p2p.wire.reasons import REASONS

#: One worker parses the sources once.
pytestmark = pytest.mark.xdist_group("sources")

PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("troubleshooting", "rejections")]


def codes() -> Iterator[str]:
    """Causes, reasons of nodes and of a coordinator, and faults; one that is made of a reason ends
    with "…"."""
    yield from (*CAUSES, *REASONS)
    for path, node in nodes(sorted([*COORDINATOR.glob("*.py"), *PACKAGE.rglob("*.py")])):
        match node:
            case ast.Call(func=ast.Name("Rejected"), args=[ast.Constant(str(reason)), *_]):
                if COORDINATOR in path.parents:
                    yield reason
            case ast.Subscript(slice=ast.Attribute(value=ast.Name("decision"), attr="part")):
                yield from (part for _, part, *_ in PASSING)
            case ast.Subscript(value=ast.Attribute(attr="faults" | "_faults"), slice=named):
                yield named.value if isinstance(named, ast.Constant) else _beginning(named)
            case ast.Assign(value=ast.Call(func=ast.Name("Counter"), args=[ast.Dict() as one])):
                yield from (key.value for key in one.keys if isinstance(key, ast.Constant))


def _beginning(named: ast.expr) -> str:
    assert isinstance(named, ast.JoinedStr), ast.unparse(named)
    assert isinstance(named.values[0], ast.Constant), ast.unparse(named)
    return f"{named.values[0].value}…"


def test_every_code_is_explained_and_none_is_invented() -> None:
    tables = PAGES[0].partition("\n## Why a node is alone\n")[2] + PAGES[1]
    assert set(re.findall(r"^\| `([^`]+)` \|", tables, flags=re.MULTILINE)) == set(codes())
