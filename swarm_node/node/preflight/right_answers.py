"""Checks that right answers score 1, for `swarm-node env check`, `doctor` and the start: one that
does not, though written as its prompt asks, can be given by no model."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config.model import EnvironmentTable
from swarm_node.environments.host import EnvironmentInfo, ProcessEnvironmentHost
from swarm_node.environments.presets import Tried
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.splits.splitting import some_tasks
from swarm_node.environments.workers.scoring_worker import FailedAnswer
from swarm_node.errors import ConfigError
from swarm_node.node.loops.sampling.tasks import chosen_families
from swarm_node.node.metrics.snapshot import Said
from swarm_node.node.preflight.doctor import Finding, Level
from swarm_node.rollout import HELD_OUT_SEED, TaskRef

#: A list of which a larger share of the answers fail is refused.
MOST_FAILED: Final = 0.01
#: Seconds for which a start scores the rows of a family. `env check` scores all rows.
START_SECONDS: Final = 10.0
#: Tasks of a generator whose right answers are scored.
_DRAWN: Final = 200
#: Rows that are scored in one request.
_AT_ONCE: Final = 128
#: Failed answers that are shown.
SHOWN: Final = 5
_LEVELS: Final[Mapping[str, Level]] = {"good": "ok", "warning": "warning", "bad": "error"}
_NUMBER = re.compile(r"\d+")

#: Gets what is made or scored, and how many of how many are.
Tell = Callable[[str, int, int], object]


class RightAnswers(NamedTuple):
    """The right answers of a family, scored: of `total` rows or tasks `scored_count` were, of which
    `known_count` have a right answer, and `failed_count` do not score 1. `first_failures` are the
    first of these. `is_list` is true for the rows of a list."""

    family: str
    total: int
    scored_count: int
    known_count: int
    failed_count: int
    first_failures: Sequence[FailedAnswer]
    is_list: bool

    @property
    def has_too_many_failures(self) -> bool:
        """Check that too many fail."""
        return self.failed_count > MOST_FAILED * self.known_count


async def score_family(
    host: ProcessEnvironmentHost,
    info: EnvironmentInfo,
    family: str,
    seconds: float = float("inf"),
    tell: Tell = lambda *_: None,
) -> RightAnswers:
    """Score the right answers of all rows of a list, or of some tasks of a generator. After
    `seconds` no more are scored; then the rows are drawn by chance, and always in the same order.

    Raises:
        UnknownTaskError: one of the tasks cannot be made.
        ChildError: no scoring worker can be started.
    """
    seeds = list(_seeds(info, family))
    if seconds < float("inf"):  # files are often sorted
        random.Random(len(seeds)).shuffle(seeds)  # noqa: S311 - the same order at every start
    scored_count = known_count = failed_count = 0
    examples: list[FailedAnswer] = []
    deadline = SYSTEM_CLOCK.now() + seconds
    for begin in range(0, len(seeds), _AT_ONCE):
        part = [
            TaskRef(info.name, info.version, family, seed)
            for seed in seeds[begin : begin + _AT_ONCE]
        ]
        result = await host.score_answers(part)
        scored_count, known_count, failed_count = (
            scored_count + len(part),
            known_count + result.known,
            failed_count + len(result.failed),
        )
        examples = sorted([*examples, *result.failed], key=_line)[:SHOWN]
        tell(f"reference answers of {family}", scored_count, len(seeds))
        if SYSTEM_CLOCK.now() >= deadline:
            break
    return RightAnswers(
        family, len(seeds), scored_count, known_count, failed_count, examples, family in info.sizes
    )


def _seeds(info: EnvironmentInfo, family: str) -> Iterable[int]:
    """The seeds of all rows of a list in the order of their parts, or of some tasks of a
    generator."""
    if family not in info.sizes:
        return (task_seed("constant", family, index) for index in range(_DRAWN))
    training, held_out = info.sizes[family]
    # A seed names the row at the seed modulo their number.
    first = HELD_OUT_SEED + -HELD_OUT_SEED % held_out
    return chain(range(training), range(first, first + held_out))


def _line(failure: FailedAnswer) -> int:
    number = _NUMBER.search(failure.place)
    return int(number[0]) if number else 0


def verdict_on(answers: RightAnswers, accept: bool) -> Said | None:
    """Check the right answers of a family; None if none is known. `accept`: too many that fail are
    no reason to refuse it."""
    if not answers.known_count:
        return None
    subject = f"{answers.known_count:,} {'rows' if answers.is_list else 'tasks'}"
    if answers.scored_count < answers.total:
        subject += f", drawn by chance from {answers.total:,},"
    if not answers.failed_count:
        text = f"{answers.family}: the reference answers of {subject} score 1"
        return Said("answers", "good", text)
    text = f"{answers.family}: the reference answers of {answers.failed_count:,} of {subject}"
    text += " do not score 1: " + "; ".join(
        _describe_failure(failure) for failure in answers.first_failures
    )
    if extra_count := answers.failed_count - len(answers.first_failures):
        text += f"; and {extra_count:,} more"
    remedy = "a model that learns them gets no reward: correct "
    remedy += "these lines" if answers.is_list else "answer(), reference_completion() or score()"
    if not answers.has_too_many_failures:
        return Said("answers", "warning", text, remedy)
    if answers.is_list:
        remedy += ", or take another scoring or template (environment.options)"
    if accept:
        return Said("answers", "warning", text, remedy)
    return Said("answers", "bad", text, f"{remedy}, or all of it as it is (--allow-invalid)")


def _describe_failure(failure: FailedAnswer) -> str:
    answer = f'"{" ".join(failure.answer.split())}"' if failure.answer else "an answer"
    return " ".join(filter(None, (failure.place and f"{failure.place},", answer, failure.reason)))


class Rows(NamedTuple):
    """A list whose rows were scored. `prompt_bytes` and `shortest_prompt` are those of `Tried`."""

    findings: list[Finding]
    prompt_bytes: int
    shortest_prompt: str

    def completing(self, trial: Tried) -> Tried:
        """Return the `trial` of the list's environment with what is known of its prompts."""
        return trial._replace(prompt_bytes=self.prompt_bytes, shortest_prompt=self.shortest_prompt)


