"""Models from a hub: a real HTTP server on loopback, and the node's own code in a real process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import edit_json
from hub_server import Hub, serving

from swarm_node.errors import ModelError
from swarm_node.policy.models.hub import HubModel, _check_weights, _File, hub_model
from swarm_node.policy.models.shapes import known_shape

REPO = "org/model"


@pytest.fixture
def hub(tmp_path: Path, make_model: Callable[..., Path]) -> Iterator[Hub]:
    """A hub with one sharded Qwen3, and beside it what nobody should ask for."""
    directory = make_model(tmp_path / "hub", "qwen3", shard="60KB")
    (directory / "pytorch_model.bin").write_bytes(b"pickle")
    (directory / "modeling_evil.py").write_text("raise SystemExit(3)")
    (directory / "model-more").mkdir()  # a pattern's star would match it
    (directory / "model-more" / "1-of-1.safetensors").write_bytes(b"unplanned")
    with serving(Hub(directory, REPO)) as server:
        yield server


def resolve(name: str, home: Path, endpoint: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`models.resolve` in a process of its own, as huggingface_hub reads its settings once."""
    program = (
        "import sys\n"
        "from swarm_node.errors import ModelError\n"
        "from swarm_node.config import load_settings\n"
        "from swarm_node.node.preflight.defaults import demand_of\n"
        "from swarm_node.policy.planning.fit import Machine, fit\n"
        "from swarm_node.policy.memory.free import available_memory\n"
        "from swarm_node.policy.placement import ON_CPU\n"
        "from swarm_node.policy.models.model import resolve\n"
        "here = Machine(ON_CPU, available_memory(), None, None)\n"
        "admit = lambda shape: fit(demand_of(load_settings({}, environ={}), shape), here)\n"
        "try:\n"
        "    print(resolve(sys.argv[1], admit))\n"
        "except ModelError as error:\n"
        "    sys.exit(f'refused: {error}')\n"
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", program, name],
        env={**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **more},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow(reason="starts a process for every download")
def test_a_model_is_fetched_once_then_used_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    import torch

    from swarm_node.policy.models.decoder.causal_lm import CausalLM
    from swarm_node.policy.models.model import policy_digests
    from swarm_node.policy.models.text.codec import Codec

    first = resolve(REPO, tmp_path / "cache", hub.address)
    assert first.returncode == 0, first.stderr
    # One line, and no bars where nobody watches.
    line = r"downloading org/model: 9 files, 0\.\d MB to \S+\n"
    assert re.fullmatch(line, first.stderr), first.stderr
    path = Path(first.stdout.strip())
    names = {name for name, _ in hub.served}
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} <= names
    assert len([name for name in names if name.endswith(".safetensors")]) > 1
    assert not [name for name in names if name.endswith((".bin", ".py")) or "/" in name]
    assert policy_digests(path) == policy_digests(hub.directory)
    with torch.no_grad():
        ids = torch.tensor([Codec.from_directory(path).encode_prompt("12 + 7")])
        assert torch.equal(
            CausalLM.from_directory(path)(ids), CausalLM.from_directory(hub.directory)(ids)
        )

    hub.served.clear()
    nowhere = "http://127.0.0.1:9"
    for options in ({}, {"HF_HUB_OFFLINE": "1"}):
        again = resolve(REPO, tmp_path / "cache", nowhere, **options)
        assert again.stdout == first.stdout, again.stderr
    assert hub.served == []


@pytest.mark.slow(reason="waits out the retries of a download")
def test_an_interrupted_download_keeps_the_files_that_are_whole(hub: Hub, tmp_path: Path) -> None:
    hub.cut = max(hub.directory.glob("*.safetensors"), key=lambda file: file.stat().st_size).name
    broken = resolve(REPO, tmp_path / "cache", hub.address, HF_HUB_DOWNLOAD_TIMEOUT="2")
    assert broken.returncode == 1
    assert "keeps the files that are whole" in broken.stderr
    cut, hub.cut = hub.cut, ""
    hub.served.clear()
    whole = resolve(REPO, tmp_path / "cache", hub.address)
    assert whole.returncode == 0, whole.stderr
    names = {name for name, _ in hub.served}
    assert cut in names
    assert "config.json" not in names  # was whole


