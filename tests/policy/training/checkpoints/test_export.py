"""What `swarm-node export` writes, loaded with the real transformers and peft."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from trained_homes import TINY, trained_home
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.policy.models.codec import Codec
from swarm_node.policy.models.qwen2 import Qwen2
from swarm_node.policy.training.processes.worker import TrainerHost

torch.set_num_threads(1)
QUESTION = "What is 12 + 30? été \N{SNOWMAN}"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainerHost]:
    home = tmp_path_factory.mktemp("full")
    return home, trained_home(home, 0)


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainerHost]:
    home = tmp_path_factory.mktemp("lora")
    return home, trained_home(home, 4)


def run(home: Path, target: Path, *options: str) -> Result:
    arguments = ["export", str(target), "--home", str(home), *options]
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@torch.no_grad()
def distance(host: TrainerHost, model: Any, tokenizer: Any) -> float:
    """The largest difference of a log-prob between the trained model and a loaded one, both run in
    float64: in float32 rounding alone makes 1e-5 where a log-prob is -20."""
    ids = torch.tensor([tokenizer.encode(QUESTION, add_special_tokens=False)])
    trained = Qwen2.from_directory(TINY, torch.float64)
    trained.load_hf_state(host.core.weights())
    ours, theirs = trained(ids), model.double().eval()(ids).logits
    return float((ours.log_softmax(-1) - theirs.log_softmax(-1)).abs().max())


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_transformers_loads_what_was_trained(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    home, host = request.getfixturevalue(kind)
    target = tmp_path / "new" / "export"
    done = run(home, target)
    assert (done.exit_code, done.stdout.split()[-1]) == (0, str(target))
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target)
    assert distance(host, model, tokenizer) <= 1e-5
    # Far from the base model, or the comparison could not tell them apart.
    assert distance(host, AutoModelForCausalLM.from_pretrained(TINY), tokenizer) > 1e-2
    codec = Codec.from_directory(TINY)
    chat = [{"role": "user", "content": QUESTION}]
    encoded = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True)
    assert tuple(encoded["input_ids"]) == codec.encode_prompt(QUESTION)
    card = (target / "README.md").read_text()
    for told in (
        "2 updates on 9 own and 7 peers'",
        "| experience.own | 4 |",
        "| environment.name | drills |",
        "| 0 | 0.125 | 0.250 |\n| 0 | 0.500 | 1.000 |",
        "arXiv 2509.08721",
        "unseen texts: 0.125 at first, 0.500",
        "seen texts: 1.000",
        "torch 2.",
        "tiny",
    ):
        assert told in card
    assert f"lora_rank | {host.core.settings.lora_rank} |" in card
    assert "base_model:" not in card
    assert [path.name for path in target.parent.iterdir()] == ["export"]
    # What was exported is a model of this program too.
    again = Qwen2.from_directory(target)
    ids = torch.tensor([codec.encode_prompt(QUESTION)])
    with torch.no_grad():
        torch.testing.assert_close(again(ids), host.core.model(ids), rtol=0.0, atol=1e-4)


def test_peft_loads_the_adapter_that_was_trained(
    lora: tuple[Path, TrainerHost], tmp_path: Path
) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    home, host = lora
    assert run(home, tmp_path, "--format", "peft").exit_code == 0
    assert not (tmp_path / "model.safetensors").exists()
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert distance(host, model, tokenizer) <= 1e-5
    with model.disable_adapter():
        assert distance(host, model, tokenizer) > 1e-2


def test_the_base_is_stated_by_its_public_name(
    lora: tuple[Path, TrainerHost], tmp_path: Path
) -> None:
    done = run(lora[0], tmp_path, "--format", "peft", "--base", "someone/tiny")
    assert done.exit_code == 0
    assert str(TINY) not in (tmp_path / "README.md").read_text()
    assert ": someone/tiny" in (tmp_path / "README.md").read_text()
    assert '"someone/tiny"' in (tmp_path / "adapter_config.json").read_text()


def test_an_adapter_that_was_never_trained_is_refused(
    full: tuple[Path, TrainerHost], tmp_path: Path
) -> None:
    done = run(full[0], tmp_path / "x", "--format", "peft")
    assert done.exit_code == 1
    assert "no adapter" in done.stderr
    assert "--format hf" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(full: tuple[Path, TrainerHost], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    for target in (tmp_path, tmp_path / "mine.txt"):
        done = run(full[0], target)
        assert done.exit_code == 1
        assert "empty directory" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_home_without_checkpoints_and_another_base_are_refused(
    full: tuple[Path, TrainerHost], random_qwen2: Path, tmp_path: Path
) -> None:
    done = run(tmp_path / "home", tmp_path / "x")
    assert done.exit_code == 1
    assert "node first" in done.stderr
    done = run(full[0], tmp_path / "x", "--model", str(random_qwen2))
    assert done.exit_code == 1
    assert "--model" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_checkpoint_that_does_not_fit_its_model_is_refused(
    lora: tuple[Path, TrainerHost], tmp_path: Path
) -> None:
    from swarm_node.policy.training.checkpoints.checkpoint import save

    state = lora[1].core.state(b"", {})
    settings = {**state.settings, "lora_rank": 5}
    save(tmp_path / "checkpoints", replace(state, settings=settings))
    done = run(tmp_path, tmp_path / "x")
    assert done.exit_code == 1
    assert "be exported" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_push_needs_a_name_and_a_token(
    full: tuple[Path, TrainerHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    for repo, said in (("no owner", "OWNER/NAME"), ("me/model", "HF_TOKEN")):
        done = run(full[0], tmp_path / "x", "--push", repo)
        assert done.exit_code == 1
        assert said in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_hub_that_refuses_the_connection_leaves_the_export_and_says_so(
    full: tuple[Path, TrainerHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.hf_api

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but not listening
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setenv("HF_TOKEN", "hf_not_a_token")
        monkeypatch.setattr(huggingface_hub.hf_api.constants, "ENDPOINT", endpoint)
        done = run(full[0], tmp_path / "x", "--push", "me/model")
    assert done.exit_code == 1
    assert endpoint in done.stderr
    assert "refused" in done.stderr
    assert "me/model" in done.stderr
    assert (tmp_path / "x" / "model.safetensors").is_file()


def test_code_named_by_the_base_model_is_not_passed_on(
    full: tuple[Path, TrainerHost], tmp_path: Path
) -> None:
    import json

    base = tmp_path / "base"
    shutil.copytree(TINY, base)
    config = json.loads((base / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "evil.Model"}, "torch_dtype": "bfloat16"}
    (base / "config.json").write_text(json.dumps(config))
    assert run(full[0], tmp_path / "x", "--model", str(base)).exit_code == 0
    written = json.loads((tmp_path / "x" / "config.json").read_text())
    assert "auto_map" not in written
    assert "torch_dtype" not in written
    assert written["dtype"] == "float32"
