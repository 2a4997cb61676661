"""The simulator for a program: `simulate`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swarm_node.library.running import elsewhere
from swarm_node.simulation.report import SimulationReport, save_report
from swarm_node.simulation.run import quietly, simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import simulate as run


class _Interrupted(BaseException):
    """The caller was interrupted. Nothing in a simulation may take this for a fault."""


def simulate(
    *,
    nodes: int = 8,
    local: int | None = None,
    external: int | str | None = None,
    rounds: int = 60,
    seed: int = 0,
    report: str | Path | None = None,
    families: int = 0,
    model: str | Sequence[str] = "tiny",
    delay: tuple[float, float] = (0.0, 0.0),
    message_loss: float = 0.0,
    speeds: tuple[float, float] = (1.0, 1.0),
    correction: str | None = None,
    eval_rounds: int = 10,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[str], object] | None = None,
) -> SimulationReport:
    """Run a whole swarm in this process, as `swarm-node simulate` does with the same options, and
    return its result. The same arguments give the same `hash`.

    `local` and `external` are local and external groups per step (I and J, which may be "auto"),
    `rounds` the steps of each node, `families` how many families each samples (0: all).
    `model` is "tiny" or a directory; several are dealt to the nodes. `delay` is a range of virtual
    seconds, `message_loss` the fraction of messages that are lost, `speeds` the range of the nodes'
    speeds, and `correction` that of external groups. `settings` are keys of `swarm-node config`; no
    file and no variable is read. `report` is a directory for report.json and learning.png.
    `progress`, such as `print`, is called with a line after each round.

    Raises:
        ConfigError: a value is impossible.
        ModelError: there is no such model.
        SwarmNodeError: it cannot run, or the report cannot be written.
    """
    scenario = Scenario(
        nodes=nodes,
        rounds=rounds,
        seed=seed,
        families_per_node=families,
        delay=delay,
        message_loss=message_loss,
        speeds=speeds,
        eval_rounds=eval_rounds,
        models=(model,) if isinstance(model, str) else tuple(model),
    )
    flags = {
        "experience.local": local,
        "experience.external": external,
        "experience.external_correction": correction,
        **(settings or {}),
    }
    result = _run(scenario, flags, progress or (lambda line: None))
    if report is not None:
        save_report(result, Path(report))
    return result


def _run(
    scenario: Scenario, flags: Mapping[str, Any], progress: Callable[[str], object]
) -> SimulationReport:
    settings = simulation_settings(scenario.seed, flags)
    steps, interrupted = 0, threading.Event()

    def on_round() -> None:
        nonlocal steps
        steps += 1
        if interrupted.is_set():
            raise _Interrupted
        if steps % scenario.nodes == 0:
            progress(f"round {steps // scenario.nodes} of {scenario.rounds}")

    try:
        with quietly():
            return elsewhere(lambda: run(scenario, settings, on_round))
    except KeyboardInterrupt:
        interrupted.set()
        raise
