"""`import swarm_node` with real nodes: the page, the notebook, and a node that ends early."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT
from documents import pattern

import swarm_node
from swarm_node.errors import ChildError, NotRunningError

LOOPBACK = {"network.listen": ["/ip4/127.0.0.1/tcp/0"]}
_BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)

pytestmark = [
    pytest.mark.slow(reason="starts real nodes, each of four processes that import torch"),
    pytest.mark.timeout(900),
]


def executed(cells: list[str]) -> tuple[list[str], Any]:
    """What cells of code print, one after the other in one namespace, and the value of the last
    one. An event loop runs meanwhile in their thread, as in a notebook."""
    printed: list[str] = []
    names: dict[str, Any] = {"__name__": "__main__"}

    async def kernel() -> Any:
        value = None
        for cell in cells:
            tree, value, told = ast.parse(cell), None, io.StringIO()
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(told):
                exec(compile(tree, "<cell>", "exec"), names)
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            printed.append(told.getvalue())
        return value

    try:
        return printed, asyncio.run(kernel())
    finally:
        if isinstance(node := names.get("node"), swarm_node.StartedNode):
            node.stop()


@pytest.mark.nightly(reason="a typed page")
def test_the_page_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    blocks = _BLOCK.findall((ROOT / "docs" / "library.md").read_text())
    assert len(blocks) == 7
    printed, _ = executed([code for code, _ in blocks])
    for (code, shown), told in zip(blocks, printed, strict=True):
        assert pattern(shown, numbers_differ=True).fullmatch(told + "\n"), f"{code}\n{told}"
    assert (tmp_path / "trained" / "model.safetensors").exists()


@pytest.mark.nightly(reason="a typed page")
def test_the_notebook_goes_from_nothing_to_a_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = json.loads((ROOT / "examples" / "library.ipynb").read_text())
    assert notebook["nbformat"] == 4
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert sum(bool(line.strip()) for cell in cells for line in cell.splitlines()) <= 6
    (printed,), picture = executed(cells)
    assert picture._repr_png_().startswith(b"\x89PNG")
    reward = float(printed.splitlines()[-1].split()[-3].rstrip(","))
    assert reward >= 0.5


def test_the_end_of_a_node_is_an_error_with_its_last_lines(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with swarm_node.start(settings=LOOPBACK, home=home) as node:
        assert node.status().state == "running"
        with pytest.raises(ChildError, match=r"code 1:[^$]*running"):
            swarm_node.start(settings=LOOPBACK, home=home)
        assert swarm_node.connect(home).status().peer_id == node.status().peer_id
        before = node.wait_for(steps=2).steps
        swarm_node.connect(home).stop()
        with pytest.raises(ChildError, match=r"code 0:[^$]*stopped"):
            node.wait_for(steps=10_000)
    with pytest.raises(NotRunningError):
        swarm_node.connect(home)
    node = swarm_node.start(home=home)
    assert node.status().steps >= before
    os.kill(node.pid, signal.SIGKILL)
    with pytest.raises(ChildError, match=r"signal SIGKILL:\n.*\n"):
        node.wait_for(steps=10_000)
    with pytest.raises(ChildError, match="signal SIGKILL:"):
        node.stop()
    node.stop()
