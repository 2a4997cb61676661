"""A running node reads its settings again."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from swarm_node.config import Sources
from swarm_node.config.reloading import Reloaded, Reloading
from swarm_node.errors import ConfigError


def test_values_that_need_no_restart_are_taken_over_and_the_others_told(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("verbose = true\n[run]\nmax_steps = 1\neval_tasks = 3\n")
    environ = {"SWARM_NODE_RUN__EVAL_TASKS": "5"}
    sources = Sources({"verbose": False}, environ, file)
    loaded = sources.load()
    reloading = Reloading(sources, loaded)
    # What the node derived from its model stays.
    derived = loaded.sampling.model_copy(update={"group_size": 8})
    used = loaded.model_copy(update={"sampling": derived})
    overridden = {"verbose": "command line", "run.eval_tasks": "SWARM_NODE_RUN__EVAL_TASKS"}

    file.write_text(
        "verbose = true\n[run]\nmax_steps = 2\neval_tasks = 4\n[experience]\nlocal = 3\n"
    )
    used, told = reloading.reload(used)
    assert told == Reloaded(str(file), ["run.max_steps"], ["experience.local"], overridden)
    assert (used.run.max_steps, used.run.eval_tasks, used.verbose) == (2, 5, False)
    assert (used.experience.local, used.sampling.group_size) == (4, 8)

    used, told = reloading.reload(used)
    assert (told.applied, told.pending) == ([], ["experience.local"])


@pytest.mark.parametrize(
    "text", ["run = [", "[run]\nmax_steps = -1\n", "[run]\nmax_step = 1\n", None]
)
def test_a_bad_file_changes_nothing_and_is_logged(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[run]\nmax_steps = 1\n")
    sources = Sources({}, {}, file)
    loaded = sources.load()
    reloading = Reloading(sources, loaded)
    file.unlink() if text is None else file.write_text(text)
    with capture_logs() as logs, pytest.raises(ConfigError):
        reloading.reload(loaded)
    assert [line["log_level"] for line in logs] == ["warning"]
    file.write_text("[run]\nmax_steps = 2\n")
    used, told = reloading.reload(loaded)
    assert (used.run.max_steps, told.applied) == (2, ["run.max_steps"])
