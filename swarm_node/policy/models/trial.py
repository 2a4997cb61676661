"""A child that renders one chat template once, within limits, and says what went beyond them.

    python -I trial.py TEMPLATE

It renders as transformers does: the same sandbox of Jinja with the same extensions. It ends with 0
also if the template fails: the codec says that with the reason. It imports nothing of the package,
so that it starts fast.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 2
MORE_MEMORY_BYTES = 128 << 20
MOST_CHARS = 1 << 18
_QUESTION, _ANSWER = "question " * 64, "answer " * 64


class _Generation(Extension):
    """transformers' tag around answers; here it only passes them on."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own name and type

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(reason: str) -> NoReturn:
    print(reason)
    raise SystemExit(1)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _render(template: str) -> None:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals.update(raise_exception=_raise, strftime_now=lambda form: form)
    renderer = environment.from_string(template)
    question = [{"role": "user", "content": _QUESTION}]
    for messages in (question, [*question, {"role": "assistant", "content": _ANSWER}]):
        length = 0
        for part in renderer.generate(
            messages=messages,
            add_generation_prompt=len(messages) == 1,
            enable_thinking=False,
            eos_token="",
            bos_token="",
        ):
            length += len(part)
            if length > MOST_CHARS:
                _refuse(f"it renders a short question as more than {MOST_CHARS} characters")


def _limit() -> None:
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MORE_MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))


if __name__ == "__main__":
    if sys.platform == "linux":
        _limit()
    try:
        _render(sys.argv[1])
    except MemoryError:
        _refuse(f"it takes more than {MORE_MEMORY_BYTES >> 20} MiB to render a short question")
    except RecursionError:
        _refuse("it nests too deeply")
    except Exception:  # noqa: BLE001, S110 - the codec meets it again, and says it with the reason
        pass
