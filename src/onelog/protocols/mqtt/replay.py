"""Replay: `$replay/<from>/<filter>` delivers history from a point on, then new messages, in order.

`<from>` is `earliest`, `latest`, `offset:<number>`, milliseconds since the Unix epoch, or an
ISO 8601 time (without a `+`, which a filter cannot hold; a time without a zone is UTC).

Rules:
- Each subscription reads the log itself, from its first message to its last, so no message is lost
  or repeated between history and new messages. It shares the window of its session.
- A topic's messages come in their order. A filter that reads several partitions mixes them.
- It is independent of the client's other subscriptions: a message that matches two of them comes
  twice.
- A persistent session goes on where it stopped, not at `<from>` again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from onelog.base.errors import Closed, InvalidName, OnelogError
from onelog.broker import EARLIEST, LATEST, Cursor, Position, Reading, Record, Start, Wait
from onelog.observe import get_logger
from onelog.protocols.mqtt.mapping import from_record
from onelog.protocols.mqtt.outgoing import Outgoing, prepare
from onelog.protocols.mqtt.session import CATCH_UP_RECORDS, MqttSession
from onelog.protocols.mqtt.special import SubscribeAddress
from onelog.protocols.mqtt.subscribed import Subscribed
from onelog.record.headers import PUBLISHER, find_header

if TYPE_CHECKING:
    from onelog.protocols.mqtt.hub import Hub

_NUMBER_CHARS_MAX = 18

_log = get_logger("mqtt")


def parse_start(text: str) -> Start:
    """Where a replay begins. Raises InvalidName when the text is no such point."""
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    kind, _, number = text.partition(":")
    if kind == "offset" and _is_number(number):
        return Start("offset", int(number))
    if _is_number(text):
        return Start("time", int(text))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidName(
            f"{text[:60]!r} is no place to replay from: use earliest, latest, offset:<number>,"
            " milliseconds since 1970, or a time such as 2025-01-31T12:00:00Z"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return Start("time", max(0, int(time.timestamp() * 1000)))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _NUMBER_CHARS_MAX


async def open_replay(
    hub: Hub, session: MqttSession, row: Subscribed, address: SubscribeAddress
) -> Replay:
    """A replay from where the session stopped, or from where the client asks."""
    filters = (address.filter,)
    positions = session.kept_positions(row.filter)
    if positions is None:
        sources = hub.broker.cursors.sources(filters).sources
        start = await parse_start(address.argument).settled(sources)
        positions = [Position(*source.key, start.offset_in(source)) for source in sources]
    return Replay(session, row, hub.broker.cursors.reading(filters, positions))


class Replay:
    """One replay subscription."""

    def __init__(self, session: MqttSession, row: Subscribed, reading: Reading) -> None:
        self.row = row
        self._session = session
        self._reading = reading
        self._wait: Wait | None = None
        self._ended = False

    def begin(self) -> None:
        """Deliver from now on."""
        self.go_on()

    def go_on(self) -> None:
        """Read while the client has room, then wait for news."""
        session = self._session
        connection = session.connection
        self._stop_waiting()
        if connection is None or self._ended:
            return
        room = min(session.output.room, CATCH_UP_RECORDS)
        if connection.is_slow or session.is_saving or room == 0:
            session.ask_for_room(self)
            return
        try:
            read = self._reading.read(room)
        except Closed:
            return
        except OnelogError as error:
            _log.error("a replay cannot be read", filter=self.row.filter, reason=str(error))
            return
        self._send(read)
        if self._reading.may_go_on():
            session.hub.loop.call_soon(self.go_on)
        else:
            self._wait = self._reading.when_readable(self._readable)

    def _readable(self, _error: OnelogError | None) -> None:
        self._wait = None
        self._session.hub.loop.call_soon(self.go_on)

    def _stop_waiting(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None

    def _send(self, read: list[tuple[int, Record]]) -> None:
        packets: list[Outgoing] = []
        for index, record in read:
            packet = self._encode(self._reading.sources.sources[index].key, record)
            if packet is not None:
                packets.append(packet)
        self._session.post(packets)

    def _encode(self, key: tuple[str, int], record: Record) -> Outgoing | None:
        """The packet of a record; None when it is not to be sent."""
        session, row = self._session, self.row
        own = session.client_id.encode()
        if row.no_local and find_header(record.headers, PUBLISHER) == own:
            return None
        if not session.may_have(record.topic):
            return None
        publish = from_record(
            record,
            now_ms=session.hub.clock.now_ms(),
            qos_max=row.qos,
            retain=None if row.retain_as_published else False,
            packet_id=1,
            subscription_ids=(row.identifier,) if row.identifier else (),
        )
        source = session.hub.live.find(key)
        if publish is None or source is None:
            return None
        return prepare(session.output, publish, (source.number, record.offset))

    def settle(self, tag: int, *, accepted: bool) -> Cursor | None:
        """Nothing: its packet ids belong to the session."""
        del tag, accepted
        return None

    def positions(self) -> list[Position]:
        """The positions to read on from."""
        return self._reading.positions()

    def park(self) -> None:
        """Stop reading; the position stays."""
        self._stop_waiting()

    def end(self) -> None:
        """Stop reading for good."""
        self._ended = True
        self._stop_waiting()
        self._reading.close()
