"""Messages in flight again, for a client that came back.

Rules:
- They go out in their order, with DUP; where the client has the message already, its release does
  (MQTT5 4.4). A message that is gone, not for this user or too large by now is given up.
- A message that is not in memory is waited for, and those behind it wait with it. A message whose
  partition is stopped stays in flight: it comes with a later connection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from onelog.base.errors import OnelogError
from onelog.broker import Cold, LiveSource, Record, Waiter
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.fitting import fit_packet
from onelog.protocols.mqtt.mapping import from_record
from onelog.protocols.mqtt.packets import Publish, Pubrel

if TYPE_CHECKING:
    from onelog.protocols.mqtt.session import MqttSession

_Row = tuple[int, int, int, int, int]


class Redelivery:
    """What one connection is sent again."""

    __slots__ = ("_rows", "_session", "_waiter")

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._rows: deque[_Row] = deque(session.output.in_flight())
        self._waiter: Waiter | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a message is on its way from the disk."""
        return self._waiter is not None

    def go_on(self) -> None:
        """Send what can be sent now."""
        rows = self._rows
        while rows and not self.is_waiting:
            self._send_again(rows[0])
            if not self.is_waiting:
                rows.popleft()
        self._session.write_out()

    def _here(self, _error: OnelogError | None) -> None:
        self._waiter = None
        # The client may have acknowledged some of them meanwhile.
        known = {row[0]: row for row in self._session.output.in_flight()}
        self._rows = deque(known[row[0]] for row in self._rows if row[0] in known)
        self.go_on()
        if not self.is_waiting:
            self._session.redelivered()

    def cancel(self) -> None:
        """The connection is gone."""
        if self._waiter is not None:
            self._waiter.cancel()
            self._waiter = None
        self._rows.clear()

    def _send_again(self, row: _Row) -> None:
        packet_id, number, offset, qos, stage = row
        session = self._session
        output, version = session.output, session.output.version
        if stage:
            output.push(encode_packet(Pubrel(packet_id), version))
            return
        source = session.hub.live.source(number)
        try:
            record = session.hub.broker.cursors.record_now(source.as_source, offset)
        except Cold as cold:
            self._waiter = source.partition.when_here(cold, self._here)
            return
        except OnelogError:
            return
        publish = None if record is None else self._publish_of(source, record)
        data = None
        if publish is not None:
            again = msgspec.structs.replace(publish, qos=qos, packet_id=packet_id, dup=True)
            data = fit_packet(again, version, output.packet_bytes_max)
        if data is None:  # it is gone, not for this user, or too large now (MQTT5 3.1.2-25)
            output.ack(packet_id)
        else:
            output.push(data)
            session.hub.counters.caught_up += 1

    def _publish_of(self, source: LiveSource, record: Record) -> Publish | None:
        """The PUBLISH of a record that was sent before; its subscription may be gone since."""
        session = self._session
        if not session.may_have(record.topic):
            return None
        now_ms = session.hub.clock.now_ms()
        known = session.matching().publish(source.key, record, now_ms)
        return known or from_record(record, now_ms=now_ms, retain=False)
