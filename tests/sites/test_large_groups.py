"""A relay between nodes behind NAT whose groups are as large as those of a model of 1.5B."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT
from sites import long_texts
from sites.bed import Bed, Nat
from sites.scene import row, scene, until

pytestmark = [
    pytest.mark.sites,
    pytest.mark.nightly(reason="a network between sites, for minutes"),
    pytest.mark.slow(reason="starts three real nodes whose answers have 900 tokens"),
    pytest.mark.timeout(1200),
]
PAIRS = ("a1", "b1"), ("b1", "a1")
TINY = ROOT / "swarm_node" / "policy" / "models" / "tiny"
SETTINGS = {
    "environment.name": "long_texts:create",
    "sampling.group_size": 10,
    "sampling.max_new_tokens": 900,
    "sampling.max_concurrent_groups": 2,
    "experience.local": 2,
    "experience.external": 2,
    "training.learning_rate": 1e-9,
    "run.eval_seconds": 6000,
}
_LARGE, _ENOUGH = 100_000, 10


def test_groups_of_100_kb_pass_a_relay_between_nodes_behind_nat(tmp_path: Path) -> None:
    model = str(endless_model(tmp_path / "model"))
    settings = [text for key, value in SETTINGS.items() for text in ("--set", f"{key}={value}")]
    with (
        Bed({"a": Nat.SYMMETRIC, "b": Nat.SYMMETRIC}, public=1, hosts=1) as bed,
        scene(bed, tmp_path, "--model", model, *settings) as made,
    ):
        made.path.append(str(Path(long_texts.__file__).parent))
        for host in ("pub1", "a1", "b1"):
            made.start(host)

        def rows() -> list[dict[str, Any]]:
            return [row(made, *pair) for pair in PAIRS]

        relay = made.peer_ids()["pub1"]
        until(
            lambda: all(
                each.get("accepted", 0) >= _ENOUGH and each["via"] == relay for each in rows()
            ),
            900,
            rows,
        )
        groups = sum(each["accepted"] for each in rows())
        relaying = made.nodes["pub1"].wait(lambda status: bool(status["relaying"]))["relaying"]
        assert relaying["bytes"] > groups * _LARGE
        assert not any(each["rejected"] for each in rows())


def endless_model(place: Path) -> Path:
    """The tiny model's shape, with weights that give every token but the special ones the same
    chance: answers end where they must."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(TINY, place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    weights = load_file(place / "model.safetensors")
    embedded = weights["model.embed_tokens.weight"]
    embedded[:, -1] = 1.0
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[-1] = 0.0  # so that the last of the hidden values stays what it was
    weights["model.norm.weight"][-1] = 1.0
    head = torch.zeros_like(embedded)
    head[:4, -1] = -1e4
    save_file({**weights, "lm_head.weight": head}, place / "model.safetensors")
    return place
