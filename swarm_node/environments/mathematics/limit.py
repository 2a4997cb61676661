"""Ends a comparison that takes too much processor time."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

#: Processor seconds for one comparison as mathematics, after which the answer counts as wrong.
MATH_SECONDS = 0.5


class _TooSlowError(BaseException):
    """Error of the time limit. It is no `Exception`, because sympy and math-verify catch those in
    many places."""


def quieten() -> None:
    """Keep the libraries from logging the errors that a text causes."""
    for name in ("math_verify", "latex2sympy2_extended", "sympy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def within_time(call: Callable[[], bool]) -> bool:
    """Return the result of `call`, or False after `MATH_SECONDS` of processor time.

    math-verify's own time limit is an alarm of wall-clock time. This one is of processor time, so
    that a busy machine makes no answer wrong. In any other thread than the main one nothing can be
    interrupted, and there is no limit."""
    quieten()
    if threading.current_thread() is not threading.main_thread():
        return call()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _TooSlowError

    # An exception that a signal raises in a garbage collection is lost, and in a large process a
    # collection takes up to a second. So the collector is off meanwhile.
    collects = gc.isenabled()
    gc.disable()
    old_handler = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        # Repeated, because sympy may swallow one.
        signal.setitimer(signal.ITIMER_VIRTUAL, MATH_SECONDS, MATH_SECONDS)
        return call()
    except _TooSlowError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, old_handler)
        if collects:
            gc.enable()
