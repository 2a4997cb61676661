"""The page of threats names tests that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from builders import ROOT
from sources import COORDINATOR, PACKAGE, nodes

from coordinator.routes import ADMIN, PUBLIC
from swarm_node.p2p.transports.hivemind.calls import CALLS
from swarm_node.p2p.wire.protocols import PROTOCOLS

#: One worker parses the sources once.
pytestmark = pytest.mark.xdist_group("sources")

PAGE = (ROOT / "docs" / "threat-model.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 30
    assert named - there == set()


def test_every_threat_has_a_defence_a_test_and_says_what_remains() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count(" | ") == 4]
    rows = [row for row in rows if not row.startswith(("| who |", "| --- |"))]
    assert len(rows) > 25
    for row in rows:
        *_, stops, tests, remains = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert stops, row
        assert "`test_" in tests, row
        assert remains, row


#: Calls that open a way in, and the way in that each module opens with one.
OPENS = {
    "StreamHandlerRequest",
    "add_unary_handler",
    "create_datagram_endpoint",
    "create_server",
    "open_tcp_listeners",
    "start_server",
}
STREAMS = "TCP port, before a stream"
OPENED = {
    "swarm_node/p2p/reach/lan.py": "multicast of the own network",
    "swarm_node/p2p/transports/hivemind/daemon.py": STREAMS,
    "swarm_node/p2p/transports/hivemind/process.py": "table `rpc_find`",
    "swarm_node/p2p/transports/libp2p/host.py": STREAMS,
    "swarm_node/page/listening.py": "control API and page",
    "swarm_node/node/hosts/hosts.py": "trainer's hosts",
    "swarm_node/policy/training/processes/sharded.py": "gradients of a trainer's hosts",
}
#: What each module serves over HTTP by `swarm_node/page/listening.py`.
SERVED = {
    "swarm_node/node/control/control.py": {"control API and page"},
    "swarm_node/library/serving.py": {"OpenAI's paths of it, and of `swarm-node serve`"},
    "coordinator/server.py": {f"coordinator `{route.who}`" for route in (*PUBLIC, *ADMIN)},
}


def ways_in() -> dict[str, list[str]]:
    section = PAGE.partition("## Every way in")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if "`test_" in line]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}


def test_every_way_in_has_a_row_with_gate_price_and_test_and_every_row_is_a_way_in() -> None:
    registered = {f"`{protocol.name}`" for protocol in PROTOCOLS}
    registered |= {f"table `{call}`" for call in CALLS}
    registered = registered.union(*SERVED.values())
    rows = ways_in()
    assert set(rows) == registered | set(OPENED.values())
    assert [way for way, cells in rows.items() if len(cells) != 3 or not all(cells)] == []


def test_every_module_that_listens_is_a_way_in() -> None:
    assert set(_listening()) == set(OPENED)


def test_every_module_that_serves_over_http_is_a_way_in() -> None:
    serving = {
        str(path.relative_to(ROOT))
        for folder in (PACKAGE, COORDINATOR)
        for path, node in nodes(sorted(folder.rglob("*.py")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Listening"
    }
    assert serving == set(SERVED)


def _listening() -> Iterator[str]:
    """Modules that call one of OPENS, where not only to try whether a port is free."""
    for folder in (PACKAGE, COORDINATOR):
        for path, node in nodes(sorted(folder.rglob("*.py"))):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in OPENS:
                yield str(path.relative_to(ROOT))
