"""The names of `import swarm_node`."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from sources import PACKAGE, nodes

import swarm_node

#: One worker parses the sources once.
pytestmark = pytest.mark.xdist_group("sources")


def test_the_import_loads_nothing_but_the_version() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import swarm_node\n"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))\n"
        "print(sorted(name for name in sys.modules if name.startswith('swarm_node')))\n"
        "print(sorted(set(swarm_node.__all__) - set(dir(swarm_node))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    roots, modules, unlisted = map(ast.literal_eval, done.stdout.splitlines())
    assert set(roots) <= {"swarm_node", *sys.stdlib_module_names}
    assert modules == ["swarm_node", "swarm_node.version"]
    assert unlisted == []


@pytest.mark.slow(reason="imports the library in a process of its own")
def test_connect_and_start_load_neither_torch_nor_hivemind() -> None:
    code = (
        "import sys, swarm_node\n"
        "swarm_node.connect, swarm_node.start, swarm_node.NodeHistory\n"
        "print(sorted({'torch', 'hivemind', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_type_checkers_see_the_names_that_a_program_gets() -> None:
    package = PACKAGE / "__init__.py"
    (condition,) = (
        node for _, node in nodes([package]) if isinstance(node, ast.If) and node.orelse
    )
    assert ast.unparse(condition.test) == "TYPE_CHECKING"
    seen = {
        alias.name: f"{statement.module}.{alias.name}"
        for statement in condition.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert {*seen, "__version__"} == set(swarm_node.__all__)
    for name, place in seen.items():
        found = getattr(swarm_node, name)
        assert f"{getattr(found, '__module__', 'swarm_node')}.{name}" == place, name
    assert (package.parent / "py.typed").exists()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'connekt'"):
        swarm_node.connekt  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(swarm_node, "torch")
