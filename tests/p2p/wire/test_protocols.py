"""One table has the names of all protocols, and nobody spells one elsewhere."""

from __future__ import annotations

import ast
import re

import pytest
from sources import PACKAGE, nodes

from swarm_node.p2p.wire import protocols
from swarm_node.p2p.wire.protocols import PROTOCOLS

#: One worker parses the sources once.
pytestmark = pytest.mark.xdist_group("sources")

NAMES = [protocol.name for protocol in PROTOCOLS]


def test_the_table_has_every_name_once() -> None:
    constants = [
        value for key, value in vars(protocols).items() if key.isupper() and isinstance(value, str)
    ]
    assert [name for name in constants if name.startswith("/")] == NAMES
    assert len(set(NAMES)) == len(NAMES)
    assert all(re.fullmatch(r"/swarm-node/[a-z-]{1,24}/1", name) for name in NAMES)


@pytest.mark.slow(reason="reads every module")
def test_no_other_module_spells_a_protocol() -> None:
    others = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "protocols.py"]
    assert [
        f"{path.name}:{node.lineno}"
        for path, node in nodes(others)
        if isinstance(node, ast.Constant) and node.value in NAMES
    ] == []
