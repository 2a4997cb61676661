"""A right answer is written as its prompt asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swarm_node.environments.bundled import drills
from swarm_node.environments.lists.jsonl import create
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.rollout import TaskRef


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("{question}", "<answer>{}</answer>"),
        ("{question} End with <answer></answer>, not \\boxed{{}}.", "<answer>{}</answer>"),
        ("{question} Put it into \\boxed{{}}.", "\\boxed{{{}}}"),
        ("{question} End with #### and the number.", "#### {}"),
    ],
)
def test_the_template_of_a_list_decides_and_the_row_says_its_line(
    tmp_path: Path, template: str, written: str
) -> None:
    rows = [f'{{"question": "What is {n}?", "answer": "{n}"}}\n\n' for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    template = template.replace("{{", "{").replace("}}", "}")
    options = {"path": str(tmp_path / "rows.jsonl"), "template": template}
    environment = create_environment("jsonl", options)
    for seed in (*map(task_seed, range(9)), *map(held_out_seed, range(9))):
        task = environment.derive(TaskRef("jsonl", environment.version, "rows", seed))
        number = environment.answer(task)
        assert environment.reference_completion(task) == written.format(number)
        assert environment.place(task) == f"line {2 * int(number or 0) + 1}"


def test_drills_ask_for_the_answer_alone_or_in_a_tag() -> None:
    for preset, around in (("short", ("", "")), ("chat", ("<answer>", "</answer>"))):
        environment = drills.create(preset)
        family = environment.families[0]
        task = environment.derive(TaskRef("drills", environment.version, family, 7))
        right = task.payload["answer"]
        assert environment.reference_completion(task) == right.join(around)  # type: ignore[attr-defined]
        assert environment.score(task, right.join(around)) == 1.0


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        "\n\n"
        + json.dumps({"question": "a", "answer": "b"})
        + "\n"
        + json.dumps({"question": "c", "answer": "d"})
    )
    environment = create(str(tmp_path / "rows.jsonl"), held_out=0.5)
    lines = set()
    for seed in (0, 1 << 61):
        task = environment.derive(TaskRef("jsonl", environment.version, "rows", seed))
        lines.add((task.payload.question, environment.place(task)))  # type: ignore[attr-defined]
    assert lines == {("a", "line 3"), ("c", "line 4")}
