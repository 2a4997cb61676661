"""Syntax trees of this project's files, for tests of how it is written."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path

from builders import ROOT

PACKAGE = ROOT / "swarm_node"
COORDINATOR = ROOT / "coordinator"
_kept: dict[Path, list[ast.AST]] = {}


def nodes(paths: Iterable[Path]) -> Iterator[tuple[Path, ast.AST]]:
    """Every node of the trees of these files, parents before children."""
    paths = list(paths)
    new = [path for path in paths if path not in _kept]
    if new:
        _keep(new)
    for path in paths:
        for node in _kept[path]:
            yield path, node


def _keep(new: list[Path]) -> None:
    """Parse each file once in a process. A million nodes that stay are no garbage: to look for it
    among them would take longer than to parse them."""
    gc.collect()
    gc.disable()
    try:
        for path in new:
            _kept[path] = list(ast.walk(ast.parse(path.read_text())))
    finally:
        gc.freeze()
        gc.enable()
