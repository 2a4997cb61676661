"""The history: what rows hold, how many are kept, and files that a crash left."""

from __future__ import annotations

import asyncio
import stat
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from builders import examples
from builders import history_row as row
from hypothesis import given
from hypothesis import strategies as st
from in_memory import Sampler, World, small_settings, tiny
from virtual import virtual_time

from swarm_node.environments.splits.split import SPLIT
from swarm_node.errors import HomeError
from swarm_node.node.metrics.history import (
    CHARTS,
    GroupCounts,
    HistoryRow,
    MetricsFile,
    Ring,
    Totals,
    UpdateRow,
    figures,
)

#: What a row needs besides parts and totals.
KNOWN = dict.fromkeys(("time", "version", "steps", "rejected", "peers", "memory"), 1)


def between(before: Totals, now: Totals) -> HistoryRow:
    return HistoryRow.of(before, now, GroupCounts(), None, **KNOWN)


def test_a_row_has_means_of_what_happened_in_between() -> None:
    before = Totals(seconds=100.0, steps=8, local=40, external=3, sampled_tokens=1000)
    now = Totals(
        seconds=110.0,
        steps=18,
        local=76,
        external=7,
        rollouts=64,
        rollout_reward=36.0,
        local_rollouts=144,
        staleness=18,
        external_age=8,
        sampled=50,
        mixed_rewards=5,
        completions=200,
        truncated=30,
        sampled_tokens=3000,
        trained_tokens=900,
        sampling=4.0,
        updating=12.0,
    )
    found = between(before, now)
    assert (found.local_per_step, found.external_per_step) == (3.6, 0.4)
    assert (found.staleness, found.external_age) == (0.5, 2.0)
    assert (found.rollout_reward, found.mixed_reward_ratio) == (0.25, 0.1)
    assert found.truncated_ratio == 0.15
    assert (found.steps_per_second, found.rollouts) == (1.0, 64)
    assert (found.sampled_tokens_per_second, found.trained_tokens_per_second) == (200.0, 90.0)
    assert (found.sampler_busy, found.trainer_busy) == (0.4, 1.0), "an update began before"
    quiet = between(now, replace(now, seconds=120.0))
    assert (
        quiet.local_per_step
        is quiet.staleness
        is quiet.rollout_reward
        is quiet.mixed_reward_ratio
        is None
    )
    assert (quiet.steps_per_second, quiet.sampler_busy) == (0.0, 0.0)


@pytest.mark.parametrize("kind", [GroupCounts, UpdateRow])
def test_what_has_a_metric_reaches_the_row(kind: type[msgspec.Struct]) -> None:
    part = kind(**{name: 10.0 + at for at, name in enumerate(kind.__struct_fields__)})
    shown = {value for _, each, value in figures(part) if each.metric}
    assert len(shown) >= 5
    made = msgspec.structs.asdict(HistoryRow.of(Totals(), Totals(), GroupCounts(), part, **KNOWN))
    assert shown <= {value for value in made.values() if not isinstance(value, dict)}
    assert made["seconds"] == 0.0, "those of the interval"


def test_no_sum_is_kept_for_nothing() -> None:
    """Each changes a mean."""
    full = Totals(**{field.name: 1 + at for at, field in enumerate(fields(Totals))})
    full.seconds = 100.0
    for field in fields(Totals):
        moved = replace(full, **{field.name: 3 * getattr(full, field.name)})
        assert between(Totals(), moved) != between(Totals(), full), field.name


def test_a_chart_draws_figures_of_rows() -> None:
    drawn = [name for lines in CHARTS.values() for name in lines.values()]
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= set(HistoryRow.__struct_fields__)


@examples(30)
@given(st.integers(0, 500), st.integers(8, 40))
def test_a_ring_covers_the_whole_time_with_a_bounded_number_of_rows(count: int, limit: int) -> None:
    ring = Ring((row(float(n)) for n in range(1, count + 1)), limit)
    times = [held.time for held in ring.since(0.0)]
    assert min(count, limit // 2) <= len(times) <= limit
    assert times == sorted(set(times))
    if count:
        assert times[0] == 1.0
        assert times[-1] == ring.latest.time == count
        assert [held.time for held in ring.since(times[-1] - 0.5)] == [times[-1]]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == sorted(gaps, reverse=True), "older rows are thinned first"


def test_a_file_is_bounded_private_and_read_again(tmp_path: Path) -> None:
    limit = 20 * len(msgspec.json.encode(row(1.0)))
    file = MetricsFile(tmp_path / "metrics.jsonl", limit)
    for number in range(100):
        file.append(row(float(number), eval_reward={"gcd": 0.5}))
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"metrics.jsonl", "metrics.jsonl.1"}
    assert all(0 < size <= limit for size in sizes.values())
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())
    times = [held.time for held in MetricsFile(tmp_path / "metrics.jsonl").read()]
    assert times == [float(number) for number in range(100 - len(times), 100)]
    assert len(times) >= 15


def test_a_line_that_a_crash_cut_costs_no_other_line(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.append(row(1.0))
    with (tmp_path / "metrics.jsonl").open("ab") as left:
        left.write(b'{"time": 2.0, "seco')
    file.append(row(3.0))
    with (tmp_path / "metrics.jsonl").open("ab") as left:
        left.write(b'{"of": "another version"}\n\xff\xfe\n' + b"[" * 100_000 + b"\n")
    file.append(row(4.0))
    assert [held.time for held in file.read()] == [1.0, 3.0, 4.0]


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match=r"metrics\.jsonl"):
        MetricsFile(tmp_path / "nowhere" / "metrics.jsonl").append(row(1.0))


@pytest.mark.slow(reason="two nodes sample, measure and train")
@virtual_time
async def test_a_running_node_writes_rows_of_both_kinds_of_groups(world: World) -> None:
    changed = small_settings(experience__external=1, run__eval_seconds=30.0, run__eval_tasks=4)
    slow = [Sampler(tiny().sampler(), 0.04, 0, world.home(index)) for index in range(2)]
    nodes = [world.node(changed, index, sampler=slow[index]) for index in range(2)]
    lives = [asyncio.create_task(node.run()) for node in nodes]
    await asyncio.sleep(40)
    seen, rows = nodes[0].snapshot(), nodes[0]._parts.history.since(0.0)
    for node in nodes:
        node.stop()
    await asyncio.gather(*lives)
    assert seen.latest == rows[-1]
    measured = [row for row in rows if row.eval_reward is not None]
    assert len(measured) == len(seen.evals) >= 1
    assert measured[0].eval_reward == seen.evals[0].families
    assert measured[0].k == 4
    assert measured[0].eval_reward_train == seen.evals[0].train
    assert measured[0].split_version == SPLIT
    assert measured[0].best_of_k.keys() == measured[0].eval_reward.keys()
    between = [b.time - a.time for a, b in pairwise(rows) if b.eval_reward is None]
    assert all(5.0 <= gap <= 61.0 for gap in between)
    last = rows[-1]
    assert last.trained_external > 0
    assert last.external_per_step > 0
    assert 2.0 <= last.local_per_step + last.external_per_step <= 3.0
    assert 0 < last.announced <= last.sampled
    assert seen.peers[0].sent > 0
    assert 0 < sum(each.groups for each in seen.taught) <= seen.groups.trained_external
    assert {each.peer_id for each in seen.taught} == {seen.peers[0].peer_id}
    assert all(each.rollouts >= each.groups for each in seen.taught)
