"""Holdings: which consumer has which records of a queue, and until when.

Rules: a token is never used twice. The latest deadline of a record counts; older ones in the heap
are passed over, and swept when they are the majority.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from onelog.cursors.delivery import Reason
from onelog.cursors.lane import Lane


class Unsettled(msgspec.Struct, gc=False):
    """One record that is with a consumer, or on its way to the dead letters."""

    lane: Lane
    offset: int
    consumer: str
    deadline: float = 0.0
    """When the record is taken back; 0: never."""
    reason: Reason | None = None
    """Why the queue gives the record up; no consumer has it then."""


class Holdings:
    """The records that are handed out and not settled, by token."""

    __slots__ = ("_deadlines", "_held", "_token")

    def __init__(self) -> None:
        self._held: dict[int, Unsettled] = {}
        self._deadlines: list[tuple[float, int]] | None = None
        self._token = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: Unsettled) -> int:
        """A record goes out. Returns its token."""
        self._token += 1
        self._held[self._token] = held
        if held.deadline:
            self.set_deadline(self._token, held.deadline)
        return self._token

    def get(self, token: int) -> Unsettled | None:
        """The record of a token; None: it is settled or came back."""
        return self._held.get(token)

    def pop(self, token: int) -> Unsettled:
        """Remove a record that is settled or came back."""
        return self._held.pop(token)

    def give_up(self, token: int, reason: Reason) -> Unsettled:
        """No consumer has it any more; it is on its way to the dead letters."""
        held = self._held[token]
        held.consumer, held.deadline, held.reason = "", 0.0, reason
        return held

    def of_consumer(self, consumer: str) -> list[int]:
        """The tokens of the records that a consumer has."""
        return [
            token
            for token, held in self._held.items()
            if held.consumer == consumer and held.reason is None
        ]

    def offsets_in(self, lane: Lane) -> list[int]:
        """The offsets of a lane that are handed out or on their way to the dead letters."""
        return [held.offset for held in self._held.values() if held.lane is lane]

    def set_deadline(self, token: int, deadline: float) -> None:
        """Set the deadline that counts from now on."""
        self._held[token].deadline = deadline
        if self._deadlines is None:
            self._deadlines = []
        if len(self._deadlines) > 2 * len(self._held) + 64:
            rows = ((held.deadline, key) for key, held in self._held.items())
            self._deadlines = [row for row in rows if row[0]]
            heapq.heapify(self._deadlines)
        else:
            heapq.heappush(self._deadlines, (deadline, token))

    def next_deadline(self) -> float | None:
        """The earliest deadline; its record may be settled already."""
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, now: float) -> Iterator[int]:
        """Tokens whose deadline has passed, the earliest first."""
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, token = heapq.heappop(self._deadlines)
            held = self._held.get(token)
            if held is not None and held.deadline == deadline:
                yield token
