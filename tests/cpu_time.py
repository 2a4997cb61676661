"""A bound on CPU seconds that a busy machine does not break."""

import gc
import time
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def within(seconds: float, call: Callable[[], R], what: object = "") -> R:
    """The result of `call`; an error if it uses `seconds` of CPU or more on this thread.

    Garbage of other tests is not collected meanwhile. There is one attempt: a second could find
    the caches of sympy filled, and pass whatever the first one costs.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        start = time.thread_time()
        result = call()
        used_seconds = time.thread_time() - start
    finally:
        if is_collecting:
            gc.enable()
    assert used_seconds < seconds, f"{what!r} takes {used_seconds:.2f} s of CPU, of {seconds} s"
    return result
