"""Questions whose answers are programs, judged by tests that the programs never see.

A row is {"question": ..., "inputs": [...], "outputs": [...]}. An answer is a program in Python that
reads one of the inputs from its standard input and prints the output that stands at its place. The
outputs stay on this side: the program runs in a memory of its own, and what it printed is compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from swarm_node.environments.answers import MAX_JUDGED_CHARS, last_tagged
from swarm_node.environments.base import Environment, Task, check_ref
from swarm_node.environments.programs.runtime import Runtime, described
from swarm_node.environments.programs.system import MAX_OUTPUT_BYTES
from swarm_node.environments.rows import (
    Family,
    check_template,
    check_text,
    digest_of,
    read_families,
    refuse,
)
from swarm_node.rollout import TaskRef

#: Counts changes of how this module turns a seed into a task or a text into a score.
SCHEME: Final = 1
MAX_ROW_BYTES: Final = 1 << 20
MAX_TESTS: Final = 10
MAX_INPUT_BYTES: Final = 64 << 10
#: Steps of a program in each of its tests, without those that starting Python takes. Importing
#: json, re and collections takes a fourth of them, and asyncio more than all.
STEPS: Final = 500_000_000
_LEAST_STEPS, _MOST_STEPS = 1_000_000, 2_000_000_000
_SCORE_SECONDS: Final = 60.0
TEMPLATE: Final = (
    "{question}\n\nWrite a Python program that reads standard input and prints the result. "
    "Put it between ```python and ```."
)
_FENCE = "```"
#: Words after an opening fence that call the block a program.
_MARKS = frozenset({"python", "py", "python3"})
_DOMAIN = b"swarm-node/programs/1\0"


@dataclass(frozen=True, slots=True)
class Exam:
    """A question, and its tests as inputs with the outputs that are right."""

    question: str
    tests: tuple[tuple[bytes, bytes], ...]

    @property
    def constant(self) -> bool:
        """True if a program that prints one text, and reads nothing, would be right."""
        return len({tidied(output) for _, output in self.tests}) == 1


def create(
    path: str | Sequence[str],
    template: str = TEMPLATE,
    held_out: float = 0.1,
    steps: int = STEPS,
) -> Environment:
    """The factory behind the entry point `programs`.

    Args:
        path: a file or several; each becomes a family, named after it.
        template: the prompt, with {question} in the place of the question.
        held_out: share of the questions kept for evaluation, by a hash of their canonical text.
        steps: WebAssembly instructions of a program in each of its tests.

    Raises:
        ConfigError: the packages of the extra are missing, a file is missing, too large or
            malformed, or an option makes no sense.
    """
    check_template(template)
    if type(steps) is not int or not _LEAST_STEPS <= steps <= _MOST_STEPS:
        raise refuse("steps", f"a number from {_LEAST_STEPS} to {_MOST_STEPS}")
    families, digests = read_families(path, _exam, MAX_ROW_BYTES, held_out)
    version = f"{SCHEME}-{digest_of([digests, template, held_out, steps, described()])}"
    return _Programs(families, version, template, steps, Runtime())


class _Programs:
    """Implements `Environment`. A seed names the row at the seed modulo the number of rows."""

    name = "programs"

    def __init__(
        self,
        families: Mapping[str, Family[Exam]],
        version: str,
        template: str,
        steps: int,
        runtime: Runtime,
    ) -> None:
        self.families = tuple(families)
        self.version = version
        self.held_out_bounds = {name: family.bound for name, family in families.items()}
        self.notes = tuple(_note(name, family) for name, family in families.items())
        self._rows = families
        self._template = template
        #: Processor seconds for a group. They end a judge on a machine that is much too slow and
        #: decide nothing else: eight programs that use up their steps in each of ten tests take a
        #: fourth.
        self.score_seconds = _SCORE_SECONDS * max(1.0, steps / STEPS)
        self._steps = steps
        self._runtime = runtime

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        return Task(ref, self._rows[ref.family].row(ref))

    def render(self, task: Task) -> str:
        # Not str.format: a question may hold braces.
        return self._template.replace("{question}", self.question(task))

    def question(self, task: Task) -> str:
        exam: Exam = task.payload
        return exam.question

    def score(self, task: Task, text: str) -> float:
        """1 if the program prints the right output for every input, within the steps."""
        exam: Exam = task.payload
        program = program_of(text)
        if not program or "\0" in program:
            return 0.0
        asked, answered = (part.encode("utf-8", "surrogatepass") for part in (exam.question, text))
        seed = hashlib.sha256(_DOMAIN + hashlib.sha256(asked).digest() + answered).digest()
        steps = self._runtime.start_steps + self._steps
        for stdin, output in exam.tests:
            outcome = self._runtime.run(program, stdin, seed, steps)
            if outcome.end != "ok" or tidied(outcome.stdout) != tidied(output):
                return 0.0
        return 1.0


def program_of(text: str) -> str:
    """The program of an answer: the last block between lines of three backquotes that is marked as
    Python, else the last block, else the content of the last <answer></answer>, else the whole
    text. A block that nothing closes runs to the end of the text."""
    text = text[-MAX_JUDGED_CHARS:]
    blocks = list(_blocks(text.split("\n")))
    marked = [block for mark, block in blocks if mark in _MARKS]
    if blocks:
        return marked[-1] if marked else blocks[-1][1]
    tagged = last_tagged(text)
    return text if tagged is None else tagged


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The marks and contents of fenced blocks. A fence with a mark always opens one: the text may
    begin within a block, whose end then looks like a beginning."""
    mark, begin = "", 0
    for index, line in enumerate(lines):
        if not line.lstrip().startswith(_FENCE):
            continue
        said = line.strip().strip("`").strip().lower()
        if begin and not said:
            yield mark, "\n".join(lines[begin:index])
            begin = 0
        else:
            mark, begin = said, index + 1
    if begin:
        yield mark, "\n".join(lines[begin:])


