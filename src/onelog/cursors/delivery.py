"""The records that a queue hands out or gives up, and the settings of a queue."""

from __future__ import annotations

from typing import Literal

import msgspec

from onelog.record.record import Record

Reason = Literal["delivery_limit", "rejected", "expired"]


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue behaves; every number is a bound."""

    lock_ms: int = 0
    """How long a consumer may hold a record; 0: as long as the consumer stays."""
    deliveries_max: int = 0
    """How often a record is handed out before it becomes a dead letter; 0: no limit."""
    backoff_ms: int = 0
    """Delay before the first redelivery; it doubles up to `backoff_max_ms`."""
    backoff_max_ms: int = 60_000
    in_flight_max: int = 10_000
    dead_letter_topic: str | None = None
    """The topic for dead letters; None: they are dropped."""
    priority_header: bytes | None = None
    priority_window: int = 1_000


class Acquired(msgspec.Struct, frozen=True, gc=False):
    """A record that a consumer has. `token` settles it, `count` says how often it was handed
    out."""

    token: int
    record: Record
    count: int

    @property
    def redelivered(self) -> bool:
        """Whether a consumer had it before."""
        return self.count > 1


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """A record that the queue gives up. `settle_dead_letter` follows when it is durable
    elsewhere."""

    token: int
    record: Record
    reason: Reason
    count: int
