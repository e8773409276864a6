"""The session cursor: positions and an in-flight window with packet ids.

No protocol opens one: it is for programs that embed the broker (docs/guide/embedded.md). MQTT has
its own, on the kernel's window (`protocols/mqtt/session.py`).

Rules:
- Nothing is copied: an in-flight entry is a packet id and an offset; redelivery reads the log.
- At most `window` records are in flight (the peer's receive maximum). Packet ids are 1 to 65535; no
  two records in flight share one.
- Redelivery is in the order of the first delivery; after PUBREC, only the release (PUBREL) is sent
  again, never the record.
- A record that needs no acknowledgement is handed out with packet id 0 and forgotten.
- A seek leaves records in flight as they are: the reader passes them over when it meets them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.cursors.cursor import CursorKind, CursorState, Position, Reading, ignore_change
from onelog.cursors.reader import expires_at
from onelog.cursors.sources import SourceRegistry
from onelog.cursors.start import Start
from onelog.record.record import Record

PACKET_IDS: Final = 65_535

Place = tuple[str, int, int]
"""Stream id, partition and offset of a record."""


class FlightStage(IntEnum):
    """How far a record in flight has come."""

    SENT = 0
    RECEIVED = 1
    """The peer has it (PUBREC); it still has to be released (PUBREL, PUBCOMP)."""


class InFlight(msgspec.Struct, array_like=True):
    """One record handed out and not acknowledged."""

    packet_id: int
    stream_id: str
    partition: int
    offset: int
    stage: int = FlightStage.SENT


class SessionDelivery(msgspec.Struct, frozen=True, gc=False):
    """A record for the peer; `record` is None when only its release is to be sent again."""

    packet_id: int
    record: Record | None
    duplicate: bool = False


class _Body(msgspec.Struct, array_like=True):
    positions: list[Position]
    in_flight: list[InFlight]
    next_packet_id: int
    passed: list[Position] = []


def always(_record: Record) -> bool:
    """Every record is to be acknowledged."""
    return True


class SessionCursor:
    """A reader with a window of unacknowledged records."""

    __slots__ = (
        "_clock",
        "_in_flight",
        "_next_packet_id",
        "_passed",
        "name",
        "on_change",
        "reading",
        "window",
    )

    kind = CursorKind.SESSION

    def __init__(self, name: str, reading: Reading, clock: Clock, window: int) -> None:
        self.name = name
        self.on_change: Callable[[], None] = ignore_change
        self.reading = reading
        self.window = window
        self._clock = clock
        self._in_flight: dict[int, InFlight] = {}
        self._next_packet_id = 1
        self._passed: set[Place] | None = None
        """Places that were in flight at a seek and that the reader meets again."""

    @classmethod
    def create(
        cls,
        name: str,
        registry: SourceRegistry,
        filters: tuple[str, ...],
        start: Start,
        *,
        clock: Clock,
        window: int = 32,
    ) -> SessionCursor:
        """A new session."""
        reading = Reading(registry, registry.resolve(filters), start.offset_in)
        return cls(name, reading, clock, window)

    @classmethod
    def restore(
        cls, registry: SourceRegistry, state: CursorState, *, clock: Clock, window: int = 32
    ) -> SessionCursor:
        """Go on where the session stopped: the same packet ids in flight, in the same order."""
        body = msgspec.msgpack.decode(state.body, type=_Body)
        cursor = cls(
            state.name, Reading.restore(registry, state.filters, body.positions), clock, window
        )
        cursor._in_flight = {entry.packet_id: entry for entry in body.in_flight}
        cursor._next_packet_id = body.next_packet_id
        cursor._passed = {(row.stream_id, row.partition, row.offset) for row in body.passed} or None
        return cursor

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that it reads."""
        return self.reading.filters

    # -- delivering

    def fetch(
        self, limit: int = 1000, needs_ack: Callable[[Record], bool] = always
    ) -> list[SessionDelivery]:
        """The next records that fit the window, each with its packet id."""
        room = min(limit, self.window - len(self._in_flight), PACKET_IDS - len(self._in_flight))
        found: list[SessionDelivery] = []
        if room <= 0:
            return found
        now_ms = self._clock.now_ms()
        for index, record in self.reading.read(room):
            source = self.reading.sources.sources[index]
            if self._passed is not None and self._passes(*source.key, record.offset):
                continue
            ends = expires_at(record, source.stream.config.message_ttl_ms)
            if ends is not None and ends <= now_ms:
                continue
            packet_id = 0
            if needs_ack(record):
                packet_id = self._take_packet_id()
                stream_id, partition = source.key
                self._in_flight[packet_id] = InFlight(
                    packet_id, stream_id, partition, record.offset
                )
            found.append(SessionDelivery(packet_id, record))
        if found:
            self.on_change()
        return found

    async def next(
        self, limit: int = 1000, timeout_s: float | None = None
    ) -> list[SessionDelivery]:
        """The next records, waiting for them; empty when the time ran out or the window is full."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while len(self._in_flight) < self.window and limit > 0:
            found = self.fetch(limit)
            left = None if deadline is None else deadline - loop.time()
            if found or (left is not None and left <= 0):
                return found
            if self.reading.may_go_on():
                await asyncio.sleep(0)  # a long stretch without a match: let others run
            elif not await self.reading.wait_readable(left):
                break
        return []

    def seek(self, stream_id: str, partition: int, offset: int) -> None:
        """Read a partition from `offset` on. What is in flight stays so, and is not sent twice."""
        index = self.reading.index(stream_id, partition)
        key = (stream_id, partition)
        places = {
            (*key, entry.offset)
            for entry in self._in_flight.values()
            if (entry.stream_id, entry.partition) == key and entry.offset >= offset
        }
        others = {place for place in self._passed or () if place[:2] != key}
        self._passed = places | others or None
        self.reading.seek(index, offset)
        self.on_change()
        self.reading.wake()

    def _passes(self, *place: *Place) -> bool:
        assert self._passed is not None
        if place not in self._passed:
            return False
        self._passed.discard(place)
        self._passed = self._passed or None
        return True

    def redeliver(self) -> list[SessionDelivery]:
        """Everything in flight again, in order, for a peer that has come back.

        It waits for records that are not in memory; `redeliver_later` lets others run meanwhile.
        """
        found = []
        for entry in list(self._in_flight.values()):
            record = None
            if entry.stage != FlightStage.RECEIVED:
                record = self.reading.record_at(entry.stream_id, entry.partition, entry.offset)
            found += self._again(entry, record)
        return found

    async def redeliver_later(self) -> list[SessionDelivery]:
        """As `redeliver`; what is acknowledged meanwhile is left out."""
        found = []
        for entry in list(self._in_flight.values()):
            record = None
            if entry.stage != FlightStage.RECEIVED:
                place = (entry.stream_id, entry.partition, entry.offset)
                record = await self.reading.find_record(*place)
            found += self._again(entry, record)
        return [row for row in found if row.packet_id in self._in_flight]

    def _again(self, entry: InFlight, record: Record | None) -> list[SessionDelivery]:
        if entry.stage == FlightStage.RECEIVED:
            record = None
        elif record is None:  # retention took it, or its stream is gone
            if self._in_flight.get(entry.packet_id) is entry:
                del self._in_flight[entry.packet_id]
            return []
        return [SessionDelivery(entry.packet_id, record, duplicate=True)]

    def _take_packet_id(self) -> int:
        packet_id = self._next_packet_id
        while packet_id in self._in_flight:
            packet_id = packet_id % PACKET_IDS + 1
        self._next_packet_id = packet_id % PACKET_IDS + 1
        return packet_id

    # -- settling

    def acknowledge(self, packet_id: int) -> bool:
        """The peer is done with a record (PUBACK, PUBCOMP); False when the id is not in flight."""
        if self._in_flight.pop(packet_id, None) is None:
            return False
        self.on_change()
        return True

    def receive(self, packet_id: int) -> bool:
        """The peer has the record (PUBREC); False when the id is not in flight."""
        entry = self._in_flight.get(packet_id)
        if entry is None:
            return False
        entry.stage = FlightStage.RECEIVED
        self.on_change()
        return True

    # -- state

    def state(self) -> CursorState:
        """The state to keep."""
        body = _Body(
            self.reading.positions(),
            list(self._in_flight.values()),
            self._next_packet_id,
            [Position(*place) for place in sorted(self._passed or ())],
        )
        return CursorState(
            self.name, self.kind, self.filters, self.positions(), msgspec.msgpack.encode(body)
        )

    def positions(self) -> list[Position]:
        """The lowest offset still needed, per partition."""
        needed = {(row.stream_id, row.partition): row.offset for row in self.reading.positions()}
        for entry in self._in_flight.values():
            key = (entry.stream_id, entry.partition)
            needed[key] = min(entry.offset, needed.get(key, entry.offset))
        return [Position(*key, offset) for key, offset in needed.items()]

    def lag(self) -> int:
        """Offsets to the end."""
        return self.reading.lag()

    def pending(self) -> int:
        """Records in flight."""
        return len(self._in_flight)

    def close(self) -> None:
        """Refuse further reads."""
        self.reading.close()
