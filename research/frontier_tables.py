"""Tables and pictures of the frontier, from raw files alone, and the rival without a model: in each
family, always the answer that is right most often."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from research.estimates import Estimate, estimate, holm, p_different, p_not_within, paired
from research.frontier import Frontier
from research.frontier_arms import (
    CENTRAL,
    DEFAULT,
    EVAL_TASKS,
    FITTED,
    GROUNDS,
    RIVALS,
    SIZE,
    SOURCE,
    settings_of,
)
from research.frontier_choice import (
    PilotDecision,
    by_arm,
    needed,
    read_choices,
    reward_at,
)
from research.frontier_raw import Raw, all_raw
from research.prediction import Learning, between, predicted
from research.skeleton import draw_band, results_table
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.errors import ConfigError
from swarm_node.rollout import TaskRef
from swarm_node.simulation.report import save_picture
from swarm_node.simulation.run import simulation_settings

#: A swarm and a central learner count as equal within so much reward.
MARGIN = 0.02
#: The batch of the default swarm, in groups, and the solo arm with as many informative ones.
_BATCH = 8
_COSTS: Mapping[str, Callable[[Raw], Sequence[float]]] = {
    "completions per learner": lambda run: run.answers,
    "completions in total": lambda run: run.everybodys,
    "CPU seconds in total": lambda run: run.seconds,
    "bytes sent": lambda run: run.traffic,
}
Runs = Mapping[str, list[Raw]]


def runs_of(directory: Path, stage: str, regime: str, nodes: int | None = None) -> Runs:
    """Runs by arm: swarms and central learners of `nodes`, or of any number (None)."""
    matching_runs = [
        run
        for run in all_raw(directory, stage, regime)
        if nodes is None or RIVALS[run.arm].kind in ("solo", "supervised") or run.nodes == nodes
    ]
    return by_arm(matching_runs)


def _end(run: Raw, updates: int) -> float:
    return between(run.updates, run.unseen, updates)


def _pairs(
    ours: Sequence[Raw], theirs: Sequence[Raw], reward: Callable[[Raw], float]
) -> tuple[list[float], list[float]]:
    """Rewards of two arms on the seeds that both have."""
    other = {run.index: run for run in theirs}
    both = [(run, other[run.index]) for run in ours if run.index in other]
    return [reward(run) for run, _ in both], [reward(run) for _, run in both]


def ends_tables(directory: Path, stage: str, regime: str) -> tuple[Table, Table]:
    """Each arm after the updates of the default and at equal answers per learner; then what an
    update of it cost. One table of both would not fit a terminal."""
    runs = runs_of(directory, stage, regime, SIZE)
    updates, budget = _measure(runs)
    title = f"{regime}: reward after {updates} updates and at {budget:.0f} answers per learner"
    ends = results_table(title, ("arm",), ("unseen", "seen", "equal answers", "seeds"))
    costs = {
        "answers": lambda run: run.answers[-1] / run.updates[-1],
        "in all": lambda run: run.everybodys[-1] / run.updates[-1],
        "CPU ms": lambda run: 1000 * run.cpu / run.updates[-1] / run.learners,
        "KiB": lambda run: run.bytes / 1024 / run.updates[-1],
        "lag": lambda run: run.own_lag,
    }
    spent = results_table(f"{regime}: what an update cost", ("arm",), list(costs))
    for arm, arm_runs in runs.items():
        seen_rewards = [between(run.updates, run.seen, updates) for run in arm_runs if run.seen]
        ends.add_row(
            arm,
            f"{estimate([_end(run, updates) for run in arm_runs]):.3f}",
            f"{estimate(seen_rewards):.3f}" if seen_rewards else "-",
            f"{estimate([reward_at(run, budget) for run in arm_runs]):.3f}",
            str(len(arm_runs)),
        )
        spent.add_row(arm, *(f"{_mean(arm_runs, count):.1f}" for count in costs.values()))
    return ends, spent


def levels_table(directory: Path, stage: str, regime: str) -> Table:
    """Answers of a learner to each level: the median over seeds, and how many reached it. Then the
    answers of the default as a part of those of the best solo arm. Where that arm never reached the
    level, its whole run is taken, and the part is an upper bound (≤)."""
    runs, levels = runs_of(directory, stage, regime, SIZE), _choice(directory, regime).levels
    solo = {arm: arm_runs for arm, arm_runs in runs.items() if RIVALS[arm].kind == "solo"}
    title = f"{regime}: answers per learner (in all) to levels of reward on unseen texts"
    table = results_table(title, ("arm",), [f"{level:g}" for level in levels])
    for arm, arm_runs in runs.items():
        cells = []
        for level in levels:
            needs = [needed(run, level) for run in arm_runs]
            reached = sum(need < math.inf for need in needs)
            middle = median(needs)
            answers_text = "not reached" if math.isinf(middle) else f"{middle:.0f}"
            whole = "" if math.isinf(middle) else f" ({middle * arm_runs[0].learners:.0f})"
            cells.append(f"{answers_text}{whole}, {reached} of {len(arm_runs)}")
        table.add_row(arm, *cells)
    if solo and DEFAULT.name in runs:
        cells = [_ratio(runs[DEFAULT.name], solo, level) for level in levels]
        table.add_row("default / best solo", *cells)
    return table


def _ratio(swarm: Sequence[Raw], solo: Runs, level: float) -> str:
    best = min(solo.values(), key=lambda arm_runs: median(needed(run, level) for run in arm_runs))
    ours = median(needed(run, level) for run in swarm)
    theirs = median(needed(run, level) for run in best)
    if math.isinf(ours):
        return "not reached"
    if theirs == 0.0:
        return "-"  # solo arms begin at this level
    if math.isinf(theirs):
        whole_run_answers = max(
            median(run.answers[-1] for run in arm_runs) for arm_runs in solo.values()
        )
        return f"≤ {ours / whole_run_answers:.2f}"
    return f"{ours / theirs:.2f}"


def claims_table(directory: Path, regimes: Sequence[str], sizes: Sequence[int]) -> Table:
    """The declared family of comparisons, with Holm's correction: in each regime, the test that the
    default swarm of SIZE differs from the best solo arm at equal answers per learner; and at each
    size, the test that the default is within MARGIN of the central learner after all updates."""
    claims: dict[tuple[str, str], tuple[Estimate, float]] = {}
    for regime in regimes:
        for nodes in sizes:
            runs = runs_of(directory, "final", regime, nodes)
            differences, central = central_gain(runs)
            if central:
                claims[regime, f"{central}, {nodes} nodes"] = _within(*differences)
            if DEFAULT.name in runs and nodes == SIZE:
                gains, arm = solo_gain(runs)
                if arm:
                    claims[regime, f"{arm}, {nodes} nodes"] = (estimate(gains), _different(gains))
    corrected = holm({name: p for name, (_, p) in claims.items() if not math.isnan(p)})
    title = f"default less its rivals, unseen texts; central: p that it is {MARGIN} or more away"
    table = results_table(title, ("regime", "rival"), ("difference", "p", "Holm"))
    for name, (difference, p) in claims.items():
        table.add_row(*name, f"{difference:+.3f}", f"{p:.2g}", f"{corrected.get(name, p):.2g}")
    return table


def central_gain(runs: Runs) -> tuple[tuple[list[float], list[float]], str]:
    """Rewards of the default and of the central learner, by seed, and the name of that learner: the
    better one at equal answers in all. Nothing without a central learner."""
    ours = runs.get(DEFAULT.name, [])
    central_runs = {arm.name: runs[arm.name] for arm in CENTRAL if arm.name in runs}
    if not ours or not central_runs:
        return ([], []), ""
    total = _mean(ours, lambda run: run.everybodys[-1])

    def reward(run: Raw) -> float:
        return between(run.everybodys, run.unseen, total)

    best = max(central_runs, key=lambda arm: _mean(central_runs[arm], reward))
    return _pairs(ours, central_runs[best], reward), best


def solo_gain(runs: Runs) -> tuple[list[float], str]:
    """Gain of the default over the best solo arm at equal answers per learner, by seed, and that
    arm. Nothing without a solo arm."""
    _, budget = _measure(runs)
    solo = {arm: arm_runs for arm, arm_runs in runs.items() if RIVALS[arm].kind == "solo"}
    if not solo:
        return [], ""
    best = max(solo, key=lambda arm: _mean(solo[arm], lambda run: reward_at(run, budget)))
    pair = _pairs(runs[DEFAULT.name], solo[best], lambda run: reward_at(run, budget))
    return [ours - theirs for ours, theirs in zip(*pair, strict=True)], best


def sizes_table(directory: Path, regime: str, sizes: Sequence[int]) -> Table:
    """The default and the central learner by number of nodes."""
    title = f"{regime}: default swarms and central learners; bytes are those that all nodes sent"
    headings = ("default", "central", "difference", "answers in all", "central's", "bytes", "part")
    table = results_table(title, ("nodes",), headings)
    for nodes in sizes:
        runs = runs_of(directory, "final", regime, nodes)
        ours, theirs = runs.get(DEFAULT.name, []), runs.get(CENTRAL[0].name, [])
        if ours and theirs:
            pair, best = central_gain(runs)
            part = _mean(ours, lambda run: run.bytes) / _mean(theirs, lambda run: run.bytes)
            table.add_row(
                f"{nodes}, {best}",
                f"{estimate(pair[0]):.3f}",
                f"{estimate(pair[1]):.3f}",
                f"{paired(*pair):+.3f}",
                f"{_mean(ours, lambda run: run.everybodys[-1]):.0f}",
                f"{_mean(theirs, lambda run: run.everybodys[-1]):.0f}",
                f"{_mean(ours, lambda run: run.bytes):.3g}",
                f"1/{1 / part:.0f}",
            )
    return table


def prediction_table(directory: Path, regime: str, sizes: Sequence[int]) -> Table:
    """The predicted reward of the default, from the pilot's swarm of two, beside the measured one
    where the final has it. Private families follow the curve of nodes that have all of them."""
    source = "sparse" if regime == "specialised" else regime
    pilot = [run for run in all_raw(directory, "pilot", source) if run.arm == SOURCE.name]
    if not pilot:
        raise ConfigError(f"the pilot lacks {SOURCE.name} in {source}")
    groups, reward, share = (_means(pilot, name) for name in ("informative", "unseen", "share"))
    # A share is that of the groups since the measurement before, which the first one lacks.
    learning = Learning(groups, reward, [share[1], *share[1:]])
    families_per_node = GROUNDS[regime].regime.families_per_node
    how = "fitted by a formula" if regime in FITTED else "predicted from the pilot"
    table = results_table(
        f"{regime}: the default's reward, {how}, and measured",
        ("nodes",),
        ("lag", "formula", "measured", "error"),
    )
    for nodes in sizes:
        pilot_runs = runs_of(directory, "pilot", regime, nodes).get(DEFAULT.name, [])
        runs = runs_of(directory, "final", regime, nodes).get(DEFAULT.name, [])
        if not pilot_runs and not runs:
            continue
        updates = (runs or pilot_runs)[0].updates[-1]
        lag = round(_mean(pilot_runs, lambda run: run.peers_lag))
        covered = min(1.0, nodes * families_per_node / 9) if families_per_node else 1.0
        predicted_reward = predicted(
            learning, nodes, batch=_BATCH, updates=updates, lag=lag, covered=covered
        )
        cells = ["-", "-"]
        if runs:
            end = estimate([_end(run, updates) for run in runs])
            cells = [f"{end:.3f}", f"{predicted_reward - end.mean:+.3f}"]
        table.add_row(str(nodes), str(lag), f"{predicted_reward:.3f}", *cells)
    return table


def draw(directory: Path, stage: str, regime: str, path: Path) -> list[Path]:
    """Eval reward over each cost, for the best solo arm, the swarm of SIZE and the central learner
    on one axis; returns the file that was written."""
    runs = runs_of(directory, stage, regime, SIZE)
    _, solo = solo_gain(runs) if DEFAULT.name in runs else ([], "")
    _, central = central_gain(runs)
    labels = {
        solo: "strongest isolated node",
        DEFAULT.name: f"node in a swarm of {SIZE}",
        central: "central learner",
    }

    def fill(figure: Any) -> None:
        panels = figure.subplots(1, len(_COSTS), sharey=True)
        for panel, (name, cost) in zip(panels, _COSTS.items(), strict=True):
            for arm, label in labels.items():
                arm_runs = runs.get(arm)
                if arm_runs is None:
                    continue
                points = [
                    estimate(values) for values in zip(*(r.unseen for r in arm_runs), strict=True)
                ]
                places = [sum(v) / len(arm_runs) for v in zip(*map(cost, arm_runs), strict=True)]
                if places[-1] > 0:
                    # The start cost nothing, which a logarithm cannot show.
                    draw_band(panel, places[1:], points[1:], label)
            panel.set(xlabel=name, xscale="log")
            panel.grid(alpha=0.3)
        panels[0].set(ylabel="eval reward (pass@1)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)

    return save_picture(path, (15, 4), fill)


def _measure(runs: Runs) -> tuple[int, float]:
    """The updates of the default, and the answers that one of its nodes made in them."""
    swarm = runs.get(DEFAULT.name)
    if not swarm:
        raise ConfigError(f"there is no run of the default swarm of {SIZE}")
    return swarm[0].updates[-1], _mean(swarm, lambda run: run.answers[-1])


def _choice(directory: Path, regime: str) -> PilotDecision:
    choices = read_choices(directory)
    if regime not in choices:
        raise ConfigError(f"nothing is decided for {regime}: --stage pilot, then --decide")
    return choices[regime]


def _within(ours: Sequence[float], theirs: Sequence[float]) -> tuple[Estimate, float]:
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    p = p_not_within(differences, MARGIN) if len(differences) > 1 else math.nan
    return estimate(differences), p


def _different(differences: Sequence[float]) -> float:
    return p_different(differences) if len(differences) > 1 else math.nan


def _means(runs: Sequence[Raw], name: str) -> list[float]:
    columns = [getattr(run, name) for run in runs]
    return [sum(values) / len(runs) for values in zip(*columns, strict=True)]


def _mean(runs: Sequence[Raw], count: Callable[[Raw], float]) -> float:
    """The mean over the runs that have such a count; 0 if none has."""
    values = [value for run in runs if not math.isnan(value := count(run))]
    return sum(values) / len(values) if values else 0.0


#: Training tasks of a family among which the most frequent answer is looked for.
_DRAWS = 400


class Constant(NamedTuple):
    """One answer to all tasks of a family, and its score on held-out ones."""

    answer: str
    reward: float


def best_constants(name: str, options: Mapping[str, Any], tasks: int) -> dict[str, Constant]:
    """The most frequent right answer among training tasks of each family of an environment, scored
    on `tasks` held-out tasks.

    Raises:
        ConfigError: there is no such environment, or it knows no right answers.
    """
    environment = create_environment(name, dict(options))
    constants = {}
    for family in environment.families:

        def ref(seed: int, family: str = family) -> TaskRef:
            return TaskRef(environment.name, environment.version, family, seed)

        training_tasks = (
            environment.derive(ref(task_seed("constant", family, i))) for i in range(_DRAWS)
        )
        answers = Counter(
            right for right in map(environment.answer, training_tasks) if right is not None
        )
        if not answers:
            raise ConfigError(f"{name} does not say which answers of {family} are right")
        answer = answers.most_common(1)[0][0]
        held_out = [environment.derive(ref(held_out_seed(family, i))) for i in range(tasks)]
        scores = [environment.score(task, answer) for task in held_out]
        constants[family] = Constant(answer, sum(scores) / tasks)
    return constants


def show_tables(frontier: Frontier, name: str) -> None:
    """Print a table, for each regime that was asked for.

    Raises:
        ConfigError: there is no such table, or runs that it needs are missing.
    """
    if name not in _TABLES:
        raise ConfigError(f"there is no table {name}: choose from {', '.join(_TABLES)}")
    console = Console(highlight=False)
    for table in _TABLES[name](frontier):
        console.print(table)


def show_picture(frontier: Frontier, path: Path) -> None:
    """Draw the first regime that was asked for.

    Raises:
        ConfigError: runs that it needs are missing.
    """
    for file in draw(frontier.raw, frontier.stage, frontier.regimes[0], path):
        print(f"wrote {file}")


def _ends(frontier: Frontier) -> Iterator[Table]:
    for regime in frontier.regimes:
        yield from ends_tables(frontier.raw, frontier.stage, regime)


def _levels(frontier: Frontier) -> Iterator[Table]:
    return (levels_table(frontier.raw, frontier.stage, regime) for regime in frontier.regimes)


def _claims(frontier: Frontier) -> Iterator[Table]:
    yield claims_table(frontier.raw, frontier.regimes, frontier.sizes)


def _sizes(frontier: Frontier) -> Iterator[Table]:
    return (sizes_table(frontier.raw, regime, frontier.sizes) for regime in frontier.regimes)


def _prediction(frontier: Frontier) -> Iterator[Table]:
    return (prediction_table(frontier.raw, regime, frontier.sizes) for regime in frontier.regimes)


def _constant(frontier: Frontier) -> Iterator[Table]:
    """Score of the most frequent right answer of each family."""
    for regime in frontier.regimes:
        ground = GROUNDS[regime]
        settings = simulation_settings(0, settings_of(DEFAULT, ground, 1, 1.0))
        table = results_table(f"{regime}: constant answers", ("family", "answer"), ("reward",))
        constants = best_constants(
            settings.environment.name, settings.environment.options, EVAL_TASKS
        )
        for family, constant in constants.items():
            table.add_row(family, constant.answer, f"{constant.reward:.3f}")
        whole = sum(constant.reward for constant in constants.values()) / len(constants)
        table.add_row("all", "", f"{whole:.3f}")
        yield table


_TABLES: dict[str, Callable[[Frontier], Iterator[Table]]] = {
    "ends": _ends,
    "levels": _levels,
    "claims": _claims,
    "sizes": _sizes,
    "prediction": _prediction,
    "constant": _constant,
}
