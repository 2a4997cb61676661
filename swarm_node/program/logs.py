"""Log lines on stderr, for a terminal or the service manager, and in `node.log` in the home."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Literal

import structlog

from swarm_node.durable import Journal
from swarm_node.errors import reason_of
from swarm_node.program.commands import printable

LogFormat = Literal["auto", "text", "json"]
#: Two files of this size are kept.
MAX_LOG_BYTES = 4 << 20
#: The text for people that an event may carry in place of its fields.
SENTENCE = "sentence"
_Event = MutableMapping[str, Any]


def set_up_logging(
    verbose: bool,
    log_format: LogFormat = "auto",
    *,
    warnings_only: bool = False,
    forwards: bool = True,
) -> None:
    """Log to stderr, because stdout is the reply. Each event is a line of text or a JSON object.
    hivemind's warnings are logged, too, if it `forwards` the standard library's. With
    `warnings_only`, other events go into the log file alone."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _keep,
            *([_only_warnings] if warnings_only else []),
            as_json if log_format == "json" else as_text,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.DEBUG if verbose else logging.INFO
        ),
        logger_factory=lambda *_: _Stderr(),
    )
    root = logging.getLogger()
    if forwards and not any(isinstance(handler, _Forward) for handler in root.handlers):
        root.addHandler(_Forward())


def keep_log(journal: Journal | None) -> None:
    """Write every event into `journal` from now on, as JSON. None writes none."""
    _ProcessJournal.journal = journal


def as_text(_: object, __: str, event: _Event) -> str:
    """Format an event as one line: time, event, fields. Control characters are replaced."""
    timestamp, level = event.pop("timestamp"), event.pop("level")
    message, sentence, trace = (
        event.pop("event"),
        event.pop(SENTENCE, None),
        event.pop("exception", ""),
    )
    fields = " ".join(f"{key}={_format_value(value)}" for key, value in event.items())
    words = [timestamp[:19] + "Z", level.upper() if level != "info" else "", str(message)]
    line = " ".join(filter(None, [*words, fields if sentence is None else str(sentence)]))
    return "\n".join(map(printable, [line, *str(trace).splitlines()]))


def as_json(_: object, __: str, event: _Event) -> str:
    """An event as a JSON object."""
    return json.dumps({key: value for key, value in event.items() if key != SENTENCE}, default=str)


def line_of(line: bytes, as_is: bool) -> str:
    """Format a line of the log in the home: unchanged (`as_is`), or for people."""
    text = line.decode("utf-8", "replace").rstrip("\n")
    try:
        event = json.loads(text)
        return text if as_is else as_text(None, "", event)
    except (ValueError, KeyError, AttributeError):  # a crash cut it
        return printable(text)


def _format_value(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text


def _keep(_: object, __: str, event: _Event) -> _Event:
    if _ProcessJournal.journal is not None:
        with suppress(OSError):  # a full disk ends no node, and the line still goes to stderr
            _ProcessJournal.journal.append(as_json(_, __, event).encode("utf-8", "replace"))
    return event


def _only_warnings(_: object, __: str, event: _Event) -> _Event:
    if event["level"] in ("debug", "info"):
        raise structlog.DropEvent
    return event


class _ProcessJournal:
    """The journal of the process: structlog is configured per process, so the journal is, too."""

    journal: Journal | None = None


class _Unwritten:
    """The lines that stderr did not take since the last one that it took, and the reason."""

    lines = 0
    reason = ""


class _Stderr:
    """Writes to the current `sys.stderr`, because a live view replaces it to draw lines above
    itself. A full disk or a reader that is gone ends no node: once a line can be written, another
    says how many could not."""

    def msg(self, message: str) -> None:
        try:
            print(message, file=sys.stderr, flush=True)
        except OSError as error:
            _Unwritten.lines, _Unwritten.reason = _Unwritten.lines + 1, reason_of(error)
            return
        if _Unwritten.lines:
            lines, _Unwritten.lines = _Unwritten.lines, 0
            _log.warning("log entries were not written", lines=lines, reason=_Unwritten.reason)

    debug = info = warning = error = critical = exception = msg


class _Forward(logging.Handler):
    """Forwards records of the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.log(record.levelno, record.getMessage(), logger=record.name)


_log = structlog.get_logger(__name__)
