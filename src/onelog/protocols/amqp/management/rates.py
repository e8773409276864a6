"""Rates of counters, computed when somebody looks.

Rules: no timer and no history. A look takes a sample when the last one is at least five seconds
old, and the rate is the difference between the two; the first look says 0. Samples are dropped with
the object that they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from onelog.base.clock import Clock

SAMPLE_S: Final = 5.0


class _Sample:
    __slots__ = ("at", "rates", "values")

    def __init__(self, at: float, values: dict[str, int], rates: dict[str, float]) -> None:
        self.at = at
        self.values = values
        self.rates = rates


class Rates:
    """The last sample of each object that was looked at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: WeakKeyDictionary[object, dict[str, _Sample]] = WeakKeyDictionary()

    def detailed(self, owner: object, group: str, values: Mapping[str, int]) -> dict[str, Any]:
        """The counters of an object, each with its `…_details`, as RabbitMQ has them."""
        rates = self._rates(owner, group, values)
        found: dict[str, Any] = {}
        for name, value in values.items():
            found[name] = value
            found[f"{name}_details"] = {"rate": rates.get(name, 0.0)}
        return found

    def _rates(self, owner: object, group: str, values: Mapping[str, int]) -> dict[str, float]:
        now = self._clock.monotonic()
        groups = self._samples.setdefault(owner, {})
        last = groups.get(group)
        if last is not None and now - last.at < SAMPLE_S:
            return last.rates
        rates: dict[str, float] = {}
        if last is not None:
            passed = now - last.at
            rates = {
                name: round((value - last.values.get(name, 0)) / passed, 3)
                for name, value in values.items()
            }
        groups[group] = _Sample(now, dict(values), rates)
        return rates
