"""What `swarm-node export` writes, loaded with the real transformers and peft."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import edit_json
from click.testing import Result
from trained_homes import TINY, trained_home
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.families import FAMILIES
from swarm_node.policy.models.text.codec import Codec
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
def distance(host: TrainerHost, model: Any, tokenizer: Any, base: Path = TINY) -> float:
    """The largest difference of a log-prob between the trained model and a loaded one, both run in
    float64: in float32 rounding alone makes 1e-5 where a log-prob is -20."""
    ids = torch.tensor([tokenizer.encode(QUESTION, add_special_tokens=False)])
    trained = CausalLM.from_directory(base, torch.float64)
    trained.load_hf_state(host.core.weights())
    ours, theirs = trained(ids), model.double().eval()(ids).logits
    return float((ours.log_softmax(-1) - theirs.log_softmax(-1)).abs().max())


@pytest.mark.slow(reason="trains, and loads by transformers")
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
        "2 steps on 9 local and 7 ",
        "| experience.local | 4 |",
        "| environment.name | drills |",
        "| 0 | 0.125 | 0.250 |\n| 0 | 0.500 | 1.000 |",
        "arXiv 2509.08721",
        "eval reward: 0.125 at first, 0.500",
        "training prompts: 1.000",
        "torch 2.",
        "tiny",
    ):
        assert told in card
    assert f"lora_rank | {host.core.settings.lora_rank} |" in card
    assert "base_model:" not in card
    assert [path.name for path in target.parent.iterdir()] == ["export"]
    # What was exported is a model of this program too.
    again = CausalLM.from_directory(target)
    ids = torch.tensor([codec.encode_prompt(QUESTION)])
    with torch.no_grad():
        torch.testing.assert_close(again(ids), host.core.model(ids), rtol=0.0, atol=1e-4)


@pytest.mark.slow(reason="trains each family, and loads it by transformers")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_loaded_as_what_they_are(
    family: str, tmp_path: Path, make_model: Callable[..., Path]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    own = {"sliding_window": None} if "sliding_window" in FAMILIES[family].writes else {}
    base = make_model(tmp_path / "base of mine", family, **own)
    (base / "generation_config.json").unlink()
    edit_json(base / "config.json", _name_or_path=str(base))
    host, model = trained_home(tmp_path / "home", 4, base), ("--model", str(base))
    for form in ("hf", "peft"):
        assert run(tmp_path / "home", tmp_path / form, "--format", form, *model).exit_code == 0
        for file in (tmp_path / form).iterdir():
            assert str(tmp_path).encode() not in file.read_bytes()
        assert "base of mine" in (tmp_path / form / "README.md").read_text()
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert type(whole).__name__ == f"{family.capitalize()}ForCausalLM"
    assert json.loads((tmp_path / "hf/config.json").read_text())["architectures"] == [
        type(whole).__name__
    ]
    assert distance(host, whole, tokenizer, base) <= 1e-5
    untrained = AutoModelForCausalLM.from_pretrained(base)
    assert distance(host, untrained, tokenizer, base) > 1e-3
    adapted = PeftModel.from_pretrained(untrained, tmp_path / "peft")
    assert distance(host, adapted, tokenizer, base) <= 1e-5
    # The base named the end of a text alone, and the policy learnt to end its turn.
    assert {*whole.generation_config.eos_token_id} == Codec.from_directory(base).eos_ids


def test_an_adapter_of_a_model_from_no_hub_names_no_base(
    lora: tuple[Path, TrainerHost], tmp_path: Path
) -> None:
    assert run(lora[0], tmp_path, "--format", "peft").exit_code == 0
    assert not (tmp_path / "model.safetensors").exists()
    named = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (named["base_model_name_or_path"], named["revision"]) == (None, None)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("directory", "given", "revision"),
    [
        ("models--someone--tiny/snapshots/" + COMMIT, None, COMMIT),
        ("models--someone--tiny/snapshots/" + COMMIT, "someone/tiny", COMMIT),
        ("models--else--where/snapshots/" + COMMIT, "someone/tiny@v2", "v2"),
        ("mine", "someone/tiny", "main"),
    ],
)
def test_the_base_is_stated_by_its_public_name_and_revision(
    lora: tuple[Path, TrainerHost],
    tmp_path: Path,
    directory: str,
    given: str | None,
    revision: str,
) -> None:
    """A model that was fetched lies in the hub's cache."""
    base = Path(shutil.copytree(TINY, tmp_path / directory))
    options = ["--format", "peft", "--model", str(base), *(["--base", given] if given else [])]
    assert run(lora[0], tmp_path / "x", *options).exit_code == 0
    card = (tmp_path / "x/README.md").read_text()
    assert "\nbase_model: someone/tiny\n" in card
    assert str(tmp_path) not in card
    named = json.loads((tmp_path / "x/adapter_config.json").read_text())
    assert named["base_model_name_or_path"] == "someone/tiny"
    assert named["revision"] == revision


def test_a_base_that_is_no_public_name_is_refused(
    lora: tuple[Path, TrainerHost], tmp_path: Path
) -> None:
    done = run(lora[0], tmp_path / "x", "--base", str(TINY))
    assert (done.exit_code, "--base" in done.stderr) == (1, True)
    assert not (tmp_path / "x").exists()


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
    full: tuple[Path, TrainerHost], copy: Path, tmp_path: Path
) -> None:
    code = {"AutoModelForCausalLM": "evil.Model"}
    edit_json(copy / "config.json", auto_map=code, torch_dtype="bfloat16")
    assert run(full[0], tmp_path / "x", "--model", str(copy)).exit_code == 0
    written = json.loads((tmp_path / "x" / "config.json").read_text())
    assert "auto_map" not in written
    assert "torch_dtype" not in written
    assert written["dtype"] == "float32"
