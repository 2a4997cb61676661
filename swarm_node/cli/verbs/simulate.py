"""`swarm-node simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from swarm_node.cli.options import AssignOption, require_report
from swarm_node.errors import ConfigError

NodesOption = Annotated[int, typer.Option(min=1, max=1024, help="Nodes in the swarm.")]
RoundsOption = Annotated[int, typer.Option(min=1, help="Steps of each node.")]
DelayOption = Annotated[str, typer.Option(help="Virtual delay: LO,HI seconds.")]
MessageLossOption = Annotated[
    float, typer.Option(min=0, max=1, help="Network loss: fraction of messages lost.")
]
CorrectionOption = Annotated[
    str | None, typer.Option(help="positive_only, none or importance_sampling.")
]


def simulate(
    nodes: NodesOption = 8,
    local: Annotated[int | None, typer.Option(min=0, help="Local groups per step (I).")] = None,
    external: Annotated[
        str | None, typer.Option(help="External groups per step (J), or auto.")
    ] = None,
    rounds: RoundsOption = 60,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same hash.")] = 0,
    report: Annotated[Path | None, typer.Option(help="For report.json, learning.png.")] = None,
    families: Annotated[
        int, typer.Option(min=0, help="Families that each node samples; 0: all.")
    ] = 0,
    model: Annotated[
        list[str] | None,
        typer.Option(help="tiny or directories, dealt to the nodes."),
    ] = None,
    delay: DelayOption = "0,0",
    message_loss: MessageLossOption = 0.0,
    speeds: Annotated[str, typer.Option(help="Speeds of the nodes: LO,HI.")] = "1,1",
    correction: CorrectionOption = None,
    eval_rounds: Annotated[int, typer.Option(min=1, help="Rounds from eval to eval.")] = 10,
    assign: AssignOption = None,
) -> None:
    """Run a whole swarm in this process: the real node code on an in-memory network and a virtual
    clock. The same command gives the same hash. Settings come from the command line alone."""
    from swarm_node.policy.models.model import require_model

    delays, paces, models = range_of("--delay", delay), range_of("--speeds", speeds), model or []
    for name in models:
        require_model(name)
    if report is not None:
        require_report(report)
    from swarm_node.simulation.run import run_simulation, simulation_settings
    from swarm_node.simulation.scenario import Scenario

    scenario = Scenario(
        nodes=nodes,
        rounds=rounds,
        seed=seed,
        families_per_node=families,
        delay=delays,
        message_loss=message_loss,
        speeds=paces,
        eval_rounds=eval_rounds,
        models=tuple(models or ("tiny",)),
    )
    flags: dict[str, Any] = {
        "experience.local": local,
        "experience.external": external,
        "experience.external_correction": correction,
    }
    run_simulation(scenario, simulation_settings(seed, flags, assign or []), report)


def range_of(option: str, text: str, separator: str = ",") -> tuple[float, float]:
    """The two numbers of an option's `text`.

    Raises:
        ConfigError: it is something else.
    """
    try:
        low, high = map(float, text.split(separator))
    except ValueError:
        raise ConfigError(
            f"{option} takes two numbers, such as 0.5{separator}2, not {text!r}"
        ) from None
    return low, high
