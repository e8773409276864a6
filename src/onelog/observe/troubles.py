"""Troubles: failures that the broker survived and that an operator must see.

Rules:
- Code that calls a list of listeners, waiters or hooks isolates each call and reports to this
  register. `note` and `stand` never raise.
- An *incident* (`note`) happened: a listener raised at a record. Incidents are counted by kind. The
  log shows the first incident of a kind and place, then at most one in `LOG_EVERY_S` seconds, so
  that a poisoned stream cannot fill the log.
- A *standing* trouble (`stand`) lasts until `clear`: a protocol that could not start, a disk that
  is full. It keeps the process from being ready only if `blocks` says so.
- A failure that explains itself has no traceback in the log: a store that is away, a full disk, a
  broker that was replaced. The log has the last one once, not for each partition and cursor.
- The register is bounded (`PLACES_MAX`), whatever peers provoke. So are the facts of the last
  incident at a place, such as offset and topic (`FACTS_MAX`, `FACT_CHARS_MAX`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import ColdUnavailable, StorageFull, StoreFenced
from onelog.observe.logging import get_logger
from onelog.observe.metrics import Sample

LOG_EVERY_S: Final = 10.0
PLACES_MAX: Final = 256
FACTS_MAX: Final = 8
FACT_CHARS_MAX: Final = 200
_OTHER: Final = "elsewhere"
"""The place of incidents beyond the bound."""
_TEXT_CHARS_MAX: Final = 500

_EXPLAINED: Final = (StoreFenced, ColdUnavailable, StorageFull)
"""Failures whose words say all: where in the code they came up tells nobody anything."""

_log = get_logger("troubles")


class Trouble(msgspec.Struct, kw_only=True):
    """One thing that went wrong at one place."""

    kind: str
    """The kind of failure, from a fixed list in the code: `live-listener`, `disk-full`…"""
    place: str
    """Where: `main/3`, `amqp`."""
    error: str
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    standing: bool = False
    blocks: bool = False
    """Whether the process is not ready while it stands."""
    logged_at: float = float("-inf")
    facts: dict[str, str | int] = {}
    """Facts of the last incident here: offset, topic and others."""


class Troubles:
    """The register of one process."""

    __slots__ = ("_clock", "_counts", "_fences", "_rows")

    def __init__(self, clock: Clock) -> None:
        self._fences: set[str] = set()
        """What the log says already of chains that others took over."""
        self._clock = clock
        self._rows: dict[tuple[str, str], Trouble] = {}
        self._counts: dict[str, int] = {}

    def note(self, kind: str, place: str, error: BaseException, **facts: object) -> None:
        """An incident: it is over, what it touched was left out."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        row = self._row(kind, place, error)
        row.facts = _bounded(facts)
        now = self._clock.monotonic()
        if isinstance(error, StoreFenced) and self._is_told(_text_of(error)):
            return
        if now - row.logged_at >= LOG_EVERY_S:
            row.logged_at = now
            _log.error(
                "isolated a failure",
                kind=kind,
                place=place,
                error=_text_of(error),
                count=row.count,
                exc_info=None if isinstance(error, _EXPLAINED) else error,
                **row.facts,
            )

    def _is_told(self, text: str) -> bool:
        """Whether the log has these words about a fence; from now on it has."""
        if text in self._fences:
            return True
        if len(self._fences) < PLACES_MAX:
            self._fences.add(text)
        return False

    def tell(self, kind: str, listeners: Iterable[Callable[..., object]], *facts: object) -> None:
        """Call every listener, whichever of them raises: that is an incident at its name."""
        for listener in tuple(listeners):
            try:
                listener(*facts)
            except Exception as error:  # noqa: BLE001 - the other listeners are still called
                self.note(kind, getattr(listener, "__qualname__", repr(listener)), error)

    def stand(self, kind: str, place: str, error: BaseException | str, *, blocks: bool) -> None:
        """A condition that lasts from now on; told in the log when it begins or changes."""
        known = self._rows.get((kind, place))
        text = _text_of(error)
        is_new = known is None or not known.standing or known.error != text
        if known is None or not known.standing:
            self._counts[kind] = self._counts.get(kind, 0) + 1
        row = self._row(kind, place, error)
        row.standing, row.blocks = True, blocks
        if is_new:
            if isinstance(error, StoreFenced):
                self._is_told(text)
            _log.error("trouble began", kind=kind, place=place, error=text)

    def clear(self, kind: str, place: str) -> None:
        """A standing trouble is over; nothing happens if there is none."""
        row = self._rows.get((kind, place))
        if row is not None and row.standing:
            del self._rows[(kind, place)]
            _log.info("trouble is over", kind=kind, place=place)

    def standing(self) -> list[Trouble]:
        """The troubles that stand now."""
        return [row for row in self._rows.values() if row.standing]

    def rows(self) -> list[Trouble]:
        """Everything that is known, the newest last."""
        return sorted(self._rows.values(), key=lambda row: row.last_ms)

    def count(self, kind: str) -> int:
        """How often troubles of a kind came up since the start."""
        return self._counts.get(kind, 0)

    def problem(self) -> str | None:
        """For the readiness check: what stands and blocks, in one sentence."""
        rows = [row for row in self._rows.values() if row.standing and row.blocks]
        return "; ".join(f"{row.kind} at {row.place}: {row.error}" for row in rows[:10]) or None

    def samples(self) -> Iterable[Sample]:
        """Numbers for the metrics."""
        return self._samples()

    def _samples(self) -> Iterator[Sample]:
        for kind, count in sorted(self._counts.items()):
            yield Sample(
                "onelog_troubles_total",
                "Failures that were isolated and conditions that began, by kind.",
                "counter",
                count,
                (("kind", kind),),
            )
        yield Sample(
            "onelog_troubles_standing",
            "Conditions that last now: see /health.",
            "gauge",
            len(self.standing()),
        )

    def _row(self, kind: str, place: str, error: BaseException | str) -> Trouble:
        now = self._clock.now_ms()
        row = self._rows.get((kind, place))
        if row is None:
            if len(self._rows) >= PLACES_MAX:
                place = _OTHER
            row = self._rows.setdefault(
                (kind, place), Trouble(kind=kind, place=place, error="", first_ms=now)
            )
        row.count += 1
        row.last_ms = now
        row.error = _text_of(error)
        return row


def _bounded(facts: dict[str, object]) -> dict[str, str | int]:
    """The facts cut to their bounds, because peers choose some of them."""
    kept: dict[str, str | int] = {}
    for name, value in facts.items():
        if value is not None and len(kept) < FACTS_MAX:
            kept[name] = value if isinstance(value, int) else _told(value)[:FACT_CHARS_MAX]
    return kept


def _told(value: object) -> str:
    try:
        return str(value)
    except Exception as failure:  # noqa: BLE001  an error whose text fails
        return f"(its text failed with {type(failure).__name__})"


def _text_of(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error[:_TEXT_CHARS_MAX]
    return f"{type(error).__name__}: {_told(error)}"[:_TEXT_CHARS_MAX]
