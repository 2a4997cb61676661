"""Data sets of a hub: their names, their files from a real HTTP server on loopback, their rows."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from builders import write_rows
from hub_server import SHA, Hub, serving

from swarm_node.environments.lists.hub import HubRows, fetch, hub_rows, json_line
from swarm_node.environments.lists.jsonl import create
from swarm_node.environments.lists.rows import read_families
from swarm_node.errors import ConfigError

REPO = "org/set"
without_datasets = pytest.mark.skipif(find_spec("datasets") is not None, reason="it is installed")
with_datasets = pytest.mark.skipif(
    find_spec("datasets") is None, reason="NOT RUN: needs pip install '.[data]'"
)


def test_a_data_set_is_named_with_its_revision_in_the_path_or_beside_it() -> None:
    assert hub_rows("hub:org/set", "", "train", "") == HubRows("org/set", "", "", "train")
    wanted = HubRows("org/set", "v1", "main", "test[:10%]")
    assert hub_rows("hub:org/set@v1", "main", "test[:10%]", "") == wanted
    assert hub_rows("hub:org/set", "main", "test[:10%]", "v1") == wanted
    assert hub_rows("hub:org/set@v1", "main", "test[:10%]", "v1") == wanted


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (("hub:set", "", "train", ""), "path"),
        (("hub:org/../set", "", "train", ""), "path"),
        (("hub:/etc/passwd", "", "train", ""), "path"),
        (("hub:org/set\n", "", "train", ""), "path"),
        (("hub:org/set@a/../b", "", "train", ""), "revision"),
        (("hub:org/set@v1", "", "train", "v2"), "revision"),
        (("hub:org/set", "../main", "train", ""), "subset"),
        (("hub:org/set", "", "", ""), "split"),
        (("hub:org/set", "", "train + test", ""), "split"),
        (("hub:org/set", "", 3, ""), "split"),
    ],
    ids=str,
)
def test_names_of_no_data_set_are_refused(given: tuple[Any, ...], option: str) -> None:
    with pytest.raises(ConfigError, match=rf"^environment\.options\.{option}: "):
        hub_rows(*given)


def test_a_row_is_json_whatever_a_data_set_holds() -> None:
    row = {"q": "é\u2028", "n": 18.0, "i": 2**60, "x": float("nan"), "l": [True, None, 1e999],
           "when": datetime.date(2026, 1, 1), "raw": {"b": b"\xff"}}  # fmt: skip
    line = json_line(row)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "q": "é\u2028",
        "n": 18.0,
        "i": 2**60,
        "x": None,
        "l": [True, None, None],
        "when": {"type": "date"},
        "raw": {"b": {"type": "bytes"}},
    }


@without_datasets
def test_without_the_package_the_line_that_installs_it_is_told() -> None:
    with pytest.raises(ConfigError, match=r"hub:org/set .* `pip install '\.\[data\]'`"):
        create("hub:org/set")


def test_only_questions_with_answers_come_from_a_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only the environment jsonl"):
        read_families("hub:org/set", lambda row: pytest.fail("it was read"), 100, 0.5)
    file = write_rows(tmp_path / "rows.jsonl", [{"question": q, "answer": "1"} for q in "ab"])
    with pytest.raises(ConfigError, match=r"environment\.options\.split"):
        create(str(file), split="test")


def repository(place: Path) -> Path:
    """A data set of two subsets, and beside it what nobody should fetch."""
    place.mkdir()
    for name, count in (("train", 20), ("test", 10)):
        rows = [{"question": f"{name} {n}", "answer": 1e22} for n in range(count)]
        write_rows(place / f"{name}.jsonl", rows)
    (place / "set.py").write_text("raise SystemExit(3)")
    (place / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n"
        "    path: train.jsonl\n  - split: test\n    path: test.jsonl\n- config_name: escaping\n"
        "  data_files:\n  - split: train\n    path: ../../../../secret.jsonl\n---\n"
    )
    return place


def downloaded(home: Path, *repos: str, **more: str) -> list[str]:
    """What `hub.download` gives or says, a line each, in a process of its own, as huggingface_hub
    reads its settings once."""
    program = (
        "import sys\n"
        "from swarm_node.environments.lists.hub import HubRows, download\n"
        "from swarm_node.errors import ConfigError\n"
        "for repo in sys.argv[1:]:\n"
        "    try:\n"
        "        place = download(HubRows(repo, '', '', 'train'))\n"
        "        print(place.name, *sorted(file.name for file in place.iterdir()))\n"
        "    except ConfigError as error:\n"
        "        print(error)\n"
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", program, *repos],
        env={**kept, "HF_HOME": str(home), **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.slow(reason="processes download from a server")
def test_rows_are_fetched_once_at_a_commit_and_no_code_is(tmp_path: Path) -> None:
    home = tmp_path / "cache"
    with serving(Hub(repository(tmp_path / "set"), REPO, "datasets")) as hub:
        first, other = downloaded(home, REPO, "org/other", HF_ENDPOINT=hub.address)
    assert first == f"{SHA} README.md test.jsonl train.jsonl"
    assert {name for name, _ in hub.served} == {"README.md", "test.jsonl", "train.jsonl"}
    assert "no data set org/other" in other
    again, other = downloaded(home, REPO, "org/other", HF_HUB_OFFLINE="1")
    assert again == first
    assert "hf download" in other


@with_datasets
@pytest.mark.slow(reason="starts processes that import the package")
def test_rows_of_a_hub_are_tasks_of_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "secret.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    with serving(Hub(repository(tmp_path / "set"), REPO, "datasets")) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        source, commit = fetch(HubRows(REPO, "", "main", "train[:5]"))
        assert (commit, source.family, source.data.count(b"\n")) == (SHA, "set", 5)
        environment = create(f"hub:{REPO}", subset="main", split="test")
    assert sum(environment.sizes["set"]) == 10  # type: ignore[attr-defined]
    assert SHA in environment.notes[0]  # type: ignore[attr-defined]
    pinned = create(f"hub:{REPO}@{SHA}", subset="main", split="test")
    assert pinned.version == environment.version
    for subset, split, option in (
        ("", "train", "subset"),
        ("none", "train", "subset"),
        ("escaping", "train", "subset"),
        ("main", "none", "split"),
    ):
        with pytest.raises(ConfigError, match=rf"^environment\.options\.{option}: "):
            create(f"hub:{REPO}", subset=subset, split=split)
