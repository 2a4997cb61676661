"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from swarm_node.errors import SwarmNodeError
from swarm_node.program.caches import settle_caches


def _settle_caches(context: typer.Context, home: Path | None) -> Path | None:
    """Settle the caches of a command, once its data directory is known and before it imports
    anything. What it says of other commands will name the data directory, too."""
    if home is not None:
        settle_caches(home)
        context.find_root().obj = home
    return home


HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", envvar="SWARM_NODE_HOME", help="The data directory.", callback=_settle_caches
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", envvar="SWARM_NODE_CONFIG", help="TOML file with settings."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(help="tiny …, a hub id, a directory or GGUF file. [SWARM_NODE_MODEL]"),
]
TicketOption = Annotated[
    str | None,
    typer.Option(help="The ticket itself. Others see it in `ps`: prefer --ticket-file."),
]
FamiliesOption = Annotated[
    str | None, typer.Option(help="Task families to sample, comma-separated; default all.")
]
EnvironmentOption = Annotated[
    str | None,
    typer.Option(
        "--environment", "--tasks", help="An environment, a file of questions, or hub:OWNER/NAME."
    ),
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N or auto.")]
LoraRankOption = Annotated[
    int | None, typer.Option("--lora-rank", help="LoRA rank; 0: full fine-tuning.")
]
QuestionFieldOption = Annotated[
    str | None,
    typer.Option("--question-field", help="Field of the question in a row: NAME or OUTER.INNER."),
]
AnswerFieldOption = Annotated[
    str | None, typer.Option("--answer-field", help="Field of the reference answer.")
]
ChoicesFieldOption = Annotated[
    str | None, typer.Option("--choices-field", help="Field of the choices.")
]
AcceptOption = Annotated[
    bool | None,
    typer.Option("--allow-invalid", help="Accept a list whose reference answers fail."),
]
ForgetOption = Annotated[list[str] | None, typer.Option(help="A setting to reset to its default.")]
TicketFileOption = Annotated[
    Path | None, typer.Option(help="File with the ticket; - reads standard input.")
]
SamplerOption = Annotated[
    str | None, typer.Option("--sampler", help="Inference engine: torch, vllm or auto.")
]
AssignOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting: KEY=VALUE (see `swarm-node config`)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help='Machine-readable, with "schema": 1.')]
FactsOption = Annotated[
    Path | None,
    typer.Option("--facts", help="Check the machine in this file of `doctor --json`."),
]
CoordinatorOption = Annotated[
    str | None, typer.Option(help="URL of a coordinator, for peer discovery.")
]
CodeOption = Annotated[str | None, typer.Option(help="An invite code of the coordinator.")]
LogFormatOption = Annotated[
    str | None, typer.Option(help="auto, text or json; auto: a live view on a terminal.")
]
AloneOption = Annotated[
    bool, typer.Option("--alone", help="Train in isolation if the swarm refuses this node.")
]
VerboseOption = Annotated[
    bool | None, typer.Option("--verbose", "-v", help="Log steps and every rejection.")
]


def task_flags(
    environment: str | None,
    families: str | None,
    preset: str | None,
    question: str | None,
    answer: str | None,
    choices: str | None,
    accept: bool | None,
) -> dict[str, Any]:
    """The settings, by dotted key, of options that say what the tasks are: an environment, its
    families and preset, the fields of its rows, and whether rows that fail are accepted. None for
    an option that was not given."""
    from swarm_node.environments.registry import chosen_environment

    return {
        **({} if environment is None else chosen_environment(environment)),
        "environment.families": families.split(",") if families else None,
        "environment.options.preset": preset,
        "environment.options.question": question,
        "environment.options.answer": answer,
        "environment.options.choices": choices,
        "environment.allow_invalid": accept,
    }


def require_report(directory: Path) -> None:
    """Refuse the directory of a report that cannot be made, before what takes minutes.

    Raises:
        SwarmNodeError: it is a file, or may not be written.
    """
    from swarm_node.program.private_directory import why_unwritable

    if reason := why_unwritable(directory):
        raise SwarmNodeError(
            f"cannot write the report to {directory}: {reason}", "choose another --report"
        )
