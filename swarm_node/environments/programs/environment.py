"""Questions whose answers are programs, scored by tests that the programs never see.

A row is {"question": ..., "inputs": [...], "outputs": [...]}. An answer is a program in Python that
reads one of the inputs from its standard input and prints the output that stands at its place. The
outputs stay on this side: the program runs in a memory of its own, and what it printed is compared.

With two turns a row also has "public_inputs" and "public_outputs". A model whose first program
fails one of these hears its input and what the program did with it, and may write another. The
private tests, "inputs" and "outputs", decide the reward of the last program and are never told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from swarm_node.environments.answers.final import MAX_SCORED_CHARS, last_tagged
from swarm_node.environments.base import Environment, MultiTurnEnvironment, Task, check_ref
from swarm_node.environments.lists.rows import (
    Family,
    check_template,
    check_text,
    digest_of,
    read_families,
    refuse,
)
from swarm_node.environments.programs.runtime import End, Outcome, Runtime, describe_runtime
from swarm_node.environments.programs.system import MAX_OUTPUT_BYTES
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
_MOST_TURNS: Final = 2
#: Characters of an input and of an output in an observation, which so has fewer than it may.
_SHOWN_CHARS: Final = 400
_ENDS: Final[Mapping[End, str]] = {
    "raised": "The program raised an exception, or ended with a code other than 0.",
    "steps": "The program took too many steps.",
    "output": "The program printed too much.",
    "broken": "The program nested its calls too deeply.",
}
_NO_PROGRAM: Final = "There is no program in the answer."
_AGAIN: Final = "Write the whole program again."

#: An input, and the output that is right for it.
Test = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Exam:
    """A question, its private tests, which decide the reward, and its public ones."""

    question: str
    tests: tuple[Test, ...]
    public: tuple[Test, ...] = ()

    @property
    def constant(self) -> bool:
        """True if a program that prints one text, and reads nothing, would be right."""
        return len({normalize_output(output) for _, output in self.tests}) == 1


class Failure(NamedTuple):
    """The input of a test that a program failed, and the end of its run."""

    stdin: bytes
    outcome: Outcome


def create(
    path: str | Sequence[str],
    template: str = TEMPLATE,
    held_out: float = 0.1,
    steps: int = STEPS,
    turns: int = 1,
) -> Environment | MultiTurnEnvironment:
    """The factory behind the entry point `programs`.

    Args:
        path: a file or several; each becomes a family, named after it.
        template: the prompt, with {question} in the place of the question.
        held_out: share of the questions kept for evaluation, by a hash of their canonical text.
        steps: WebAssembly instructions of a program in each of its tests.
        turns: 2 if a model whose program fails a public test may write another one.

    Raises:
        ConfigError: the packages of the extra are missing, a file is missing, too large or
            malformed, or an option makes no sense.
    """
    check_template(template)
    if type(steps) is not int or not _LEAST_STEPS <= steps <= _MOST_STEPS:
        raise refuse("steps", f"a number from {_LEAST_STEPS} to {_MOST_STEPS}")
    if type(turns) is not int or not 1 <= turns <= _MOST_TURNS:
        raise refuse("turns", f"1, or {_MOST_TURNS} for a second try after a failed public test")
    parse = partial(_exam, public_needed=turns > 1)
    families, digests = read_families(path, parse, MAX_ROW_BYTES, held_out)
    inputs = [digests, template, held_out, steps, describe_runtime()]
    version = f"{SCHEME}-{digest_of(inputs if turns == 1 else [*inputs, turns])}"
    seconds = _SCORE_SECONDS * max(1.0, steps / STEPS) * turns
    kind = _OneProgram if turns == 1 else _TwoPrograms
    return kind(families, version, template, steps, seconds, Runtime())


class _Programs:
    """Derives tasks and runs programs. A seed names the row at the seed modulo the number of
    rows."""

    name = "programs"

    def __init__(
        self,
        families: Mapping[str, Family[Exam]],
        version: str,
        template: str,
        steps: int,
        seconds: float,
        runtime: Runtime,
    ) -> None:
        self.families = tuple(families)
        self.version = version
        self.held_out_bounds = {name: family.held_out_bound for name, family in families.items()}
        self.sizes = {name: family.size for name, family in families.items()}
        self.notes = tuple(_note(name, family) for name, family in families.items())
        self._rows = families
        self._template = template
        #: Processor seconds for a group. They end a scoring worker on a machine that is much too
        #: slow and decide nothing else: eight programs that use up their steps in each of ten tests
        #: take a fourth. With two turns the public tests are run besides.
        self.score_seconds = seconds
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

    def _reward(self, task: Task, text: str) -> float:
        exam: Exam = task.payload
        return float(bool(_runnable(text)) and self._failure(exam, exam.tests, text) is None)

    def _failure(self, exam: Exam, tests: Sequence[Test], text: str) -> Failure | None:
        """The first of some tests that the program of a text fails, None if it passes all."""
        program = _runnable(text)
        question, answer = (part.encode("utf-8", "surrogatepass") for part in (exam.question, text))
        seed = hashlib.sha256(_DOMAIN + hashlib.sha256(question).digest() + answer).digest()
        steps = self._runtime.start_steps + self._steps
        for stdin, output in tests:
            outcome = self._runtime.run(program, stdin, seed, steps)
            if outcome.end != "ok" or normalize_output(outcome.stdout) != normalize_output(output):
                return Failure(stdin, outcome)
        return None


class _OneProgram(_Programs):
    """Implements `Environment`."""

    def score(self, task: Task, text: str) -> float:
        """1 if the program prints the right output for every input, within the steps."""
        return self._reward(task, text)


class _TwoPrograms(_Programs):
    """Implements `MultiTurnEnvironment`."""

    turns: int = _MOST_TURNS

    def observation(self, task: Task, completions: Sequence[str]) -> str | None:
        """The first public test that the newest program fails, and what it did there. None if it
        passes all of them."""
        exam: Exam = task.payload
        if not _runnable(completions[-1]):
            return f"{_NO_PROGRAM}\n{_AGAIN}"
        failure = self._failure(exam, exam.public, completions[-1])
        return None if failure is None else describe_failure(failure)

    def reward(self, task: Task, completions: Sequence[str]) -> float:
        """1 if the newest program passes every private test."""
        return self._reward(task, completions[-1])


def describe_failure(failure: Failure) -> str:
    """An observation about a failed test. The output that would have been right is not in it."""
    stdin, (stdout, _, end) = failure
    input_text, output_text = _excerpt(stdin), _excerpt(stdout)
    happened = _ENDS.get(end) or (
        f"The program printed:\n{output_text}" if output_text else "The program printed nothing."
    )
    heading = f"Wrong for this input:\n{input_text}" if input_text else "Wrong for an empty input."
    return f"{heading}\n{happened}\n{_AGAIN}"


def _excerpt(data: bytes) -> str:
    """The beginning of an input or an output as text."""
    # A character has four bytes at most, so none that is shown is cut here.
    text = data.rstrip(b" \t\r\n")[: 4 * _SHOWN_CHARS + 4].decode("utf-8", "replace")
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _runnable(text: str) -> str:
    """The program of an answer, "" if there is none that can be run."""
    program = program_of(text)
    return "" if "\0" in program else program


def program_of(text: str) -> str:
    """The program of an answer: the last block between lines of three backquotes that is marked as
    Python, else the last block, else the content of the last <answer></answer>, else the whole
    text. A block that nothing closes runs to the end of the text."""
    text = text[-MAX_SCORED_CHARS:]
    blocks = list(_blocks(text.split("\n")))
    python_blocks = [block for mark, block in blocks if mark in _MARKS]
    if blocks:
        return python_blocks[-1] if python_blocks else blocks[-1][1]
    content = last_tagged(text)
    return text if content is None else content


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The marks and contents of fenced blocks. A fence with a mark always opens one: the text may
    begin within a block, whose end then looks like a beginning."""
    mark, begin = "", 0
    for index, line in enumerate(lines):
        if not line.lstrip().startswith(_FENCE):
            continue
        info = line.strip().strip("`").strip().lower()
        if begin and not info:
            yield mark, "\n".join(lines[begin:index])
            begin = 0
        else:
            mark, begin = info, index + 1
    if begin:
        yield mark, "\n".join(lines[begin:])


