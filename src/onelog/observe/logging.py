"""The log that people and log collectors read: one event per line, on stderr.

Rules: `get_logger("area")` at module level, an event name in plain words, facts as keywords. No
logging per message: a filtered call still costs a microsecond. Peers can cause as many events as
they like, and each line costs the event loop 50 µs: so an event below `error` is written
`LINES_PER_SECOND` times a second at most, and its next line says how many were left out. Libraries
that use the standard `logging` module come out in the same format.
"""

from __future__ import annotations

import logging
import sys
from time import monotonic
from typing import Any, Final, TextIO, cast

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger, Processor

_LIBRARY_LEVEL = logging.WARNING
"""Least level taken from libraries: what they say below it is noise to an operator."""


class _Threshold:
    """The least level that is written; it may change while the process runs."""

    number = logging.INFO

    def __call__(
        self, _logger: Any, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if _NUMBERS.get(method, logging.ERROR) < self.number:
            raise structlog.DropEvent
        return event


LINES_PER_SECOND: Final = 20
"""Lines of one event of one area in a second, at most."""
EVENTS_MAX: Final = 1_000
"""Events whose lines are counted; names of events are constants, so these are enough."""


class _Flood:
    """Leaves out lines of an event that comes too often."""

    def __init__(self) -> None:
        self._counts: dict[tuple[object, object], list[float]] = {}
        """By area and event: when its second began, lines since then, lines that were left out."""

    def __call__(
        self, _logger: Any, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if _NUMBERS.get(method, logging.ERROR) >= logging.ERROR:
            return event
        key = (event.get("area"), event.get("event"))
        row = self._counts.get(key)
        now = monotonic()
        if row is None or now - row[0] >= 1.0:
            left_out = 0 if row is None else int(row[2])
            if row is None and len(self._counts) >= EVENTS_MAX:
                self._counts.clear()
            self._counts[key] = [now, 1, 0]
            if left_out:
                event["left_out"] = left_out
            return event
        if row[1] >= LINES_PER_SECOND:
            row[2] += 1
            raise structlog.DropEvent
        row[1] += 1
        return event


_NUMBERS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
}
_threshold = _Threshold()


def configure_logging(level: str, style: str, stream: TextIO | None = None) -> None:
    """Send events of `level` and above to `stream` (stderr), as "console", "json" or "auto"."""
    out = sys.stderr if stream is None else stream
    if style == "auto":
        style = "console" if out.isatty() else "json"
    stamps: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer = _renderers(style, colors=out.isatty())
    structlog.configure(
        processors=[_threshold, _Flood(), *stamps, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
            foreign_pre_chain=[*stamps, _name_library],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    change_log_level(level)


def change_log_level(level: str) -> None:
    """Write events of `level` and above from now on."""
    _threshold.number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(max(_threshold.number, _LIBRARY_LEVEL))


def log_level() -> str:
    """The least level that is written."""
    return logging.getLevelName(_threshold.number).lower()


def get_logger(area: str) -> FilteringBoundLogger:
    """A logger whose events carry `area`. Cheap; it takes its settings at the first event."""
    return cast("FilteringBoundLogger", structlog.get_logger(area=area))


def _renderers(style: str, *, colors: bool) -> list[Processor]:
    if style == "json":
        return [
            structlog.processors.format_exc_info,
            _facts_last,
            structlog.processors.JSONRenderer(_to_json),
        ]
    return [structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0)]


def _to_json(event: Any, **_options: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()


def _facts_last(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    first = {key: event[key] for key in ("timestamp", "level", "area", "event") if key in event}
    return {**first, **event}


def _name_library(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    record = event.get("_record")
    if record is not None:
        event["area"] = record.name
    return event
