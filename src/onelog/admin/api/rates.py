"""Rates of what the process does: differences of counters over a time of seconds.

Rules: nothing runs by itself. A question takes a sample; a rate is the difference to the youngest
sample that is at least `SPAN_S` old, or to the oldest there is. Samples that nobody asked for in a
while are forgotten, so that a rate is never one of an hour ago.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.broker import Broker
from onelog.broker.showing import ProtocolDesk, Traffic

SPAN_S: Final = 2.0
_SPACING_S: Final = 0.25
_AGE_MAX_S: Final = 30.0
_SAMPLES_MAX: Final = 120


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of the whole broker."""

    published_messages: int
    syncs: int
    """Group commits."""
    protocols: dict[str, Traffic]


class TrafficRates(msgspec.Struct, frozen=True, kw_only=True):
    """Per second; null: there is no earlier sample yet, ask again in a while."""

    published_messages: float | None
    syncs: float | None
    protocols: dict[str, ProtocolRates]


class ProtocolRates(msgspec.Struct, frozen=True, kw_only=True):
    """Per second, of one protocol."""

    received_messages: float | None
    sent_messages: float | None
    received_bytes: float | None
    sent_bytes: float | None


class RateBook:
    """The samples of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, Totals]] = deque(maxlen=_SAMPLES_MAX)

    def sample(self, broker: Broker, desks: dict[str, ProtocolDesk]) -> tuple[Totals, TrafficRates]:
        """The counters now, and the rates up to now."""
        now = self._clock.monotonic()
        totals = Totals(
            published_messages=broker.publisher.messages,
            syncs=broker.syncs(),
            protocols={name: desk.traffic() for name, desk in desks.items()},
        )
        while self._samples and now - self._samples[0][0] > _AGE_MAX_S:
            self._samples.popleft()
        before = next((row for row in reversed(self._samples) if now - row[0] >= SPAN_S), None)
        if before is None and self._samples:
            before = self._samples[0]
        if not self._samples or now - self._samples[-1][0] >= _SPACING_S:
            self._samples.append((now, totals))
        return totals, _difference(before, now, totals)


def _difference(before: tuple[float, Totals] | None, now: float, totals: Totals) -> TrafficRates:
    seconds = 0.0 if before is None else now - before[0]
    old = None if before is None else before[1]

    def rate(new: int | None, was: int | None) -> float | None:
        if seconds <= 0 or new is None or was is None:
            return None
        return round(max(0, new - was) / seconds, 3)

    protocols = {}
    for name, row in totals.protocols.items():
        known = None if old is None else old.protocols.get(name)
        values = {
            field: rate(getattr(row, field), None if known is None else getattr(known, field))
            for field in ProtocolRates.__struct_fields__
        }
        protocols[name] = ProtocolRates(**values)
    return TrafficRates(
        published_messages=rate(
            totals.published_messages, None if old is None else old.published_messages
        ),
        syncs=rate(totals.syncs, None if old is None else old.syncs),
        protocols=protocols,
    )
