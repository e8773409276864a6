"""A session: a client's subscriptions, its messages in flight, and its positions.

Rules:
- While it follows the end, its position is the live feed's: it costs nothing to keep up. When it
  falls behind, or its connection ends, it remembers the positions and reads the log from there.
- Nothing is copied: a message in flight is a packet id and a place in the log.
- It is a cursor of kind `session`: its state is kept in `~cursors` like any other, and pins
  retention.
- A subscription counts from the time when it was made, even when the session reads an older part of
  the log then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base import faults
from onelog.base.errors import Closed, OnelogError
from onelog.broker import (
    LATEST,
    Cursor,
    CursorKind,
    CursorState,
    LiveSource,
    Position,
    Principal,
    Reading,
    Wait,
    ignore_change,
)
from onelog.kernel import MqttOutput
from onelog.protocols.mqtt.backlog import has_caught_up, newest_positions
from onelog.protocols.mqtt.lone_reading import read_packets
from onelog.protocols.mqtt.matching import Matcher
from onelog.protocols.mqtt.outgoing import Outgoing
from onelog.protocols.mqtt.receiving import Inbound
from onelog.protocols.mqtt.redelivering import Redelivery
from onelog.protocols.mqtt.saving import Saver
from onelog.protocols.mqtt.session_state import (
    GreetingRow,
    Place,
    SessionBody,
    cursor_name,
    in_flight_rows,
    needed_positions,
    passed_at,
)
from onelog.protocols.mqtt.special import OWN_SOURCE, Hungry, Special
from onelog.protocols.mqtt.subscribed import Subscribed

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection
    from onelog.protocols.mqtt.convoy import Rider
    from onelog.protocols.mqtt.greeting import Greeting
    from onelog.protocols.mqtt.hub import Hub

CATCH_UP_RECORDS: Final = 256
"""Records that a session reads from the log before others have a turn."""


class MqttSession:
    """One client's state; with a connection, or parked."""

    kind = CursorKind.SESSION

    def __init__(self, hub: Hub, client_id: str, output: MqttOutput, principal: Principal) -> None:
        self.hub = hub
        self.client_id = client_id
        self.principal = principal
        self.name = cursor_name(client_id)
        self.on_change: Callable[[], None] = ignore_change
        self.output = output
        output.owner = self
        self.subscriptions: dict[str, Subscribed] = {}
        self.specials: dict[str, Special] = {}
        """Subscriptions that deliver by themselves, by the text that the client wrote."""
        self.owned: dict[int, tuple[Special, int]] = {}
        """Packet ids that such a subscription settles, each with the subscription's own tag."""
        self.saver = Saver(self)
        self._posting = 0
        """Runs of packets that wait for the state to be durable, or for the disk."""
        self._redelivery: Redelivery | None = None
        self.greetings: dict[str, Greeting] = {}
        """Subscriptions that have not got all retained messages, by filter."""
        self._greeting_rows: list[GreetingRow] = []
        self._hungry: list[Hungry] = []
        self._special_positions: dict[str, list[Position]] = {}
        self.inbound = Inbound(self)
        self.is_kept = False
        """Whether its state outlives its connection."""
        self.connection: Connection | None = None
        self._closed_at: list[Position] | None = None
        self._passed: set[Place] = set()
        """Places that were in flight at a seek: they are not read again."""
        self._reading: Reading | None = None
        self.ride: Rider | None = None
        """Its way through the log together with other sessions (`convoy.py`)."""
        self._wait: Wait | None = None
        self._matcher: Matcher | None = None

    # -- as a cursor

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that it reads."""
        return tuple(sorted(self.subscriptions))

    def state(self) -> CursorState:
        """The state to keep."""
        body = SessionBody(
            self._read_positions(),
            in_flight_rows(self.output, self.hub.live),
            self.output.next_id,
            self.inbound.rows(),
            self.inbound.producer_id,
            [(text, special.positions()) for text, special in self.specials.items()],
            [*self._greeting_rows, *(greeting.row() for greeting in self.greetings.values())],
            [Position(*place) for place in sorted(self._passed)],
        )
        needed = needed_positions(body)
        return CursorState(self.name, self.kind, self.filters, needed, msgspec.msgpack.encode(body))

    def positions(self) -> list[Position]:
        """Its position in each partition."""
        return self.state().positions

    def pending(self) -> int:
        """Messages that the client has not acknowledged."""
        return self.output.pending

    def lag(self) -> int:
        """Offsets between its positions and the ends."""
        return 0 if self._reading is None else self._reading.lag()

    def close(self) -> None:
        """Stop reading and following. The state stays as it is."""
        self._closed_at = self._read_positions()
        self.output.live = False
        for text in self.subscriptions:
            self.hub.fanout.unsubscribe(text.encode(), self.output)
        self._stop_reading()

    def _read_positions(self) -> list[Position]:
        """The positions to read on from."""
        if self._closed_at is not None:
            return self._closed_at
        if self._reading is not None:
            return self._reading.positions()
        if not self.subscriptions:
            return []
        return self._live_positions(*self.subscriptions)

    def restore(self, state: CursorState) -> None:
        """Take over the state that an earlier connection left."""
        body = msgspec.msgpack.decode(state.body, type=SessionBody)
        self.inbound.restore(body.inbound, body.producer_id)
        rows = []
        self._special_positions = dict(body.specials)
        self._greeting_rows = body.greetings
        self._passed = {(row.stream_id, row.partition, row.offset) for row in body.passed}
        for row in body.in_flight:
            source = self.hub.live.find((row.stream_id, row.partition))
            if not row.stream_id:
                rows.append((row.packet_id, OWN_SOURCE, 0, row.qos, row.stage))
            elif source is not None:
                rows.append((row.packet_id, source.number, row.offset, row.qos, row.stage))
        self.output.restore(rows, body.next_id)
        if self.subscriptions:
            self._reading = self.hub.broker.cursors.reading(self.filters, body.positions)

    async def bound_backlog(self) -> None:
        """Skip the oldest waiting messages, if there are more than the limit."""
        most, reading = self.hub.limits.queued, self._reading
        if not most or reading is None:
            return
        counting = self.hub.broker.cursors.reading(self.filters, reading.positions())
        try:
            found = await newest_positions(counting, self.matching(), most, self.hub.clock.now_ms())
        finally:
            counting.close()
        if found is not None:
            self._stop_reading()
            self._reading = self.hub.broker.cursors.reading(self.filters, found)

    def go_to(self, places: list[Position]) -> None:
        """Read partitions from other places on (`seeking.py`)."""
        self.stop_following()
        positions = {(row.stream_id, row.partition): row for row in self._read_positions()}
        positions |= {(row.stream_id, row.partition): row for row in places}
        self._stop_reading()
        rows = in_flight_rows(self.output, self.hub.live)
        self._passed = passed_at(places, self._passed, rows)
        for row in self.subscriptions.values():
            row.since = []
        self._reading = self.hub.broker.cursors.reading(self.filters, positions.values())
        self.hub.loop.call_soon(self.catch_up)

    # -- subscriptions

    def subscribe(self, wanted: Subscribed) -> bool:
        """Add or replace a subscription. Returns whether it is new."""
        known = self.subscriptions.get(wanted.filter)
        if self._reading is not None:
            wanted.since = known.since if known is not None else self._live_positions(wanted.filter)
        new = self.hub.fanout.subscribe(
            wanted.filter.encode(),
            self.output,
            wanted.qos,
            self.client_id.encode() if wanted.no_local else b"",
            wanted.retain_as_published,
            wanted.identifier,
        )
        self.subscriptions[wanted.filter] = wanted
        self._subscriptions_changed()
        return new

    def unsubscribe(self, text: str) -> bool:
        """Remove a subscription. Returns False when there is none."""
        row = self.subscriptions.pop(text, None)
        if row is None:
            return False
        self.greetings.pop(text, None)
        if row.exclusive:
            self.hub.clients.exclusive.release(text, self.client_id)
        self.hub.fanout.unsubscribe(text.encode(), self.output)
        self._subscriptions_changed()
        return True

    # -- special subscriptions

    @property
    def hides_own(self) -> bool:
        """Whether one of its subscriptions does not want the client's own messages."""
        rows = (*self.subscriptions.values(), *(row.row for row in self.specials.values()))
        return any(row.no_local for row in rows)

    def kept_positions(self, text: str) -> list[Position] | None:
        """The positions of a special subscription of an earlier connection."""
        return self._special_positions.get(text)

    def ask_for_room(self, special: Hungry) -> None:
        """The window is full: call `go_on` of this subscription when there is room.

        The kernel reports acknowledgements only to sessions that do not follow the end.
        """
        if special not in self._hungry:
            self._hungry.append(special)
        self.stop_following()

    def _feed_hungry(self) -> None:
        hungry, self._hungry = self._hungry, []
        for special in hungry:
            special.go_on()

    def settle_owned(self, packet_id: int, *, accepted: bool) -> Cursor | None:
        """The client answered a packet id of a special subscription: the cursor that changed."""
        special, tag = self.owned.pop(packet_id, (None, 0))
        return None if special is None else special.settle(tag, accepted=accepted)

    def _subscriptions_changed(self) -> None:
        self._matcher = None
        if self._reading is not None:
            positions = self._reading.positions()
            if self.ride is not None:
                self.hub.loop.call_soon(self.catch_up)
            self._stop_reading()
            if self.subscriptions:
                known = {(row.stream_id, row.partition) for row in positions}
                positions += [
                    row
                    for row in self._live_positions(*self.subscriptions)
                    if (row.stream_id, row.partition) not in known
                ]
                self._reading = self.hub.broker.cursors.reading(self.filters, positions)

    def _live_positions(self, *filters: str) -> list[Position]:
        live = self.hub.live
        found = []
        for source in self.hub.broker.cursors.sources(filters).sources:
            followed = live.find(source.key)
            offset = LATEST.offset_in(source) if followed is None else followed.position
            found.append(Position(*source.key, int(offset)))
        return found

    # -- delivering

    def may_have(self, topic: str) -> bool:
        """Whether its user may have messages of a topic."""
        deliveries = self.hub.deliveries
        return deliveries is None or deliveries.allows(self.principal, topic)

    def begin(self, connection: Connection) -> None:
        """A connection speaks for it: send messages in flight again, then read on or follow."""
        self.connection = connection
        self.output.writer = connection.transport.write
        self.output.kept = self.is_kept
        for text, row in self.subscriptions.items():
            no_local = self.client_id.encode() if row.no_local else b""
            self.hub.fanout.subscribe(
                text.encode(), self.output, row.qos, no_local, row.retain_as_published,
                row.identifier,
            )  # fmt: skip
        again = self._redelivery = Redelivery(self) if self.output.pending else None
        if again is not None:
            again.go_on()
        if self._reading is None:
            self.output.live = True
        if again is not None and again.is_waiting:
            self.stop_following()  # what comes meanwhile must not overtake
            self._posting += 1
        else:
            self._go_on()

    def redelivered(self) -> None:
        """What was waited for went out again."""
        self._posting -= 1
        self._go_on()

    def _go_on(self) -> None:
        """Deliver what comes next, by every subscription."""
        if self._reading is not None or not self.output.live:
            self.catch_up()
        for special in self.specials.values():
            special.begin()
        self._resume_greetings()
        if any(text.startswith("$SYS/") for text in self.subscriptions):
            self.hub.system.watch(self)

    def _resume_greetings(self) -> None:
        rows, self._greeting_rows = self._greeting_rows, []
        for row in rows:
            if row.filter in self.subscriptions:
                self.hub.retained.greet(self, row.filter, row)
        for greeting in list(self.greetings.values()):
            greeting.go_on()

    def write_out(self) -> None:
        """Send waiting bytes."""
        chunks = self.output.take()
        if chunks and self.connection is not None:
            self.hub.counters.sent_bytes += sum(map(len, chunks))
            self.connection.write_chunks(chunks)
        if self.is_kept:
            self.on_change()

    def post(self, packets: list[Outgoing]) -> None:
        """Send messages that were read from the log.

        A kept session saves the packet ids of QoS 2 first, so that after a crash no message goes
        out under a second one (MQTT5 4.3.3).
        """
        careful = self.is_kept and any(packet.qos == 2 for packet in packets)
        if not self.is_saving and not careful:
            self._push(packets)
            return

        def send() -> None:
            faults.hit("mqtt.outgoing_saved")
            self._posting -= 1
            self._push(packets)
            self.catch_up()

        self.stop_following()  # new messages must not overtake these
        self._posting += 1
        self.saver.then(send)

    def _push(self, packets: list[Outgoing]) -> None:
        for packet in packets:
            packet.push(self.output)
        self.hub.counters.caught_up += len(packets)
        self.write_out()

    @property
    def is_saving(self) -> bool:
        """Whether messages wait for the state to be durable, or for the disk."""
        return self._posting > 0

    def fall_behind(self, source: LiveSource, offset: int) -> None:
        """Stop following: read the log from `offset` of this source, and from now of the others."""
        self.output.live = False
        positions = [
            Position(row.stream_id, row.partition, offset)
            if (row.stream_id, row.partition) == source.key
            else row
            for row in self._live_positions(*self.subscriptions)
        ]
        self._reading = self.hub.broker.cursors.reading(self.filters, positions)
        if self.output.room:
            self.hub.loop.call_soon(self.catch_up)

    def stop_following(self) -> None:
        """The peer reads too slowly: remember the positions, and read the log later."""
        if self.output.live:
            self.output.live = False
            if self.subscriptions:
                positions = self._live_positions(*self.subscriptions)
                self._reading = self.hub.broker.cursors.reading(self.filters, positions)

    def catch_up_alone(self) -> None:
        """Read what cannot be read together with other sessions."""
        self.catch_up(alone=True)

    def catch_up(self, *, alone: bool = False) -> None:
        """Read the log while the client has room. Follow the end again once it is reached."""
        connection, reading = self.connection, self._reading
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
        if connection is None or connection.is_slow or self.output.live or self.is_saving:
            return
        if self.ride is not None:
            return
        if self.output.room and self._hungry:
            self._feed_hungry()
        room = min(self.output.room, CATCH_UP_RECORDS)
        if room == 0 or self.is_saving:
            return  # the next acknowledgement or the saver calls again
        if reading is None:
            self.output.live = True
            return
        if self._hungry:
            room = (room + 1) // 2  # special subscriptions have a share of the window
            alone = True
        try:
            reading.check()
            if not has_caught_up(self.hub.live, reading):
                if not alone and not self._passed and self.hub.convoy.take(self, reading):
                    return
                self.post(read_packets(self, reading, room, self._passed))
        except Closed:
            return
        self._wait_or_follow(reading)

    def _wait_or_follow(self, reading: Reading) -> None:
        if self.is_saving:
            return  # it goes on when that is done
        if has_caught_up(self.hub.live, reading):
            self._stop_reading()
            for row in self.subscriptions.values():
                row.since = []
            self._passed.clear()
            self.output.live = True
        elif reading.may_go_on():
            self.hub.loop.call_soon(self.catch_up)
        else:
            self._wait = reading.when_readable(self._readable)

    def _readable(self, _error: OnelogError | None) -> None:
        self._wait = None
        self.hub.loop.call_soon(self.catch_up)

    def matching(self) -> Matcher:
        """Which of its subscriptions want a message."""
        if self._matcher is None:
            self._matcher = Matcher(self.client_id, self.subscriptions)
        return self._matcher

    def _stop_reading(self) -> None:
        if self.ride is not None:
            self.hub.convoy.leave(self.ride)
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def leave_off(self) -> None:
        """Its client gets nothing more: remember the positions if it is kept."""
        self.output.live = self.output.live and self.is_kept
        self.stop_following()

    def park(self) -> None:
        """The connection is gone."""
        self.leave_off()
        if self._redelivery is not None and self._redelivery.is_waiting:
            self._redelivery.cancel()
            self._posting -= 1
        self._redelivery = None
        self.output.writer = None
        self.connection = None
        self._hungry.clear()
        for text, row in self.subscriptions.items():
            if row.exclusive:
                self.hub.clients.exclusive.release(text, self.client_id)
        for special in {*self.specials.values(), *(row[0] for row in self.owned.values())}:
            special.park()
        for text in self.subscriptions:
            self.hub.fanout.unsubscribe(text.encode(), self.output)
        self.output.take()

    def let_go(self) -> None:
        """The state is kept or not needed: release every reference that holds the session."""
        self.output.owner = None
        for held in (self.specials, self.owned, self.greetings):
            held.clear()
