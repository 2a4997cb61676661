"""`swarm-node env check`: check that an environment can be trained on, and by which model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm_node.cli.options import (
    AcceptOption,
    AnswerFieldOption,
    AssignOption,
    ChoicesFieldOption,
    ConfigOption,
    JsonOption,
    QuestionFieldOption,
    task_flags,
)
from swarm_node.program.terminal import RefusingGroup

if TYPE_CHECKING:
    from swarm_node.config import Settings

env_app = typer.Typer(
    cls=RefusingGroup, no_args_is_help=True, help="Environments: tasks and reward functions."
)


@env_app.callback()
def _env() -> None:
    pass


@env_app.command()
def check(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An environment, module:factory of your own, a file of questions, or "
            "hub:OWNER/NAME."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Model that samples completions.")] = "tiny",
    completions: Annotated[int, typer.Option(min=8, max=4096, help="Of the model.")] = 256,
    question: QuestionFieldOption = None,
    answer: AnswerFieldOption = None,
    choices: ChoicesFieldOption = None,
    config: ConfigOption = None,
    assign: AssignOption = None,
    accept: AcceptOption = None,
    json: JsonOption = False,
) -> None:
    """Check an environment before a node trains on it; exit code 1 if something is wrong.

    It must import, derive the same tasks in every process, and score the same completion the same.
    The reference answer of every row must score 1. What a model gets right tells whether it can
    learn there. `--set environment.options.KEY=VALUE` gives options."""
    flags = task_flags(name, None, None, question, answer, choices, accept)
    base_settings = _load_settings(model, flags, assign, config)
    from swarm_node.cli.home import show
    from swarm_node.cli.verbs.evaluating import progress
    from swarm_node.library.measuring import Progress
    from swarm_node.node.metrics.snapshot import SCHEMA
    from swarm_node.node.preflight.defaults import for_model
    from swarm_node.node.preflight.env_check import check_environment
    from swarm_node.policy.models.config import ModelConfig
    from swarm_node.policy.models.model import resolve

    directory = resolve(model)
    settings = for_model(base_settings, ModelConfig.from_directory(directory))
    table, sampling = settings.environment, settings.sampling
    with progress() as tell:
        findings = asyncio.run(
            check_environment(
                table.name,
                table.options,
                table.families,
                directory,
                sampling,
                completions,
                accept=table.allow_invalid,
                tell=lambda name, count, of: tell(Progress(name, count, of)),
            )
        )

    def view() -> Any:
        from swarm_node.cli.views.status_view import findings_view

        return findings_view(findings)

    show(json, {"schema": SCHEMA, "checks": findings}, view)
    raise typer.Exit(int(any(finding.level == "bad" for finding in findings)))


def _load_settings(
    model: str, flags: dict[str, Any], assign: list[str] | None, config: Path | None
) -> Settings:
    """Load the settings, and check that their model and environment exist.

    Raises:
        ConfigError, ModelError: one does not.
    """
    from swarm_node.config import load_settings, parse_assignments
    from swarm_node.environments.registry import require_environment
    from swarm_node.policy.models.model import require_model

    settings = load_settings({**flags, **parse_assignments(assign or [])}, config=config)
    require_model(model)
    require_environment(settings.environment.name, settings.environment.options)
    return settings
