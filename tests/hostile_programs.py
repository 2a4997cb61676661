"""Programs of peers that want a reward without an answer, or harm, for tests and a benchmark."""

from __future__ import annotations

from typing import Any

#: What scored 1.0 where program and tests shared an interpreter.
CHEATS = {
    "reads the tests from a frame": """\
import sys
frame = sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
        if isinstance(value, (list, tuple)):
            for pair in value:
                print(pair[-1])
    frame = frame.f_back
""",
    "prints what equals everything": """\
class Right(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
print(Right("?"))
""",
    "replaces builtins": """\
import builtins, sys
builtins.all = builtins.any = lambda values: True
builtins.print = lambda *words: sys.__stdout__.write("1.0\\n")
""",
    "poisons the next": """\
import os, sys
sys.stdout.flush()
os.write(1, b"")
for place in ("/usr/local/lib/python315.zip", "/usr/local/lib/sitecustomize.py", "/tmp/next.py"):
    try:
        open(place, "w").write("print(1)")
    except OSError:
        pass
sys.modules["builtins"].input = lambda: "0 0"
""",
}
#: What takes without end, or reaches outside.
HOSTILE = {
    "endless loop": "while True: pass",
    "huge integer": "print(10 ** (10 ** 7) % 7)",
    "digits of a huge integer": (
        "import sys\nsys.set_int_max_str_digits(0)\nprint(len(str(7 ** 3_000_000)))"
    ),
    "catastrophic expression": "import re\nre.match('(a+)+$', 'a' * 28 + 'b')",
    "memory bomb": "kept = []\nwhile True: kept.append(bytearray(10_000_000))",
    "fills memory again and again": "while True: bytes(100_000_000)",
    "fork": "import os\nos.fork()",
    "shell": "import os\nos.system('id')",
    "child": "import subprocess\nprint(subprocess.run(['id'], capture_output=True).stdout)",
    "socket": "import socket\nsocket.create_connection(('127.0.0.1', 22))",
    "reads a file": "print(open('/etc/passwd').read())",
    "writes a file": "open('/tmp/x', 'w').write('x')",
    "ctypes": "import ctypes\nprint(ctypes.CDLL(None))",
    "door to the host": "import host\nfor name in dir(host):\n    print(getattr(host, name)(b''))",
    "output flood": "while True: print('x' * 1000)",
    "flood of errors": "import sys\nwhile True: sys.stderr.write('x' * 1000)",
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef deeper(n): return deeper(n + 1)\ndeeper(0)"
    ),
    "nested list": (
        "import sys\nsys.setrecursionlimit(10 ** 9)\nnest = []\n"
        "for _ in range(10 ** 6): nest = [nest]\nprint(len(repr(nest)))"
    ),
    "nested source": "eval('(' * 100_000 + ')' * 100_000)",
    "leaves at once": "import sys\nsys.exit(0)",
    "leaves at once, below Python": "import os\nos._exit(0)",
    "waits for the clock": "import time\nbegan = time.time()\nwhile time.time() < began + 1: pass",
    "time as answer": "import time\ntime.sleep(1000)\nprint(time.time(), time.perf_counter())",
    "chance as answer": "import os, random\nprint(random.random(), os.urandom(8).hex())",
    "drains entropy": "import os\nwhile True: os.urandom(1 << 20)",
    "threads": (
        "import threading\nfor _ in range(1000): threading.Thread(target=print, args=(1,)).start()"
    ),
    "reads the library again and again": (
        "while True: open('/usr/local/lib/python315.zip', 'rb').read()"
    ),
    "closes everything": "import os\nos.closerange(0, 256)",
    "interpreter's own memory": "import gc\nprint([one for one in gc.get_objects() if one == 69])",
    "half a program": "print(",
}


def sums(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Rows of an exam: each wants a multiple of the first number, plus the second. The question
    shows an example that is no test."""
    rows = []
    for factor in range(first + 2, first + 2 + count):
        pairs = [(factor % 7 + test, 100 * test + 13) for test in range(3)]
        rows.append(
            {
                "question": f"Print {factor} times a plus b. For 1 0 that is {factor}.",
                "inputs": [f"{a} {b}\n" for a, b in pairs],
                "outputs": [f"{factor * a + b}\n" for a, b in pairs],
            }
        )
    return rows


def honest(question: str) -> str:
    """The right program for one of `sums`."""
    return f"a, b = map(int, input().split())\nprint({question.split()[1]} * a + b)"


def examples_only(question: str) -> str:
    """A program that prints the example of a question."""
    return f"print({question.split()[1]})"
