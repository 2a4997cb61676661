"""A right answer is written as its prompt asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from environments.tasks import task_of

from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import held_out_seed, task_seed


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
    rows = [f'{{"question": "What is {n}?", "answer": "{n}"}}' for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n\n" + "\n\n".join(rows))
    template = template.replace("{{", "{").replace("}}", "}")
    options = {"path": str(tmp_path / "rows.jsonl"), "template": template}
    environment = create_environment("jsonl", options)
    for seed in (*map(task_seed, range(9)), *map(held_out_seed, range(9))):
        task = task_of(environment, seed=seed)
        number = environment.answer(task)
        assert environment.reference_completion(task) == written.format(number)
        assert environment.place(task) == f"line {2 * int(number or 0) + 3}"