def normalize_output(output: bytes) -> bytes:
    """An output as it is compared: without blanks, tabs and carriage returns at the ends of lines,
    and without empty lines at its own end."""
    lines = output.rstrip(b" \t\r\n").split(b"\n")
    return b"\n".join(line.rstrip(b" \t\r") for line in lines)


def _exam(value: dict[str, Any], public_needed: bool) -> Exam:
    """The exam in one row.

    Raises:
        ValueError: the row is malformed.
    """
    question = value.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("'question' must be a text")
    tests = _tests(value, "")
    public: tuple[Test, ...] = ()
    if public_needed or "public_inputs" in value or "public_outputs" in value:
        public = _tests(value, "public_")
    if {normalize_output(stdin) for stdin, _ in public} & {
        normalize_output(stdin) for stdin, _ in tests
    }:
        raise ValueError(
            "one of 'public_inputs' is also one of 'inputs', which are the private tests: take it "
            "out of either"
        )
    return Exam(question, tests, public)


def _tests(value: dict[str, Any], kind: str) -> tuple[Test, ...]:
    """The tests of a kind, which is "" (private) or "public_"."""
    inputs, outputs = (_texts(value, kind + name) for name in ("inputs", "outputs"))
    if len(inputs) != len(outputs) or not 1 <= len(inputs) <= MAX_TESTS:
        raise ValueError(f"give 1 to {MAX_TESTS} '{kind}inputs', and as many '{kind}outputs'")
    tests = tuple(zip(inputs, outputs, strict=True))
    if len(set(inputs)) < len({(stdin, normalize_output(output)) for stdin, output in tests}):
        raise ValueError("the same input has two outputs, so no program would be right")
    if max(map(len, inputs)) > MAX_INPUT_BYTES or max(map(len, outputs)) > MAX_OUTPUT_BYTES:
        raise ValueError(f"an input or output may have {MAX_INPUT_BYTES >> 10} KiB at most")
    return tests


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
