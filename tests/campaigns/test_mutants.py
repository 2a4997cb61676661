"""The guards that `mutants.py` finds, and that it takes one out of real code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT
from campaigns.drawn import changes, key
from campaigns.equivalent import EQUIVALENT, EQUIVALENT_CHANGES
from campaigns.mutants import MODULES, file_of, mutants

pytestmark = pytest.mark.nightly(reason="tests the mutation tester itself")

SOURCE = """
class Body:
    é: Annotated[int, Meta(ge=1, description="kept")]

def check(a, b):
    if a > 1 or b:
        return Rejected("é", "no")
    if a:
        a = 2
    return refuse(a) or refuse(b)

def shown(rows):
    refused = open(rows)
    if isinstance(refused, Rejected):
        return refused
    return [row for row in rows if row.mine and not row.old]

async def serve(self, caller):
    self._admit(caller)
    if not caller: raise ValueError
"""
WANTED = [
    ("1", "-(1 << 63)"),
    ("a > 1 or b", "False"),
    ("a > 1", "False"),
    ("b", "False"),
    ("refuse(a)", "None"),
    ("refuse(b)", "None"),
    ("isinstance(refused, Rejected)", "False"),
    ("row.mine", "True"),
    ("not row.old", "True"),
    ("self._admit(caller)", "None"),
    ("not caller", "False"),
]


def test_guards_are_found_and_taken_out_where_they_stand() -> None:
    found = mutants("m.py", SOURCE)
    assert sorted((each.old, each.new) for each in found) == sorted(WANTED)
    for each in found:
        changed = each.apply(SOURCE)
        assert len(changed) == len(SOURCE) - len(each.old) + len(each.new)
        compile(changed, "m.py", "exec")
    (admit,) = (each for each in found if "_admit" in each.old)
    assert "    None\n    if not caller" in admit.apply(SOURCE)


def test_every_module_has_guards_and_stays_a_program_without_one() -> None:
    for module in MODULES:
        source = file_of(module).read_text()
        found = mutants(module, source)
        assert found, module
        for each in found:
            compile(each.apply(source), module, "exec")


def test_every_guard_that_is_called_equivalent_is_still_there() -> None:
    names = {
        each.name for module in MODULES for each in mutants(module, file_of(module).read_text())
    }
    assert sorted(set(EQUIVALENT) - names) == []


def test_every_change_that_is_called_equivalent_is_still_there() -> None:
    modules = {name.partition(" ")[0] for name in EQUIVALENT_CHANGES}
    names = {key(each) for name in modules for each in changes(name, file_of(name).read_text())}
    assert sorted(set(EQUIVALENT_CHANGES) - names) == []


GUARDS = """
def check(a, b):
    if a:
        raise ValueError
    if b:
        raise KeyError
"""
TEST = """
import pytest
from swarm_node.p2p.limits.budgets import check

def test_check():
    check(False, False)
    with pytest.raises(ValueError):
        check(True, False)
"""


def campaign(only: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return printed(f"run([{only!r}], quick=True, root=Path({str(root)!r}))")


def printed(call: str) -> subprocess.CompletedProcess[str]:
    """`call` in a process of its own: its forks import the copied package anew."""
    where = ["from pathlib import Path", "from campaigns.mutants import Campaign, run"]
    return subprocess.run(
        [sys.executable, "-c", "\n".join([*where, f"print(*{call})"])],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow(reason="a campaign runs pytest for each mutant")
def test_only_the_guard_without_a_test_survives(tmp_path: Path) -> None:
    package, tests = (
        tmp_path / "swarm_node" / "p2p" / "limits",
        tmp_path / "tests" / "p2p" / "limits",
    )
    for folder in (package, tests):
        folder.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "budgets.py").write_text(GUARDS)
    (tests / "test_budgets.py").write_text(TEST)
    done = campaign("budgets", root=tmp_path)
    assert "  p2p/limits/budgets.py check: a (line 3) becomes False: " in done.stdout, done.stderr
    assert "  SURVIVES p2p/limits/budgets.py check: b (line 5) becomes False\n" in done.stdout
    (tests / "test_budgets.py").write_text(TEST + "\n    check(1, 1)")
    failed = campaign("budgets", root=tmp_path)
    assert "fails before anything is gone" in failed.stderr
    assert "ValueError" in failed.stderr