@pytest.mark.slow(reason="starts a process for every download")
def test_what_cannot_be_fetched_is_refused_with_what_to_do(hub: Hub, tmp_path: Path) -> None:
    cases = [
        ("org/other", hub.address, {}, "the hub has no model org/other"),
        (REPO, "http://127.0.0.1:9", {}, "cannot be fetched from http://127.0.0.1:9"),
        (REPO, hub.address, {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids"),
        (f"{REPO}@typo", hub.address, {}, "org/model has no revision 'typo'"),
        (
            REPO,
            hub.address,
            {},
            "is gated: accept its terms on the hub and put a token in HF_TOKEN",
        ),
    ]
    for name, endpoint, options, message in cases:
        hub.gated = "gated" in message
        refused = resolve(name, tmp_path / "cache", endpoint, **options)
        assert refused.returncode == 1
        assert refused.stderr.startswith("refused:"), refused.stderr
        assert message in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.slow(reason="starts a process for every download")
def test_nothing_large_is_fetched_of_a_model_that_will_not_run(hub: Hub, tmp_path: Path) -> None:
    config = hub.directory / "config.json"
    whole = config.read_text()
    edit_json(config, num_hidden_layers=10**9)
    refused = resolve(REPO, tmp_path / "cache-huge", hub.address)
    assert "(model = " in refused.stderr
    config.write_text(whole)
    edit_json(config, model_type="mixtral")
    refused = resolve(REPO, tmp_path / "cache-other", hub.address)
    assert refused.stderr.splitlines()[-1].startswith("refused: config.json: 'mixtral'"), (
        refused.stderr
    )
    config.write_text(whole)
    with (hub.directory / "model-00001-of-00001.safetensors").open("wb") as file:
        file.truncate(20 << 20)
    refused = resolve(REPO, tmp_path / "cache-large", hub.address)
    assert "not belong" in refused.stderr
    for file in hub.directory.glob("*.safetensors"):
        file.unlink()
    refused = resolve(REPO, tmp_path / "cache-pickle", hub.address)
    assert "other formats" in refused.stderr
    assert not [name for name, _ in hub.served if "safetensors" in name]


def test_weights_of_four_bytes_are_fetched_and_no_more_of_them_than_the_model_has() -> None:
    model, shape = HubModel(REPO), known_shape("qwen2.5-0.5b")
    # Its output head is the embedding, and may be stored a second time.
    most = 4 * (shape.weight_count + shape.vocab_size * shape.hidden_size)
    _check_weights(model, [_File("model.safetensors", most, is_cached=False)], shape)
    with pytest.raises(ModelError, match="not belong"):
        _check_weights(
            model, [_File("model.safetensors", most + (17 << 20), is_cached=False)], shape
        )


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("qwen2.5-0.5b", HubModel("Qwen/Qwen2.5-0.5B-Instruct")),
        ("Qwen3-0.6B-base", HubModel("Qwen/Qwen3-0.6B-Base")),
        ("org/name", HubModel("org/name")),
        ("org/name@v1.0", HubModel("org/name", "v1.0")),
        ("org/name@refs/pr/3", HubModel("org/name", "refs/pr/3")),
        ("./org/name", None),
        ("/org/name", None),
        ("~/name", None),
        ("org/../name", None),
        ("org/name@../../x", None),
        ("org/name/more", None),
        ("qwen2.5", None),
        ("", None),
        ("org/náme", None),
    ],
)
def test_names(name: str, model: HubModel | None) -> None:
    assert hub_model(name) == model
