"""What all tests need."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import os
import re
import signal
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog
import typer.main
import typer.testing
from builders import ROOT, LoadBenchmark, write_model
from gguf_files import REAL
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A busy machine is no bug: no example has a deadline, and none is drawn too slowly. `make test-all`
# takes the profile "thorough"; builders.examples() follows it.
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("patient", settings.get_profile("thorough"), max_examples=25)
settings.load_profile("patient")

#: As Qwen's: turns between <|im_start|> and <|im_end|>, thinking switched off by an empty thought.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
#: Seconds of processor time, child processes included, above which a test says why it is slow.
_FAST_SECONDS = 2.0
_TEXTS = ["How many apples are left? 12 + 7 = 19", "The answer is 42.", "user\nassistant\n"] * 3


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports every test module, torch too, without looking for garbage among what stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first, so that no worker is left with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    missing = None if REAL.is_file() else pytest.mark.skip("NOT RUN: needs `make setup-real`")
    for item in items:
        if missing is not None and item.get_closest_marker("real"):
            item.add_marker(missing)
        item.user_properties.append(("loop", _loop(item)))  # `make test-times` reads it


def _loop(item: pytest.Item) -> str:
    """The smallest loop that runs a test, a target of the Makefile."""
    if item.get_closest_marker("nightly"):
        return "test-all"
    whole = item.nodeid.startswith("tests/integration/")
    slow = any(map(item.get_closest_marker, ("slow", "sites")))
    return "test" if whole or slow else "test-fast"


class SharedSetUpScheduling(LoadScopeScheduling):
    """Tests that share what their module sets up run on one worker, and others on any.

    xdist's own groups have no effect with pytest 9.2: they are written to `_nodeid`, which it no
    longer reads."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _group_of(self.config.rootpath / file) or nodeid


@cache
def _group_of(file: Path) -> str:
    """The group of a file's tests, "" if each can run anywhere."""
    text = file.read_text()
    group = re.search(r'mark\.xdist_group\("([a-z]+)"\)', text)
    if group is not None:
        return group[1]
    return str(file) if re.search(r'scope="(module|session)"', text) else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedSetUpScheduling:
    return SharedSetUpScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Notes what a test costs that is not marked slow."""
    before = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        spent = sum(os.times()[:4]) - before
        if spent > _FAST_SECONDS and item.get_closest_marker("slow") is None:
            item.user_properties.append(("costly", f"{spent:.0f} s of {item.nodeid}"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Names the tests that should say why they are slow. They may pass: a busy machine, which makes
    processor time longer, too, is nobody's fault. Says loudly what this machine could not run."""
    missing: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith("NOT RUN: "):
            missing[reason] = missing.get(reason, 0) + 1
    if missing:
        terminalreporter.section("not everything was run", sep="!")
    for reason, count in missing.items():
        terminalreporter.line(f"{reason} ({count} tests)")
    costly = {
        text
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == "costly"
    }
    if costly:
        terminalreporter.section("not marked slow, and over two seconds of processor time")
        for line in sorted(costly):
            terminalreporter.line(line)


@pytest.fixture(autouse=True, scope="module")
def _fresh_logging() -> Iterator[None]:
    """Commands set up logging for a process, to the stderr that pytest closes after their test."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True, scope="session")
def _commands_built_once() -> Iterator[None]:
    """A program builds its commands once and runs one of them. Tests run hundreds in one process,
    and building takes most of the time of a short one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def leaves_no_process() -> Iterator[None]:
    """Fails a test that leaves a child. Python's tracker of resources may be there before it."""
    before = {*psutil.Process().children(recursive=True)}
    yield
    assert {*psutil.Process().children(recursive=True)} <= before


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Path]:
    """`make_model(path, model_type="qwen2", shard="5GB", **config)` writes a model of a small shape
    as the hub has them: transformers' files, random weights, and a BPE tokenizer learnt here with a
    chat template. Two layers, 300 embeddings, 64 positions."""

    def make(path: Path, model_type: str = "qwen2", shard: str = "5GB", **changes: Any) -> Path:
        import transformers

        tokenizer = _bpe_tokenizer()
        shape: dict[str, Any] = {
            "vocab_size": 300,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16 if model_type == "qwen3" else 8,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
            "eos_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        }
        config = transformers.CONFIG_MAPPING[model_type](**{**shape, **changes})
        transformers.set_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.save_pretrained(path, max_shard_size=shard)
        tokenizer.save_pretrained(path)
        return path

    return make


def _bpe_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
    )


@pytest.fixture(scope="session")
def random_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a random Qwen2 of two layers, 64 tokens and 48 positions; do not write."""
    return write_model(tmp_path_factory.mktemp("random-qwen2"))


@pytest.fixture
def load_benchmark(monkeypatch: pytest.MonkeyPatch) -> LoadBenchmark:
    """Imports a module of benchmarks/ by its name; its neighbours can be imported for one test."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.fixture(scope="module")
def hears_ctrl_c() -> Iterator[None]:
    """Tests of a module and the processes that they start obey SIGINT, even where the tests were
    told to ignore it.

    A shell starts its background jobs so, and every child inherits it. A signal that the parent
    handles is back at its default in the child.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on a loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(inspect.unwrap(test)):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
