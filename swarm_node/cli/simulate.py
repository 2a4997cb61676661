"""`swarm-node simulate` and `swarm-node experiment`; cheap to import, as a command line must be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from swarm_node.cli.refusals import refusals
from swarm_node.errors import ConfigError

experiment_app = typer.Typer(no_args_is_help=True, help="Experiments that print their own report.")

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting of the nodes: KEY=VALUE (see `swarm-node config`)."),
]


def simulate(
    nodes: Annotated[int, typer.Option(min=1, max=1024, help="Nodes in the swarm.")] = 8,
    local: Annotated[int, typer.Option(min=0, help="Own groups per update (I).")] = 4,
    external: Annotated[str, typer.Option(help="Peers' groups per update (J).")] = "4",
    rounds: Annotated[int, typer.Option(min=1, help="Updates of each node.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same hash.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Directory for report.json and learning.png.")
    ] = None,
    specialised: Annotated[
        int, typer.Option(min=0, help="Task families each node samples; 0: all.")
    ] = 0,
    model: Annotated[
        list[str] | None,
        typer.Option(help="tiny, or a directory; several are dealt to the nodes in turn."),
    ] = None,
    delay: Annotated[str, typer.Option(help="Virtual seconds of a message: LO,HI.")] = "0,0",
    loss: Annotated[float, typer.Option(min=0, max=1, help="Share of messages lost.")] = 0.0,
    speeds: Annotated[str, typer.Option(help="Speeds of the nodes: LO,HI.")] = "1,1",
    correction: Annotated[
        str | None, typer.Option(help="How peers' groups are taken: experience.correction.")
    ] = None,
    eval_rounds: Annotated[
        int, typer.Option(min=1, help="Rounds between held-out measurements.")
    ] = 10,
    assign: SetOption = None,
) -> None:
    """Run a whole swarm in this process: the real node code on an in-memory network and a virtual
    clock. The same command gives the same hash. Settings come from the command line alone."""
    with refusals():
        from swarm_node.config import parse_assignments
        from swarm_node.simulation.run import run_simulation, simulation_settings
        from swarm_node.simulation.swarm import Plan

        plan = Plan(
            nodes=nodes,
            rounds=rounds,
            seed=seed,
            specialised=specialised,
            delay=_range("--delay", delay),
            loss=loss,
            speeds=_range("--speeds", speeds),
            eval_rounds=eval_rounds,
            models=tuple(model or ("tiny",)),
        )
        flags: dict[str, Any] = {
            "experience.own": local,
            **parse_assignments([f"experience.external={external}"]),
            "experience.correction": correction,
        }
        run_simulation(plan, simulation_settings(seed, flags, assign or []), report)


def _range(option: str, text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise ConfigError(f"{option} takes two numbers, such as 0.5,2, not {text!r}") from None
    return low, high


@experiment_app.callback()
def _experiments() -> None:
    # Without it, a group of one command would be that command.
    pass


@experiment_app.command()
def sapo(
    regime: Annotated[
        str, typer.Option(help="dense, sparse, very-sparse or specialised.")
    ] = "dense",
    nodes: Annotated[int, typer.Option(min=1, max=1024, help="Nodes in the swarm.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Updates of each node.")] = 60,
    seeds: Annotated[int, typer.Option(min=1, help="How many of the declared seeds.")] = 4,
    arms: Annotated[
        str | None, typer.Option(help="Own/external arms, comma-separated; default all.")
    ] = None,
    report: Annotated[Path, typer.Option(help="Directory of the reports; reused.")] = (
        Path("sapo-report")
    ),
    model: Annotated[str | None, typer.Option(help="Start from this model instead.")] = None,
    correction: Annotated[
        str | None, typer.Option(help="How peers' groups are taken: experience.correction.")
    ] = None,
    assign: SetOption = None,
) -> None:
    """Compare own with shared experience as SAPO (arXiv 2509.08721) does, over several seeds.

    Runs that are in the report directory already are not made again: run it again to resume.
    """
    with refusals():
        from swarm_node.config import parse_assignments
        from swarm_node.simulation.experiments.sapo import Experiment, run_experiment

        flags = parse_assignments(assign or [])
        if correction is not None:
            flags["experience.correction"] = correction
        names = tuple(arms.split(",")) if arms else ()
        run_experiment(Experiment(regime, nodes, rounds, seeds, names, model, flags), report)


@experiment_app.command()
def heterogeneous(
    nodes: Annotated[int, typer.Option(min=2, max=1024, help="Nodes in each swarm.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Updates of each node.")] = 30,
    seeds: Annotated[int, typer.Option(min=1, help="How many of the declared seeds.")] = 4,
    arms: Annotated[
        str, typer.Option(help="Own/external arms beside 8/0, comma-separated.")
    ] = "4/4",
    strong: Annotated[str, typer.Option(help="tiny, or a directory.")] = "tiny",
    weak: Annotated[
        str | None, typer.Option(help="A directory; default: a smaller, sparser model is built.")
    ] = None,
    report: Annotated[Path, typer.Option(help="Directory of the reports; reused.")] = (
        Path("heterogeneous-report")
    ),
    assign: SetOption = None,
) -> None:
    """Compare nodes of two sizes and two tokenizers alone, among their own kind, and in one swarm.

    Runs that are in the report directory already are not made again: run it again to resume.
    """
    with refusals():
        from swarm_node.config import parse_assignments
        from swarm_node.simulation.experiments.heterogeneous import Comparison, run_comparison

        flags = parse_assignments(assign or [])
        names = tuple(arms.split(","))
        run_comparison(Comparison(nodes, rounds, seeds, names, strong, weak, flags), report)


@experiment_app.command()
def staleness(
    nodes: Annotated[int, typer.Option(min=1, max=1024, help="Nodes in the swarm.")] = 4,
    rounds: Annotated[int, typer.Option(min=3, help="Updates of each node.")] = 40,
    seeds: Annotated[int, typer.Option(min=1, help="How many of the declared seeds.")] = 3,
    lags: Annotated[str, typer.Option(help="Updates, comma-separated.")] = "0,1,2,4,8,16",
    corrections: Annotated[
        str, typer.Option(help="positive, sampler and none, comma-separated.")
    ] = "positive,sampler,none",
    delay: Annotated[str, typer.Option(help="Virtual seconds of a message: LO,HI.")] = "0.5,4",
    loss: Annotated[float, typer.Option(min=0, max=1, help="Share of messages lost.")] = 0.1,
    report: Annotated[Path, typer.Option(help="Directory of the reports; reused.")] = (
        Path("staleness-report")
    ),
    assign: SetOption = None,
) -> None:
    """Train on groups of set ages over a network that delays, reorders and loses messages, with and
    without correction for their age.

    Runs that are in the report directory already are not made again: run it again to resume.
    """
    with refusals():
        from swarm_node.config import parse_assignments
        from swarm_node.simulation.experiments.staleness import Staleness, run_staleness

        experiment = Staleness(
            nodes,
            rounds,
            seeds,
            _whole_numbers("--lags", lags),
            tuple(corrections.split(",")),
            _range("--delay", delay),
            loss,
            parse_assignments(assign or []),
        )
        run_staleness(experiment, report)


@experiment_app.command()
def broad(
    regime: Annotated[
        str, typer.Option(help="dense, sparse, very-sparse or specialised.")
    ] = "dense",
    nodes: Annotated[int, typer.Option(min=1, max=1024, help="Nodes in the swarm.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Updates of each node.")] = 40,
    seeds: Annotated[int, typer.Option(min=1, help="How many of the declared seeds.")] = 4,
    report: Annotated[Path, typer.Option(help="Directory of the reports; reused.")] = (
        Path("broad-report")
    ),
    assign: SetOption = None,
) -> None:
    """Compare swarms whose nodes sample none, half or all of their tasks in common.

    Runs that are in the report directory already are not made again: run it again to resume.
    """
    with refusals():
        from swarm_node.config import parse_assignments
        from swarm_node.simulation.experiments.broad import Broad, run_broad

        flags = parse_assignments(assign or [])
        run_broad(Broad(regime, nodes, rounds, seeds, flags=flags), report)


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise ConfigError(f"{option} takes numbers, such as 0,4,16, not {text!r}") from None
