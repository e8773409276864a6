"""The retained messages for one new subscription, sent as the client takes them (I8).

Rules:
- A kept session keeps how far its greetings came, starting before the SUBSCRIBE is answered.
  Retained messages that the client did not get before its connection ended come with the next one,
  like any waiting message (MQTT5 4.1). After a restart of the broker an unfinished greeting begins
  again.
- A message that is not in memory is waited for, and the messages behind it wait, too. A message
  that cannot be read is left out.
- Messages that were retained after the subscription was made are not part of it: the subscription
  delivers them itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError, PartitionStopped
from onelog.broker import Cold, TableCursor
from onelog.protocols.mqtt.mapping import from_record
from onelog.protocols.mqtt.outgoing import Outgoing, prepare
from onelog.protocols.mqtt.session_state import GreetingRow

if TYPE_CHECKING:
    from onelog.protocols.mqtt.session import MqttSession
    from onelog.protocols.mqtt.subscribed import Subscribed

PAGE_MESSAGES: Final = 256
PAGE_BYTES: Final = 64 * 1024
"""Retained messages that are sent to one client before others have a turn."""


class Greeting:
    """The retained messages that one subscription matches."""

    def __init__(
        self, table: TableCursor, run: str, session: MqttSession, text: str, numbers: array[int]
    ) -> None:
        self._table = table
        self._run = run
        self._session = session
        self._filter = text
        self._numbers = numbers
        """The numbers of the topics, ascending."""
        self._next = 0
        self._is_waiting = False
        """Whether the next message is on its way from the disk."""

    def __len__(self) -> int:
        return len(self._numbers) - self._next

    def skip(self, row: GreetingRow) -> None:
        """Go on where an earlier connection stopped."""
        if row.run == self._run:
            del self._numbers[bisect_left(self._numbers, row.end_number) :]
            self._next = bisect_left(self._numbers, row.next_number)

    def row(self) -> GreetingRow:
        """The state to keep."""
        assert self._next < len(self._numbers), "one that is over is not kept"
        first, last = self._numbers[self._next], self._numbers[-1]
        return GreetingRow(self._filter, self._run, first, last + 1)

    def go_on(self) -> None:
        """Send a page, then give others a turn."""
        session = self._session
        connection, wanted = session.connection, session.subscriptions.get(self._filter)
        if connection is None or wanted is None or session.greetings.get(self._filter) is not self:
            return
        if self._is_waiting:
            return
        packets: list[Outgoing] = []
        size_bytes = 0
        while (
            self._next < len(self._numbers)
            and session.output.room
            and len(packets) < PAGE_MESSAGES
            and size_bytes < PAGE_BYTES
            and not connection.is_slow
        ):
            try:
                packet = self._prepare(wanted, self._numbers[self._next])
            except Cold:
                self._is_waiting = True
                break
            self._next += 1
            if packet is not None:
                packets.append(packet)
                size_bytes += len(packet.data)
        if self._next == len(self._numbers):
            del session.greetings[self._filter]
        session.post(packets)
        if self._next == len(self._numbers) or self._is_waiting:
            return
        if session.output.room and not connection.is_slow:
            session.hub.loop.call_soon(self.go_on)
        else:
            session.ask_for_room(self)

    def _here(self, _error: OnelogError | None) -> None:
        self._is_waiting = False
        self.go_on()

    def _prepare(self, wanted: Subscribed, number: int) -> Outgoing | None:
        """The packet of a topic's message; None when there is none to send; or Cold."""
        session = self._session
        try:
            record = self._table.record_now(number, self._here)
        except PartitionStopped:
            return None
        if record is None or not session.may_have(record.topic):
            return None
        publish = from_record(
            record,
            now_ms=session.hub.clock.now_ms(),
            qos_max=wanted.qos,
            retain=True,
            packet_id=1,
            subscription_ids=(wanted.identifier,) if wanted.identifier else (),
        )
        place = session.hub.live.place_of(record)
        if publish is None or place is None:
            return None
        return prepare(session.output, publish, place)
