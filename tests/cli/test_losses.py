"""`swarm-node losses`: what can be chosen, without loading what computes it."""

from __future__ import annotations

import json
import subprocess
import sys

from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.policy.experience.advantage import ADVANTAGES


def test_every_loss_and_advantage_is_listed_with_its_source() -> None:
    from swarm_node.policy.training.objective.losses import LOSSES  # imports torch

    listed = json.loads(CliRunner().invoke(app, ["losses", "--json"]).stdout)
    assert listed["schema"] == 1
    assert set(listed["loss"]) == set(LOSSES)
    assert set(listed["advantage"]) == set(ADVANTAGES)
    entries = [*listed["loss"].values(), *listed["advantage"].values()]
    assert all(entry["summary"] and entry["source"] for entry in entries)


def test_listing_loads_no_torch() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom swarm_node.cli.main import app\n"
        "done = CliRunner().invoke(app, ['losses'])\n"
        "print(done.exit_code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False"]
