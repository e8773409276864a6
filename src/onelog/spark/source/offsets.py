"""Offsets as Spark keeps them in a checkpoint: {"topic": {"0": 23}}, as its Kafka source does.

Rules: Spark compares them as text, so they are always in the same order, and numbers are numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onelog.base.errors import InvalidRequest
from onelog.kafka_client import Part

Offsets = dict[str, dict[str, int]]


def to_spark(offsets: Mapping[Part, int]) -> Offsets:
    """Offsets for Spark."""
    found: Offsets = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = int(offset)
    return found


def from_spark(offsets: Mapping[str, Any]) -> dict[Part, int]:
    """Offsets that Spark gives back. Raises InvalidRequest."""
    try:
        return {
            (topic, int(number)): int(offset)
            for topic, row in offsets.items()
            for number, offset in row.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise InvalidRequest(
            f"the checkpoint has offsets that this source did not write: {str(offsets)[:80]}"
        ) from None


def lag(progress: Mapping[str, Any]) -> int:
    """How many offsets a query is behind, from its `lastProgress`."""
    behind = 0
    for source in progress.get("sources", ()):
        latest, end = _told(source.get("latestOffset")), _told(source.get("endOffset"))
        if latest is None or end is None:
            continue
        ends = from_spark(end)
        behind += sum(
            max(offset - ends.get(part, 0), 0) for part, offset in from_spark(latest).items()
        )
    return behind


def _told(offsets: Any) -> Mapping[str, Any] | None:
    """Offsets of a progress report: Spark gives them as objects or as JSON."""
    if isinstance(offsets, str):
        try:
            offsets = json.loads(offsets)
        except ValueError:
            return None
    return offsets if isinstance(offsets, Mapping) else None
