"""The history as records, as a data frame and as a picture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from builders import history_row

from swarm_node.errors import SwarmNodeError
from swarm_node.library.history import NodeHistory
from swarm_node.node.metrics.history import HistoryRow

ROWS = [
    history_row(100.0, eval_reward={"gcd": 0.9, "primes": 0.9}, split_version=0),  # an older split
    history_row(
        110.0, eval_reward={"gcd": 0.1, "primes": 0.3}, best_of_k={"gcd": 0.5}, k=4, split_version=1
    ),
    history_row(115.0),
    history_row(120.0, eval_reward={"gcd": 0.5}, eval_reward_train=0.6, split_version=1),
]
HISTORY = NodeHistory(ROWS)


def test_it_is_a_sequence_of_rows() -> None:
    assert list(HISTORY) == ROWS
    assert (len(HISTORY), HISTORY[-1]) == (4, ROWS[-1])
    assert list(HISTORY[1:]) == ROWS[1:]
    assert "2" in repr(HISTORY[:2])


def test_a_curve_has_points_of_the_newest_split() -> None:
    assert HISTORY.curve() == [(10.0, pytest.approx(0.2)), (20.0, 0.5)]
    assert HISTORY.curve("primes") == [(10.0, 0.3)]
    assert HISTORY.curve("unknown") == []
    assert NodeHistory([]).curve() == []
    assert NodeHistory(ROWS[:1]).curve() == [(0.0, 0.9)]


def test_a_frame_has_a_column_for_each_field_and_each_familys_reward() -> None:
    pytest.importorskip("pandas", reason="NOT RUN: needs pandas")
    frame = HISTORY.to_pandas()
    families = ["best_of_k.gcd", "eval_reward.gcd", "eval_reward.primes"]
    plain = set(HistoryRow.__struct_fields__) - {"eval_reward", "best_of_k", "time"}
    assert set(frame.columns) == {*plain, *families}
    assert list(frame.columns[-3:]) == families
    assert str(frame.index.tz) == "UTC"
    assert frame.index[1].timestamp() == 110.0
    assert frame["eval_reward.gcd"].dropna().tolist() == [0.9, 0.1, 0.5]
    assert set(NodeHistory([]).to_pandas().columns) == plain


def test_a_picture_is_what_a_notebook_shows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="NOT RUN: needs matplotlib")
    for history in (HISTORY, NodeHistory([])):
        drawing = history.plot()
        assert drawing._repr_png_().startswith(b"\x89PNG")
        assert drawing.save(tmp_path / "curve.png").read_bytes() == drawing._repr_png_()
    with pytest.raises(SwarmNodeError, match=r": is a directory"):
        HISTORY.plot().save(tmp_path)


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("plot", "matplotlib")])
def test_what_is_not_installed_is_named_with_the_line_that_installs_it(
    method: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    extra = {"matplotlib": "plot"}.get(package, package)
    with pytest.raises(SwarmNodeError, match=rf"{package}: .*'\.\[{extra}\]'"):
        getattr(HISTORY, method)()
