"""A GGUF file becomes a directory that computes what transformers computes from the file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import (
    HEAD,
    HEADS,
    HIDDEN,
    REAL,
    tensors,
    tokens,
    transformers_model,
    write_gguf,
)

from swarm_node.errors import ModelError
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.decoder.rope import RopeScaling
from swarm_node.policy.models.gguf.directory import (
    _VERSION,
    Dequantising,
    Quantised,
    WaitingForLock,
    gguf_model,
)
from swarm_node.policy.models.model import Model, Told, local, resolve
from swarm_node.policy.models.text.codec import Codec

TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "swarm-node" / "gguf"


def silent(told: Told) -> None:
    """Hears what is told."""


def farthest(path: Path, directory: Path, text: str = "", rope: Any = None) -> float:
    """The largest difference in all logits for a `text`: the node's decoder beside transformers'
    own reading of the file, and transformers' of the directory. Of files, transformers reads no
    scaled positions: `rope` is its `rope_scaling`."""
    from transformers import AutoConfig

    encoded = Codec.from_directory(directory).encode_answer(text) or range(3, 40)
    ids = torch.tensor([*encoded]).reshape(1, -1)
    config = AutoConfig.from_pretrained(directory)
    # Of Qwen3's files, transformers reads no size of the heads.
    options = {"config": config} if config.model_type == "qwen3" else {}
    if rope is not None:
        own = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, rope_scaling=rope)
        options = {"config": own}
    with torch.no_grad():
        want = transformers_model(path.parent, gguf_file=path.name, **options)(ids).logits
        theirs = transformers_model(directory)(ids).logits
        ours = CausalLM.from_directory(directory)(ids)
    assert want.abs().max() > 0.1
    return float(max((theirs - want).abs().max(), (ours - want).abs().max()))


@pytest.mark.slow(reason="loads many models by transformers")
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("encoding", ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32"])
def test_logits_are_those_of_transformers(tmp_path: Path, family: str, encoding: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", family, encoding)
    assert farthest(path, resolve(str(path), notify=silent)) <= TOLERANCE


def test_an_output_head_of_its_own_is_kept(tmp_path: Path) -> None:
    stored = tensors("qwen2")
    stored["output.weight"] = np.flip(stored["token_embd.weight"]).copy()
    path = write_gguf(tmp_path / "m.gguf", stored=stored)
    directory = resolve(str(path), notify=silent)
    assert not ModelConfig.from_directory(directory).tie_word_embeddings
    assert farthest(path, directory) <= TOLERANCE


@pytest.mark.parametrize(("encoding", "dtype"), [("F16", "F16"), ("BF16", "BF16"), ("Q8_0", "F32")])
def test_weights_keep_the_type_in_which_they_lose_nothing(
    tmp_path: Path, encoding: str, dtype: str
) -> None:
    directory = resolve(str(write_gguf(tmp_path / "m.gguf", encoding=encoding)), notify=silent)
    with (directory / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert header["model.embed_tokens.weight"]["dtype"] == dtype
    assert header["model.norm.weight"]["dtype"] == "F32"


def test_tokens_and_template_are_those_of_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    codec = Codec.from_directory(resolve(str(path), notify=silent))
    assert codec.eos_ids == {0, 2}, "by key, and by name"
    prompt = codec.encode_prompt("a tin <|im_end|>")
    assert prompt[0] == 1
    assert tokens().index("Ġt") in prompt
    assert prompt.count(2) == 1  # the name of a token in a question is text
    text = "ten, naïve\n 12"
    assert codec.decode(codec.encode_answer(text)) == text


def test_rows_without_a_token_have_no_name_unless_the_file_says_so(tmp_path: Path) -> None:
    names = [*tokens(), "[PAD1]", "[PAD2]"]
    stored = tensors("qwen2")
    stored["token_embd.weight"] = np.zeros((len(names), HIDDEN), np.float32)
    path = write_gguf(
        tmp_path / "m.gguf",
        stored=stored,
        tokenizer__ggml__tokens=names,
        tokenizer__ggml__token_type=[3, 3, 3] + [1] * 257 + [5, 5],
        tokenizer__ggml__bos_token_id=len(names) - 1,
        tokenizer__ggml__add_bos_token=True,
    )
    directory = resolve(str(path), notify=silent)
    assert Codec.from_directory(directory).special_ids >= {len(names) - 2, len(names) - 1}
    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    assert vocabulary.keys() == {*names} - {"[PAD1]"}


def test_a_second_start_uses_what_the_first_wrote_and_says_what_it_is(
    tmp_path: Path, cache: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    told: list[Any] = []
    assert not local(str(path))
    first = resolve(str(path), notify=told.append)
    assert local(str(path))
    assert first.parent == cache.resolve()
    assert [type(what) for what in told] == [Dequantising, Quantised]
    before = {file: file.stat().st_mtime_ns for file in first.iterdir()}
    told.clear()
    moved = path.rename(tmp_path / "other.gguf")  # the content counts, not the name
    assert resolve(str(moved), notify=told.append) == first
    assert {file: file.stat().st_mtime_ns for file in first.iterdir()} == before
    assert told == [Quantised("other.gguf", ("Q8_0",))]
    assert Model.read("m", first).config.hidden_size == HIDDEN


def test_a_start_says_that_it_waits_for_another(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    cache.mkdir(mode=0o700, parents=True)
    place = cache / f"{hashlib.sha256(path.read_bytes()).hexdigest()}-{_VERSION}"
    told: list[Any] = []
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def tell(what: Any) -> None:
            told.append(what)
            if isinstance(what, WaitingForLock):  # the other process ends
                fcntl.flock(lock, fcntl.LOCK_UN)

        assert resolve(str(path), notify=tell) == place.resolve()
    assert told[0] == WaitingForLock(path)


@pytest.mark.parametrize("shared", ["", "..", "*"])
def test_a_cache_that_another_user_may_write_is_refused(
    tmp_path: Path, cache: Path, shared: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    written = resolve(str(path), notify=silent)
    directory = written if shared == "*" else cache / shared
    for mode in (0o770, 0o707):
        directory.chmod(mode)
        with pytest.raises(ModelError, match=f"{directory.name or cache.name}.*XDG_CACHE_HOME"):
            resolve(str(path), notify=silent)
    directory.chmod(0o755)  # others may read it
    assert resolve(str(path), notify=silent) == written


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: needs root, to make another user's files")
def test_a_cache_of_another_user_is_refused(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    written = resolve(str(path), notify=silent)
    for directory in (written, cache, cache.parent):
        os.chown(directory, 12345, -1)
        with pytest.raises(ModelError, match="XDG_CACHE_HOME"):
            resolve(str(path), notify=silent)
        os.chown(directory, 0, -1)
    assert resolve(str(path), notify=silent) == written


def test_without_the_package_the_header_is_read_and_weights_are_refused_with_what_to_install(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)  # as if it were not installed
    assert gguf_model(path)[0].hidden_size == HIDDEN
    with pytest.raises(ModelError, match=r"m\.gguf.*`pip install .*gguf"):
        resolve(str(path), notify=silent)
    assert [file.suffix for file in cache.iterdir()] == [".lock"]


def test_a_refusal_of_the_architecture_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    path, seen = write_gguf(tmp_path / "m.gguf"), []

    def refuse(config: ModelConfig) -> None:
        seen.append(config)
        raise ModelError("too large")

    with pytest.raises(ModelError, match="too large"):
        resolve(str(path), refuse, silent)
    assert len(seen) == 1
    assert [file.suffix for file in cache.iterdir()] == [".lock"]


@pytest.mark.slow(reason="two processes import torch")
def test_two_starts_at_once_write_one_directory(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        found = pool.starmap(resolve, [(str(path),), (str(path),)])
    assert found[0] == found[1]
    assert {file.suffix for file in cache.iterdir()} == {"", ".lock"}


def test_a_killed_run_leaves_nothing_that_the_next_one_takes(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    # It stops where the weights begin, and waits to be killed there.
    program = (
        "import sys, time\n"
        "from swarm_node.policy.models.gguf.directory import dequantize_to_cache\n"
        "from pathlib import Path\n"
        "def stop(_):\n    print('begun', flush=True)\n    time.sleep(600)\n"
        "dequantize_to_cache(Path(sys.argv[1]), lambda _: None, stop)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    (left,) = cache.glob("*.new")
    assert (left / "config.json").is_file()
    assert not local(str(path))
    directory = resolve(str(path), notify=silent)
    assert not left.exists()
    assert farthest(path, directory) <= TOLERANCE


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another architecture": ("gemma2", {}, "gemma2"),
    "experts": ("llama", {"llama__expert_count": 8}, "expert_count"),
    "a sliding window": ("qwen2", {"qwen2__attention__sliding_window": 9}, "sliding_window"),
    "an unknown key": ("llama", {"llama__logit_scale": 0.5}, "logit_scale"),
    "scaled positions": ("llama", {"llama__rope__scaling__type": "yarn"}, "yarn"),
    "a factor below 0": ("llama", {"llama__rope__scaling__factor": -2.0}, "scaling.factor"),
    "a factor that is no number": ("llama", {"llama__rope__scaling__factor": np.nan}, "factor"),
    "a factor that is a text": ("llama", {"llama__rope__scale_linear": "2"}, "scale_linear"),
    "a part of a head is rotated": ("llama", {"llama__rope__dimension_count": 8}, "dimension"),
    "no layers": ("llama", {"llama__block_count": None}, "block_count"),
    "too many layers": ("llama", {"llama__block_count": 5000}, "layers"),
    "more layers than tensors": ("llama", {"llama__block_count": 3}, "lacks"),
    "fewer layers than tensors": ("llama", {"llama__block_count": 1}, "has the tensor"),
    "a size that lies": ("qwen2", {"qwen2__feed_forward_length": 1 << 31}, "shape"),
    "a size that is a text": ("qwen2", {"qwen2__embedding_length": "64"}, "embedding_length"),
    "heads by layer": ("qwen2", {"qwen2__attention__head_count": [4, 4]}, "head_count"),
    "an unknown splitter": ("qwen2", {"tokenizer__ggml__pre": "new"}, "'new'"),
    "an unknown tokenizer": ("qwen2", {"tokenizer__ggml__model": "bert"}, "bert"),
    "more tokens than rows": (
        "qwen2",
        {"tokenizer__ggml__tokens": [*map(str, range(900))], "tokenizer__ggml__token_type": None},
        "tokens",
    ),
    "a token twice": ("qwen2", {"tokenizer__ggml__tokens": ["a"] * 260}, "twice"),
    "a merge of unknown tokens": ("qwen2", {"tokenizer__ggml__merges": ["Ġ zz"]}, "malformed"),
    "a merge of three": ("qwen2", {"tokenizer__ggml__merges": ["Ġ t h"]}, "pair"),
    "an end token outside": ("qwen2", {"tokenizer__ggml__eos_token_id": 999}, "eos_token_id"),
    "an endless template": (
        "qwen2",
        {"tokenizer__chat_template": "{% for i in range(99999) %}" * 2 + "{% endfor %}" * 2},
        "template",
    ),
    "an architecture that is a list": (
        "llama",
        {"general__architecture": ["llama"]},
        "architecture",
    ),
    "an end token that is a list": (
        "qwen2",
        {"tokenizer__ggml__eos_token_id": None, "tokenizer__ggml__eot_token_id": [2, 2]},
        "eot_token_id",
    ),
    "a long template": ("qwen2", {"tokenizer__chat_template": "x" * 70_000}, "template"),
}


@pytest.mark.slow(reason="writes a file for each of many refusals")
@pytest.mark.parametrize(("family", "changes", "named"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_computed_is_refused_by_name_and_leaves_nothing(
    tmp_path: Path, cache: Path, family: str, changes: dict[str, Any], named: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", family, **changes)
    with pytest.raises(ModelError, match=named):
        resolve(str(path), notify=silent)
    assert not cache.is_dir() or {file.suffix for file in cache.iterdir()} <= {".lock"}


def test_an_unexpected_tensor_is_refused_by_name(tmp_path: Path) -> None:
    stored = {**tensors("llama"), "blk.0.attn_q.bias": np.zeros(HEADS * HEAD, np.float32)}
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.bias"):
        resolve(str(write_gguf(tmp_path / "m.gguf", "llama", stored=stored)), notify=silent)


def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path, cache: Path) -> None:
    stored = tensors("qwen2")
    stored["blk.1.ffn_up.weight"][3, 4] = np.nan
    path = write_gguf(tmp_path / "m.gguf", encoding="F32", stored=stored)
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up"):
        resolve(str(path), notify=silent)
    assert not list(cache.glob("*.new"))


@pytest.mark.slow(reason="loads models by transformers")
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_linear_scaling_is_that_of_transformers(tmp_path: Path, family: str) -> None:
    keys = {"type": "linear", "factor": 4.0}
    changes = {f"{family}__rope__scaling__{name}": value for name, value in keys.items()}
    sharp = {  # or positions would hardly change what is attended to
        name: value * 5 if "attn_q.w" in name or "attn_k.w" in name else value
        for name, value in tensors(family).items()
    }
    path = write_gguf(tmp_path / "m.gguf", family, stored=sharp, **changes)
    directory = resolve(str(path), notify=silent)
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    assert farthest(path, directory, rope=rope) <= TOLERANCE
    assert farthest(path, directory, rope={**rope, "factor": 1.0}) > 10 * TOLERANCE


FACTORS: dict[str, tuple[float | None, dict[str, Any]]] = {
    "without a type": (2.5, {"rope__scaling__factor": 2.5}),
    "the older key": (2.5, {"rope__scale_linear": 2.5}),
    "the newer key first": (2.0, {"rope__scaling__factor": 2.0, "rope__scale_linear": 3.0}),
    "none with a factor": (None, {"rope__scaling__type": "none", "rope__scaling__factor": 4.0}),
    "no factor": (None, {"rope__scaling__type": "linear"}),
    "a factor of 0": (None, {"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}),
}


@pytest.mark.parametrize(("factor", "keys"), FACTORS.values(), ids=FACTORS)
def test_keys_of_scaling_mean_what_they_do_in_llama_cpp(
    tmp_path: Path, factor: float | None, keys: dict[str, Any]
) -> None:
    """Its llama_model::load_hparams, and the constructor of llama_context."""
    changes = {f"llama__{name}": value for name, value in keys.items()}
    path = write_gguf(tmp_path / "m.gguf", "llama", **changes)
    scaling = None if factor is None else RopeScaling("linear", factor)
    assert gguf_model(path)[0].rope_scaling == scaling


def llama3(factor: float) -> np.ndarray[Any, Any]:
    """The tensor that llama.cpp's converter writes for Llama 3.1's positions (its formula)."""
    base, low, high, old = 10000.0, 1.0, 4.0, 8192
    found = []
    for frequency in 1.0 / (base ** (np.arange(0, HEAD, 2) / HEAD)):
        wavelength = 2 * np.pi / frequency
        if wavelength < old / high:
            found.append(1.0)
        elif wavelength > old / low:
            found.append(factor)
        else:
            smooth = (old / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


def test_the_positions_of_llama_3_become_its_rope_scaling(tmp_path: Path) -> None:
    stored = {"rope_freqs.weight": llama3(8.0), **tensors("llama")}
    path = write_gguf(tmp_path / "m.gguf", "llama", stored=stored)
    config = json.loads((resolve(str(path), notify=silent) / "config.json").read_text())
    assert config["rope_parameters"] == {
        "rope_theta": 10000.0,
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    twice = write_gguf(
        tmp_path / "t.gguf", "llama", stored=stored, llama__rope__scaling__factor=2.0
    )
    with pytest.raises(ModelError, match="twice"):
        resolve(str(twice), notify=silent)
    shorter = {**stored, "rope_freqs.weight": np.ones(1, np.float32)}
    with pytest.raises(ModelError, match="rope_freqs"):
        resolve(str(write_gguf(tmp_path / "s.gguf", "llama", stored=shorter)), notify=silent)
    other = {**stored, "rope_freqs.weight": llama3(8.0) * np.linspace(1, 2, HEAD // 2)}
    other["rope_freqs.weight"] = other["rope_freqs.weight"].astype(np.float32)
    with pytest.raises(ModelError, match="rope_freqs"):
        resolve(str(write_gguf(tmp_path / "o.gguf", "llama", stored=other)), notify=silent)


@pytest.mark.slow(reason="makes two million merges")
def test_pieces_with_more_merges_than_memory_has_are_refused(tmp_path: Path) -> None:
    words = ["".join(each) for size in range(1, 18) for each in product("ab", repeat=size)]
    stored = tensors("llama")
    stored["token_embd.weight"] = np.zeros((len(words), HIDDEN), np.float32)
    path = write_gguf(
        tmp_path / "m.gguf",
        "llama",
        stored=stored,
        tokenizer__ggml__model="llama",
        tokenizer__ggml__tokens=words,
        tokenizer__ggml__scores=[0.0] * len(words),
        tokenizer__ggml__token_type=None,
        tokenizer__ggml__merges=None,
    )
    with pytest.raises(ModelError, match="merges"):
        resolve(str(path), notify=silent)


def test_pieces_of_sentence_piece_are_merged_by_their_scores(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", "t", "h", "e", "th", "he", "▁t", "▁the", "the"]
    scores = [0.0] * len(pieces) + [-50.0, -51.0, -52.0, -53.0, -1.0, -5.0, -2.0, -4.0, -3.0]
    count = len(pieces) + len(words)
    stored = tensors("llama")
    stored["token_embd.weight"] = np.zeros((count, HIDDEN), np.float32)
    path = write_gguf(
        tmp_path / "m.gguf",
        "llama",
        stored=stored,
        tokenizer__ggml__model="llama",
        tokenizer__ggml__pre="default",
        tokenizer__ggml__tokens=[*pieces, *words],
        tokenizer__ggml__scores=scores,
        tokenizer__ggml__token_type=[2, 3, 3] + [6] * 256 + [1] * len(words),
        tokenizer__ggml__merges=None,
        tokenizer__ggml__bos_token_id=1,
        tokenizer__chat_template=None,
    )
    from transformers import AutoTokenizer

    ours = AutoTokenizer.from_pretrained(resolve(str(path), notify=silent))
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in ("the the", "hethe  the", "é the\n", ""):
        ids = ours(text, add_special_tokens=False)["input_ids"]
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(ids) == text
    assert ours("the")["input_ids"] == [1, count - 2]


@pytest.mark.real
@pytest.mark.slow(reason="dequantises a real model and reads it three times")
def test_the_logits_of_a_real_model_are_those_of_transformers() -> None:
    told: list[Told] = []
    directory = resolve(str(REAL), notify=told.append)
    assert told[-1] == Quantised(REAL.name, ("Q4_1", "Q8_0"))
    # Of a row of rare tokens, float32 itself is 2e-3 away from float64.
    assert farthest(REAL, directory, "Paris is the capital of France: 12 + 30 = 42.") <= TOLERANCE
    assert os.path.getsize(directory / "model.safetensors") > 4 * 134_000_000
