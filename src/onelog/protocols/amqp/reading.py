"""The bytes of a peer, from the socket to the connection: read by read, event by event, in order.

Rules:
- A read goes to the kernel once. Publishes that the kernel staged are counted in the same pass,
  because they may be written at its end. Only acknowledgements and heartbeats stand before them in
  the read, so they may overtake those.
- A read with very many small frames does not hold up other connections: after `ROWS_PER_PASS` of
  them the loop goes round, and nothing more is read from the peer until all are handled (I8).
- Events that wait for their turn are dropped with the connection, and after an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from onelog.kernel import AmqpInput, AmqpRoute
from onelog.protocols.amqp import frames
from onelog.protocols.amqp.frames import Publish

if TYPE_CHECKING:
    from onelog.protocols.amqp.connection import Connection

ROWS_PER_PASS: Final = 256
"""Events of a read that are handled before others have a turn; staged publishes do not count. A
read may have more than ten thousand."""
ROUTES_MAX: Final = 256
"""Routes of publishes that a connection remembers."""
TURN: Final = "rows of a read that wait for their turn"

Row = tuple[Any, ...]


class ConnectionReads:
    """The reads of one connection."""

    __slots__ = ("_connection", "_later", "_rows", "_whole", "is_behind")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.generation = connection.queues.generation
        self.is_behind = False
        """Whether events wait for their turn."""
        self._rows: Iterator[Row] = iter(())
        self._whole = b""
        self._later = bytearray()
        """Bytes that the transport delivered after it was asked to pause."""

    def take(self, data: bytes) -> None:
        """Take a read, now or after waiting events. Raises the error in it."""
        if self.is_behind:
            self._later += data
            return
        connection = self._connection
        if connection.generation != connection.queues.generation:
            connection.generation = connection.queues.generation
            connection.input.forget()
        self.take_rows(*connection.input.take(data, connection.clock.now_ms()))

    def take_rows(self, whole: bytes, rows: list[Row]) -> None:
        """Take the events of a read. Raises the error in it."""
        connection = self._connection
        seat = connection.seat
        if seat is not None and seat.is_paced:
            seat.ask(sum([row[0] == frames.METHOD for row in rows]))
        if len(rows) > ROWS_PER_PASS:
            self._take_in_turns(whole, rows)
            return
        for row in rows:
            if (kind := row[0]) == frames.STAGED:
                _kind, number, count, stage, start, end = row
                connection.channels[number].publishing.staged(count, stage, (whole, start, end))
            elif kind != frames.ACK or not self._take_ack(*row[1:]):
                self._take_event(whole, row)

    def add_route(self, publish: Publish, properties: bytes, route: AmqpRoute) -> None:
        """Let publishes like this one be staged without a check, until something changes."""
        connection = self._connection
        if connection.generation != connection.queues.generation or not connection.is_open:
            return
        if connection.input.route_count >= ROUTES_MAX:
            connection.input.forget()
        connection.input.add_route(publish.channel, publish.names, properties, route)

    def _take_event(self, whole: bytes, row: Row) -> None:
        connection = self._connection
        connection.take(frames.event_of(row, memoryview(whole), connection.frame_bytes_max))

    def _take_ack(self, number: int, tag: int, multiple: bool) -> bool:
        """basic.ack. Returns False when it is not plain."""
        connection = self._connection
        channel = connection.channels.get(number)
        if channel is None or not channel.is_plain or not connection.is_open:
            return False
        return channel.consuming.take_plain_ack(tag, multiple=multiple)

    # -- many rows

    def _take_in_turns(self, whole: bytes, rows: list[Row]) -> None:
        """Count staged publishes now; the other events wait for their turn."""
        channels = self._connection.channels
        waiting: list[Row] = []
        for row in rows:
            if row[0] == frames.STAGED:
                _kind, number, count, stage, start, end = row
                channels[number].publishing.staged(count, stage, (whole, start, end))
            else:
                waiting.append(row)
        self.is_behind = True
        self._whole, self._rows = whole, iter(waiting)
        self._connection.pauses.pause(TURN)
        self._go_on()

    def _go_on(self) -> None:
        connection = self._connection
        if connection.is_over:
            self.drop()
            return
        try:
            turn = list(islice(self._rows, ROWS_PER_PASS))
            for row in turn:
                if row[0] != frames.ACK or not self._take_ack(*row[1:]):
                    self._take_event(self._whole, row)
            if len(turn) == ROWS_PER_PASS:
                connection.hub.loop.call_soon(self._go_on)
                return
            later = bytes(self._later)
            self.drop()
            if later:
                self.take(later)
        except Exception as error:  # noqa: BLE001 - a bug ends one connection
            self.fail(error)
        self._read_on()

    def _read_on(self) -> None:
        """Read again, unless bytes that were delivered already wait for their turn."""
        if not self.is_behind and not self._connection.is_over:
            self._connection.pauses.resume(TURN)

    def fail(self, error: Exception) -> None:
        """Nothing after an error can be read: drop it, and close the connection."""
        connection = self._connection
        self.drop()
        connection.input = AmqpInput(connection.frame_bytes_max)
        connection.fail_with(error)

    def drop(self) -> None:
        """Drop waiting events."""
        self.is_behind = False
        self._rows, self._whole = iter(()), b""
        self._later.clear()
