"""A bound on CPU seconds that a busy machine does not break."""

import time
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")
_ATTEMPTS = 3


def within(seconds: float, call: Callable[[], R], what: object = "") -> R:
    """The result of `call`; an error if each of three attempts uses `seconds` of CPU or more.

    A garbage collection or a cold cache may slow one attempt down; a slow algorithm slows all.
    """
    used = []
    for _ in range(_ATTEMPTS):
        begun = time.thread_time()
        result = call()
        used.append(time.thread_time() - begun)
        if used[-1] < seconds:
            return result
    raise AssertionError(f"{what!r} takes {min(used):.2f} s of CPU, of {seconds} s")