def tidied(output: bytes) -> bytes:
    """An output as it is compared: without blanks, tabs and carriage returns at the ends of lines,
    and without empty lines at its own end."""
    lines = output.rstrip(b" \t\r\n").split(b"\n")
    return b"\n".join(line.rstrip(b" \t\r") for line in lines)


def _exam(value: dict[str, Any]) -> Exam:
    """The exam in one row.

    Raises:
        ValueError: the row is malformed.
    """
    question = value.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("'question' must be a text")
    inputs, outputs = (_texts(value, name) for name in ("inputs", "outputs"))
    if len(inputs) != len(outputs) or not 1 <= len(inputs) <= MAX_TESTS:
        raise ValueError(f"give 1 to {MAX_TESTS} 'inputs', and as many 'outputs'")
    if len(set(inputs)) < len({(i, tidied(o)) for i, o in zip(inputs, outputs, strict=True)}):
        raise ValueError("the same input has two outputs, so no program would be right")
    if max(map(len, inputs)) > MAX_INPUT_BYTES or max(map(len, outputs)) > MAX_OUTPUT_BYTES:
        raise ValueError(f"an input or output may have {MAX_INPUT_BYTES >> 10} KiB at most")
    return Exam(question, tuple(zip(inputs, outputs, strict=True)))


def _texts(value: dict[str, Any], name: str) -> list[bytes]:
    texts = value.get(name)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name!r} must be a list of texts")
    return [check_text(text, name) for text in texts]


def _note(name: str, family: Family[Exam]) -> str:
    text = family.note(name)
    constant = sum(exam.constant for exam in (*family.training, *family.held_out))
    if constant:
        text += (
            f"; in {constant} rows all outputs are the same, so that a program that prints it is "
            "right: give them inputs with other outputs"
        )
    return text
