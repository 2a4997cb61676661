"""What Prometheus reads, checked by Prometheus' own tool where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from builders import ROOT, quiet_snapshot
from builders import history_row as row
from prometheus_client.parser import text_string_to_metric_families

from swarm_node.node.control.prometheus import exposition
from swarm_node.node.metrics.history import GroupCounts, UpdateRow
from swarm_node.node.metrics.snapshot import (
    BusyRow,
    EvalPoint,
    MembershipRow,
    PeerRow,
    Snapshot,
    TokensRow,
)


def full_snapshot() -> Snapshot:
    """A snapshot with a value for every figure."""
    return quiet_snapshot(
        groups=GroupCounts(
            sampled=40,
            announced=20,
            sent=15,
            accepted=12,
            trained_local=30,
            trained_external=10,
            completions=160,
            truncated=120,
        ),
        rejected={"stale": 2, "unreachable": 5},
        faults={"scorer": 1},
        evals=[
            EvalPoint(
                1.0, 3, 0.5, 0.5, None, {"gcd": 0.5}, {"gcd": 0.75}, 4, train=0.9, split_version=1
            )
        ],
        last_step=UpdateRow(
            loss=0.1,
            mean_reward=0.5,
            mismatch_kl=0.001,
            entropy=1.2,
            clip_ratio=0.02,
            grad_norm=1.5,
            tokens=100,
            seconds=0.1,
        ),
        busy=BusyRow(5.0, 4.0, 10.0),
        tokens=TokensRow(1000, 900),
        membership=MembershipRow("alice", "alice", 0, 1_800_000_000, "member"),
        peers=[PeerRow("12D3KooWsecret", 1, 1.0, 1, 1, 0, [], name="laptop", via="")],
        latest=row(
            1.0,
            staleness=0.5,
            external_age=2.0,
            rollout_reward=0.4,
            mixed_reward_ratio=0.6,
            truncated_ratio=0.75,
            memory=1 << 30,
        ),
        alarms=["look"],
    )


def test_figures_have_types_units_and_no_peers() -> None:
    text = exposition(full_snapshot()).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for each in families.values()
        for sample in each.samples
    }
    assert all(
        each.documentation and each.type in ("gauge", "counter") for each in families.values()
    )
    assert values["swarm_node_steps_total",] == 3
    assert values["swarm_node_groups_announced_total",] == 20
    assert values["swarm_node_groups_trained_total", "local"] == 30
    assert values["swarm_node_completions_total",] == 160
    assert values["swarm_node_completions_truncated_total",] == 120
    assert values["swarm_node_truncated_ratio",] == 0.75
    assert values["swarm_node_rejections_total", "stale"] == 2
    assert values["swarm_node_eval_reward", "gcd"] == 0.5
    assert values["swarm_node_eval_best_of_k_reward", "gcd"] == 0.75
    assert values["swarm_node_eval_reward_train",] == 0.9
    assert values["swarm_node_busy_seconds_total", "trainer"] == 4.0
    assert values["swarm_node_memory_bytes",] == 1 << 30
    assert values["swarm_node_mismatch_kl_nats",] == 0.001
    assert values["swarm_node_grad_norm",] == 1.5
    assert values["swarm_node_staleness_versions",] == 0.5
    assert values["swarm_node_peers", "direct"] == 1
    assert values["swarm_node_peers", "relayed"] == 0
    assert values["swarm_node_membership_end_timestamp_seconds",] == 1_800_000_000
    assert "12D3KooW" not in text
    assert "laptop" not in text
    assert exposition(quiet_snapshot()), "a node that has just started is scraped, too"


def test_two_nodes_in_one_process_share_no_figures() -> None:
    one, other = (exposition(quiet_snapshot(steps=n)).decode() for n in (1, 2))
    assert "steps_total 1.0" in one
    assert "steps_total 2.0" in other


def test_promtool_accepts_the_figures_the_rules_and_the_settings() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("NOT RUN: promtool (Debian's package prometheus) is not installed")
    checked = [
        ["check", "metrics"],
        ["check", "rules", "docker/alerts.yml"],
        ["check", "config", "--syntax-only", "docker/prometheus.yml"],
        ["test", "rules", "tests/node/control/alerts_test.yml"],
    ]
    for arguments in checked:
        done = subprocess.run(
            [promtool, *arguments], input=exposition(full_snapshot()), capture_output=True, cwd=ROOT
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        assert not done.stderr, done.stderr


def names() -> set[str]:
    families = text_string_to_metric_families(exposition(full_snapshot()).decode())
    return {sample.name for each in families for sample in each.samples}


@pytest.mark.parametrize("file", ["docker/alerts.yml", "docker/grafana-board.json"])
def test_boards_and_rules_name_figures_that_exist(file: str) -> None:
    used = set(re.findall(r"swarm_node_[a-z_]+", Path(ROOT / file).read_text()))
    assert used
    assert used <= names()
