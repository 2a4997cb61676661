"""What `mutants.py` takes for a guard, and that it takes one out of real code."""

from __future__ import annotations

from builders import ROOT
from campaigns.mutants import MODULES, mutants

SOURCE = """
class Body:
    é: Annotated[int, Meta(ge=1, description="kept")]

def check(a, b):
    if a > 1 or b:
        return Rejected("é", "no")
    if a:
        a = 2
    return refuse(a) or refuse(b)

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
        source = (ROOT / "swarm_node" / module).read_text()
        found = mutants(module, source)
        assert len(found) >= 5, module
        for each in found:
            compile(each.apply(source), module, "exec")
