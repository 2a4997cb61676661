"""Hostile model directories: each is refused in a sentence, soon and within little memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import edit_json

from swarm_node.errors import ModelError
from swarm_node.policy.models.bounds import MAX_TEMPLATE_CHARS, check_template
from swarm_node.policy.models.config import read_json

MOST_BYTES = 300 << 20
#: Of its own processor time; a busy machine takes longer.
MOST_SECONDS = 5.0
#: Reads a directory in a process of its own for each line, and answers with the exit code, what was
#: said on stderr, and the processor time, that of further processes included.
PROGRAM = f"""
import json, os, resource, sys, tempfile
from swarm_node.errors import ModelError
from swarm_node.policy.models.model import resolve

for line in sys.stdin:
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            os.dup2(said.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_DATA, ({MOST_BYTES}, {MOST_BYTES}))
            try:
                resolve(json.loads(line))
            except ModelError as error:
                sys.exit(f"refused: {{error}}")
            sys.exit(0)
        _, status, used = os.wait4(pid, 0)
        said.seek(0)
        text = said.read().decode()
    seconds = used.ru_utime + used.ru_stime
    print(json.dumps([os.waitstatus_to_exitcode(status), text, seconds]), flush=True)
"""


@pytest.fixture(scope="module")
def resolver() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported what the reader of directories needs."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def config(**values: int) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "config.json", **values)


def template(text: str) -> Callable[[Path], None]:
    return lambda directory: (directory / "chat_template.jinja").write_text(text) and None


def many_tensors(directory: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"t{index}": entry for index in range(50_000)}).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def long_header(directory: Path) -> None:
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 1 << 30))
        file.truncate(2 << 30)


def deep(name: str, levels: int) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / name).write_text('{"a":' + "[" * levels + "]" * levels + "}")

    return write


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "deep config": (deep("config.json", 100_000), "nested deeper than 64"),
    "deep tokenizer": (deep("tokenizer.json", 900), "nested deeper than 64"),
    "deep settings": (deep("tokenizer_config.json", 65), "nested deeper than 64"),
    "many lists": (
        lambda d: (d / "tokenizer.json").write_text('{"a":[' + "[]," * 5_000_000 + "0]}") and None,
        "which no model needs",
    ),
    "many keys": (
        lambda d: (
            (d / "tokenizer.json").write_text(
                "{" + ",".join(f'"{n:x}":0' for n in range(2_500_000)) + "}"
            )
            and None
        ),
        "which no model needs",
    ),
    "layers": (config(num_hidden_layers=10**9), "at most 1024 run"),
    "some layers": (config(num_hidden_layers=1000), "do not belong"),
    "width": (config(intermediate_size=1 << 30), "do not belong"),
    "tensors": (many_tensors, "a model of"),
    "header": (long_header, "its header has"),
    "template in memory": (
        template("{% set x = namespace(s='a') %}{% for i in range(99) %}{% set x.s = x.s + x.s %}"
                 "{% endfor %}"),
        "MiB to render",
    ),
    "template in time": (
        template("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
        "used up its CPU time",
    ),
    "template in words": (
        template("{% for i in range(99999) %}0123456789{% endfor %}"),
        "as more than",
    ),
    "long template": (template("a" * (MAX_TEMPLATE_CHARS + 1)), "has more than"),
}  # fmt: skip


@pytest.mark.slow(reason="a process reads many large directories")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_directory_is_refused_in_a_sentence_soon_and_in_little_memory(
    resolver: subprocess.Popen[str], copy: Path, name: str
) -> None:
    change, why = HOSTILE[name]
    change(copy)
    assert resolver.stdin is not None
    print(json.dumps(str(copy)), file=resolver.stdin, flush=True)
    code, said, seconds = json.loads(resolver.stdout.readline())
    assert code == 1
    assert said.startswith("refused: "), said[-500:]
    assert why in said
    assert len(said) < 500
    assert seconds < MOST_SECONDS


def test_depth_is_counted_to_the_level(tmp_path: Path) -> None:
    for levels, fits in ((63, True), (64, False)):
        deep("a.json", levels)(tmp_path)
        if fits:
            assert read_json(tmp_path / "a.json")
        else:
            with pytest.raises(ModelError, match="deeper than 64"):
                read_json(tmp_path / "a.json")


def test_templates_of_models_in_use_pass() -> None:
    check_template(
        "{%- if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}"
        "{{ '<|im_start|>' + message.role + '\\n' }}{% generation %}{{ message.content }}"
        "{% endgeneration %}{{ '<|im_end|>\\n' }}{% if loop.last %}{% break %}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    check_template("{{ raise_exception('the codec says so') }}")  # refused where it is used