async def examine_rows(table: EnvironmentTable, seconds: float = START_SECONDS) -> Rows:
    """Check the rows of the list that `table` names, as every start does.

    Raises:
        ConfigError: the environment cannot be had, or has no such family.
        UnknownTaskError, ChildError: see `score_family`.
    """
    verdicts = []
    host = ProcessEnvironmentHost(table.name, table.options, table.families)
    try:
        info = await host.start()
        families = chosen_families(table.families, info)
        for family in families:
            answers = await score_family(host, info, family, seconds / len(families))
            verdict = verdict_on(answers, table.allow_invalid)
            verdicts += [verdict] if verdict is not None else []
        tasks = some_tasks(info.name, info.version, info.families)
        prompts = await host.render(tasks)
    finally:
        await host.close()
    findings = [
        Finding("rows", _LEVELS[verdict.level], verdict.text, verdict.remedy)
        for verdict in verdicts
    ]
    texts = [text for task, text in zip(tasks, prompts, strict=True) if task.family in families]
    return Rows(findings, max(map(_size, prompts)), min(texts, key=_size, default=""))


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def check_rows(table: EnvironmentTable) -> Rows:
    """Check the rows of the list that `table` names before a node starts with it.

    Raises:
        ConfigError: too many of its right answers do not score 1, or it cannot be had.
        UnknownTaskError, ChildError: see `score_family`.
    """
    rows = asyncio.run(examine_rows(table))
    for finding in rows.findings:
        if finding.level == "error":
            raise ConfigError(f"environment.options: {finding.found}: {finding.remedy}")
    return rows
