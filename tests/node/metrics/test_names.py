"""One name for one metric: in the status, the history, the log, Prometheus, the page and docs."""

from __future__ import annotations

import ast
import re

import pytest
from builders import ROOT

from swarm_node.node.metrics.history import (
    GroupCounts,
    HistoryRow,
    UpdateRow,
    figures,
)
from swarm_node.node.metrics.snapshot import (
    EvalPoint,
    MixtureRow,
    PeerRow,
    Snapshot,
    WorkRow,
)

FIELDS = {kind: frozenset(kind.__struct_fields__) for kind in (GroupCounts, HistoryRow, UpdateRow)}
#: What the log says of a node beside its metrics.
ABOUT = {"version", "peers", "sentence", "health", "health_level", "eval_reward_train"}
#: Units that end the name of a metric, and what a count of groups or completions begins with.
UNITS, KINDS = ("_nats", "_versions", "_steps", "_bytes", "_reward"), ("groups_", "completions_")


def test_counts_and_metrics_of_a_step_have_their_names_in_the_history() -> None:
    assert FIELDS[GroupCounts] < FIELDS[HistoryRow]
    step = FIELDS[UpdateRow] - {"mean_reward", "tokens", "seconds"}
    assert step < FIELDS[HistoryRow]


@pytest.mark.parametrize("kind", [GroupCounts, UpdateRow, HistoryRow])
def test_prometheus_has_the_name_of_the_field(kind: type[GroupCounts]) -> None:
    known = {name: 1 for name in kind.__struct_fields__}
    shown = [(name, each) for name, each, _ in figures(kind(**known)) if each.metric]
    assert shown
    for name, each in shown:
        metric = each.metric
        for unit in UNITS:
            metric = metric.removesuffix(unit)
        for beginning in KINDS:
            metric = metric.removeprefix(beginning)
        plain = {name, name.removesuffix("_reward")}
        assert (f"{metric}_{each.origin}" if each.origin else metric) in plain


def test_the_log_has_the_names_of_the_history() -> None:
    source = (ROOT / "swarm_node" / "node" / "loops" / "reporting" / "recording.py").read_text()
    (call,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.args[0]) == "'progress'"
    )
    named = {keyword.arg for keyword in call.keywords if keyword.arg}
    assert named <= {*FIELDS[HistoryRow], *ABOUT}


def test_the_page_asks_for_fields_that_there_are() -> None:
    page = (ROOT / "swarm_node" / "page" / "static" / "node.js").read_text()
    for name, kinds in {
        "snapshot": (Snapshot,),
        "shown": (Snapshot,),
        "groups": (GroupCounts,),
        "point": (EvalPoint,),
        "last": (EvalPoint,),
        "recent": (EvalPoint,),
        "peer": (PeerRow,),
    }.items():
        asked = set(re.findall(rf"\b{name}\.([a-z_0-9]+)", page))
        known = {field for kind in kinds for field in kind.__struct_fields__}
        assert asked
        assert asked <= known, name
    (work,) = re.findall(r"const \{ (sampler, .*) \} = work;", page)
    assert {one.split(":")[0] for one in work.split(", ")} == set(WorkRow.__struct_fields__)


def test_the_documentation_has_a_line_for_each_field_of_the_history() -> None:
    text = (ROOT / "docs" / "watching.md").read_text()
    table = text.partition("| field | meaning |")[2].partition("\n\n")[0]
    named = set(
        re.findall(
            r"`([a-z_0-9]+)`", "".join(row.split("|")[1] for row in table.split("\n") if "|" in row)
        )
    )
    assert named == FIELDS[HistoryRow]


def test_local_and_external_are_the_words_for_groups() -> None:
    names = {*FIELDS[GroupCounts], *FIELDS[HistoryRow], *MixtureRow.__struct_fields__}
    assert not [name for name in names if re.search(r"(^|_)(own|peers_|made|taken|got)", name)]
