"""`python -m research`: studies that print their own report.

A new study needs a command here, with the options below, and a module of its own. Commands import
that module when they run, so that `--help` is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from swarm_node.cli.options import AssignOption
from swarm_node.cli.verbs.simulate import (
    CorrectionOption,
    DelayOption,
    MessageLossOption,
    NodesOption,
    RoundsOption,
    range_of,
)
from swarm_node.errors import ConfigError
from swarm_node.program.terminal import RefusingGroup

_RESUMES = "Runs in the report directory are not repeated: give the same command to resume."
_RESULTS = Path(__file__).with_name("results")

app = typer.Typer(
    name="research",
    cls=RefusingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Studies that print their own report.",
)

SeedsOption = Annotated[int, typer.Option(min=1, help="How many declared seeds.")]
RegimeOption = Annotated[
    str, typer.Option(help="dense, sparse, very-sparse, specialised or headroom.")
]
ReportOption = Annotated[Path, typer.Option(help="Directory of the reports.")]
RawOption = Annotated[Path, typer.Option(help="Directory of the raw results.")]
PackOption = Annotated[
    bool, typer.Option("--pack", help="Move the runs' files into the archive; makes no runs.")
]


@app.command(epilog=_RESUMES)
def sapo(
    regime: RegimeOption = "dense",
    nodes: NodesOption = 8,
    rounds: RoundsOption = 60,
    seeds: SeedsOption = 4,
    arms: Annotated[
        str | None, typer.Option(help="Own/external arms, comma-separated; default all.")
    ] = None,
    report: ReportOption = Path("sapo-report"),
    model: Annotated[str | None, typer.Option(help="Start from this model instead.")] = None,
    correction: CorrectionOption = None,
    first_seed: Annotated[int, typer.Option(min=0, help="Index of the first seed.")] = 0,
    cost_ratio: Annotated[str, typer.Option(help="Seconds to make : to train.")] = "70:30",
    assign: AssignOption = None,
) -> None:
    """Compare own with shared experience as SAPO (arXiv 2509.08721) does, over several seeds."""
    from research.budgets import CostRatio
    from research.sapo import Sapo

    flags = _flags(assign)
    if correction is not None:
        flags["experience.external_correction"] = correction
    names = tuple(arms.split(",")) if arms else ()
    ratio = CostRatio(*range_of("--cost-ratio", cost_ratio, ":"))
    Sapo(nodes, rounds, seeds, flags, regime, names, model, first_seed, ratio).run(report)


@app.command(epilog=_RESUMES)
def heterogeneous(
    nodes: Annotated[int, typer.Option(min=2, max=1024, help="Nodes in each swarm.")] = 8,
    rounds: RoundsOption = 30,
    seeds: SeedsOption = 4,
    arms: Annotated[str, typer.Option(help="Own/external, beside 8/0.")] = "4/4",
    strong: Annotated[str, typer.Option(help="tiny, or a directory.")] = "tiny",
    weak: Annotated[
        str | None, typer.Option(help="A directory; default: a smaller, sparser model is built.")
    ] = None,
    report: ReportOption = Path("heterogeneous-report"),
    assign: AssignOption = None,
) -> None:
    """Compare nodes of two sizes and two tokenizers alone, among their own kind, and in one
    swarm."""
    from research.heterogeneous import Heterogeneous

    flags, names = _flags(assign), tuple(arms.split(","))
    Heterogeneous(nodes, rounds, seeds, flags, names, strong, weak).run(report)


@app.command(epilog=_RESUMES)
def staleness(
    nodes: NodesOption = 4,
    rounds: RoundsOption = 40,
    seeds: SeedsOption = 3,
    lags: Annotated[str, typer.Option(help="Updates, comma-separated.")] = "0,1,2,4,8,16",
    corrections: Annotated[
        str, typer.Option(help="Corrections, or losses.")
    ] = "positive,sampler,none",
    delay: DelayOption = "0.5,4",
    message_loss: MessageLossOption = 0.1,
    report: ReportOption = Path("staleness-report"),
    assign: AssignOption = None,
) -> None:
    """Train on groups of fixed ages, with and without off-policy correction, over a network that
    delays, reorders and loses messages."""
    from research.staleness import Staleness

    flags, names = _flags(assign), tuple(corrections.split(","))
    ages, delays = _whole_numbers("--lags", lags), range_of("--delay", delay)
    Staleness(nodes, rounds, seeds, flags, ages, names, delays, message_loss).run(report)


@app.command(epilog=_RESUMES)
def attack(
    plan: Annotated[str, typer.Option(help="trigger or quarter.")] = "trigger",
    nodes: Annotated[
        int,
        typer.Option(min=2, max=1024, help="Members; a quarter is hostile."),
    ] = 4,
    rounds: RoundsOption = 200,
    seeds: SeedsOption = 4,
    only: Annotated[
        str | None, typer.Option(help="Cases of the plan, separated by semicolons; default all.")
    ] = None,
    report: ReportOption = Path("attack-report"),
    assign: AssignOption = None,
) -> None:
    """Put members into a swarm that publish something else than they made, with the guards and
    without."""
    from research.attack import Attack

    names = tuple(name.strip() for name in only.split(";")) if only else ()
    Attack(nodes, rounds, seeds, _flags(assign), plan, names).run(report)


@app.command(epilog=_RESUMES)
def newcomer(
    regime: RegimeOption = "sparse",
    nodes: NodesOption = 8,
    rounds: Annotated[int, typer.Option(min=2, help="Updates of the swarm before.")] = 200,
    seeds: SeedsOption = 4,
    report: ReportOption = Path("newcomer-report"),
    assign: AssignOption = None,
) -> None:
    """Let a node join a swarm that has trained for a while, beside nodes that begin alone."""
    from research.newcomer import Newcomer

    Newcomer(nodes, rounds, seeds, _flags(assign), regime).run(report)


@app.command(epilog="Runs whose files are in --raw are not repeated.")
def frontier(
    stage: Annotated[str, typer.Option(help="pilot or final.")] = "pilot",
    regimes: Annotated[
        str, typer.Option(help="dense, sparse, specialised, unlike.")
    ] = "dense,sparse,specialised,unlike",
    sizes: Annotated[str, typer.Option(help="Nodes of the swarms.")] = "2,4,8,16,32",
    arms: Annotated[
        str | None, typer.Option(help="Arms, comma-separated; default: all of the stage.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="First and last index of the declared seeds, as 0,3.")
    ] = None,
    rounds: RoundsOption = 120,
    raw: RawOption = _RESULTS / "frontier",
    models: Annotated[Path, typer.Option(help="Directory of built models.")] = Path(
        "frontier-models"
    ),
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Processes that make runs.")] = 1,
    decide: Annotated[
        bool, typer.Option("--decide", help="Decide by the pilot's files what the final needs.")
    ] = False,
    levels: Annotated[str | None, typer.Option(help="Four levels, with --decide.")] = None,
    table: Annotated[
        str | None, typer.Option(help="Print a table from the files; makes no runs.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the picture of the first regime; makes no runs.")
    ] = None,
    pack: PackOption = False,
) -> None:
    """Compare the swarm with its rivals, one learner alone and one central learner, by answers,
    processor time and bytes. Its plan is docs/research/frontier-plan.md."""
    from research.frontier import Frontier
    from research.frontier_raw import pack as pack_runs
    from research.frontier_tables import show_picture, show_tables

    chosen, names = tuple(regimes.split(",")), tuple(arms.split(",")) if arms else ()
    counts = _whole_numbers("--sizes", sizes)
    span = _whole_numbers("--seeds", seeds) if seeds else (0, 1 << 16)
    if len(span) != 2:
        raise ConfigError("--seeds takes two numbers, such as 0,3")
    whole = Frontier(stage, chosen, counts, names, raw, models, rounds, span[0], span[1])
    if pack:
        print(f"wrote {pack_runs(raw)}")
    elif table is not None:
        show_tables(whole, table)
    elif picture is not None:
        show_picture(whole, picture)
    elif decide:
        print(f"wrote {whole.decide(_numbers('--levels', levels) if levels else ())}")
    else:
        whole.run(jobs)


@app.command(epilog="Runs whose files are in --raw are not repeated.")
def flood(
    raw: RawOption = _RESULTS / "flood",
    seeds: Annotated[int, typer.Option(min=1, help="How many declared seeds.")] = 16,
    table: Annotated[
        bool, typer.Option("--table", help="Print the table from the files; makes no runs.")
    ] = False,
    pack: PackOption = False,
) -> None:
    """Put members that flood easy groups or withhold wrong answers beside three honest nodes. Its
    plan is docs/research/flood.md."""
    from research.flood import Flood
    from research.frontier_raw import pack as pack_runs

    if pack:
        print(f"wrote {pack_runs(raw)}")
    elif table:
        Flood(raw, seeds).show()
    else:
        Flood(raw, seeds).run()


@app.command(name="real-model", epilog="Runs whose files are in --raw are not repeated.")
def real_model(
    model: Annotated[str, typer.Option(help="A file or directory.")] = "smollm2-135m",
    stage: Annotated[str, typer.Option(help="pilot, changes or final.")] = "final",
    regimes: Annotated[str, typer.Option(help="Of same, rare, private.")] = "same,rare,private",
    sizes: Annotated[str, typer.Option(help="Numbers of nodes.")] = "4,2",
    arms: Annotated[str | None, typer.Option(help="Arms, comma-separated; default all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many declared seeds.")] = 8,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    raw: RawOption = _RESULTS / "real-model",
    table: Annotated[
        bool, typer.Option("--table", help="Print the tables from the files; makes no runs.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw the final; makes no runs.")] = None,
    pack: PackOption = False,
) -> None:
    """Compare a swarm of a language model with a node alone and a central learner. The plan is
    docs/research/real-model.md."""
    from rich.console import Console

    from research.frontier_raw import pack as pack_runs
    from research.real_model import RealModel, draw, tables

    chosen, names = tuple(regimes.split(",")), tuple(arms.split(",")) if arms else ()
    whole = RealModel(stage, chosen, _whole_numbers("--sizes", sizes), names, raw, model, seeds)
    if pack:
        print(f"wrote {pack_runs(raw)}")
    elif picture is not None:
        for file in draw(raw, picture):
            print(f"wrote {file}")
    elif table:
        for each in tables(raw):
            Console(highlight=False).print(each)
    else:
        whole.run(jobs)


def _flags(assign: list[str] | None) -> dict[str, Any]:
    from swarm_node.config import parse_assignments

    return parse_assignments(assign or [])


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise ConfigError(f"{option} takes numbers, such as 0,4,16, not {text!r}") from None


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise ConfigError(f"{option} takes numbers, such as 0.2,0.4, not {text!r}") from None


if __name__ == "__main__":
    app()
