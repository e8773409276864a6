"""The hub: what all MQTT connections of a node share: routes in, fan-out, acknowledgements.

Rules:
- A read of N plain publishes is one kernel call; the door's tick writes one batch per partition;
  acknowledgements go out when the connection's messages are durable (`acknowledging`, I4).
- A batch that became visible is encoded once per shape for all sessions that follow the end. A
  session that cannot keep up falls behind and reads the log (I8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from onelog.base.clock import Clock
from onelog.base.errors import NotLeader, OnelogError, Unavailable
from onelog.base.ids import Offset
from onelog.base.late_event import LateEvent
from onelog.broker import MAIN, Broker, LiveSource, PartitionHandle, Principal, Record
from onelog.broker.hanging import hang
from onelog.broker.producer_ids import ProducerIds
from onelog.kernel import MqttFanout, MqttOutput, MqttPass, MqttRoute, check_topic
from onelog.net import ConnectionCounters, Connections, LoginClock
from onelog.protocols.mqtt.acknowledging import puback_reason
from onelog.protocols.mqtt.client_shards import ClientShards
from onelog.protocols.mqtt.convoy import Convoy
from onelog.protocols.mqtt.delayed import Delayed
from onelog.protocols.mqtt.delivery import delivery_properties
from onelog.protocols.mqtt.features import MqttFeatures
from onelog.protocols.mqtt.limits import MqttLimits
from onelog.protocols.mqtt.permission import Deliveries, check_owner, look_anew, share_cursor
from onelog.protocols.mqtt.replay import open_replay
from onelog.protocols.mqtt.retained import CURSOR as RETAINED_CURSOR
from onelog.protocols.mqtt.retained import Retained
from onelog.protocols.mqtt.rewrite import Rewriter
from onelog.protocols.mqtt.routes import RouteTable
from onelog.protocols.mqtt.shares import Shares
from onelog.protocols.mqtt.special import Special, parse_address
from onelog.protocols.mqtt.subscribed import Subscribed
from onelog.protocols.mqtt.system import System
from onelog.protocols.mqtt.traced import TracedFeed, TracedMember
from onelog.protocols.mqtt.wills import Wills
from onelog.queues.addresses import has_own_stream, is_writable
from onelog.security.authenticator import Authenticator

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection
    from onelog.protocols.mqtt.session import MqttSession

PASS_BYTES_MAX: Final = 1024 * 1024
"""Bytes read from one connection before the others have a turn."""


class Counters(ConnectionCounters):
    """Plain numbers. `sent_bytes` leaves out bytes that the kernel wrote."""

    __slots__ = ("caught_up", "fallen_behind", "published", "refused")

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0
        self.fallen_behind = 0
        self.published = 0
        """Messages from clients that the kernel left to Python."""
        self.caught_up = 0
        """Messages to clients that the fan-out did not send."""


class Hub:
    """All of MQTT on one node."""

    def __init__(
        self,
        broker: Broker,
        authenticator: Authenticator,
        limits: MqttLimits,
        clock: Clock,
        features: MqttFeatures | None = None,
    ) -> None:
        features = features or MqttFeatures()
        self.broker = broker
        self.live = broker.new_live("mqtt")
        self.authenticator = authenticator
        self.limits = limits
        self.clock = clock
        self.turn = MqttPass(
            broker.publisher.dirty,
            clock,
            broker.publisher.tick_soon,
            PASS_BYTES_MAX,
            puback_reason,
        )
        self.loop = asyncio.get_running_loop()
        self.counters = Counters()
        self.deliveries: Deliveries | None = None
        """Asked for each delivery; None while the authorizer does not decide on deliveries."""
        self.fanout = MqttFanout(delivery_properties, self.may_have)
        self.convoy = Convoy(self)
        self._choose_deliveries()
        self.sessions: dict[str, MqttSession] = {}
        """Sessions with a connection, by client id."""
        self.connections: Connections[Connection] = Connections(
            authenticator.is_current, broker.troubles
        )
        self.logins = LoginClock(self.loop, limits.connect_timeout_ms / 1000)
        """Connections whose CONNECT has not come."""
        self._leaving: dict[Connection, tuple[MqttSession, LateEvent]] = {}
        """Connections that are gone, their sessions, which are being saved, and the end of that."""
        self.wills = Wills(self)
        self.shares = Shares(self, features.shares)
        if broker.traces is not None:
            self.shares.member = TracedMember
        self.delayed = Delayed(broker, clock, features.delayed)
        self.clients = ClientShards(self)
        self.system = System(self, features.system)
        self.rewriter = Rewriter(features.rewrite)
        self.features = features
        self.producer_ids = ProducerIds(broker.store)
        self.retained: Retained
        self.routes = RouteTable(is_rewritten=bool(self.rewriter))
        self._undo = ExitStack()
        if broker.nodes is not None:
            hang(self._undo, broker.nodes.forwards.on_full, self.routes.forget)
            hang(self._undo, broker.nodes.forwards.on_room, self.routes.crowd.let_go)
        hang(self._undo, broker.publisher.on_tick, self.turn.await_stages)
        hang(self._undo, broker.streams.on_change, self._streams_changed)
        self._undo.callback(authenticator.on_change(self.connections.user_changed))
        hang(self._undo, broker.authorizer.on_change, self._permissions_changed)
        self._opened = asyncio.Event()
        self.is_abandoned = False
        """Whether it could not be opened. Then every client is refused."""
        self._guard = ExitStack()
        hang(self._guard, broker.maintenance.before_trim, self._before_trim)
        hang(self._guard, broker.maintenance.before_compaction, self._before_compaction)
        # A SUBSCRIBE never reads the object store: copies of retained messages stay on the disk.
        hang(self._guard, broker.maintenance.tiering.before_cold, self._before_trim)

    async def open(self) -> None:
        """Bring the state that derives from the log up to date. Connections may come after that."""
        try:
            self.broker.sessions.check_known()
            self.retained = await Retained.open(
                self.broker, self.live, self.clock, self.limits.retained_messages
            )
            await self.retained.catch_up()
            # Nothing runs between the two: the feed has all records from here on.
            traces = self.broker.traces
            if traces is None:
                self.live.start(self, fanout=self.fanout)
            else:
                self.live.start(TracedFeed(self, traces))
            self.retained.history.look()
            await self.producer_ids.open()
            await self.clients.open()
            hang(self._undo, self.broker.cluster.on_change, self.routes.forget)
        finally:
            self._opened.set()  # retention goes on, or fails and takes nothing

    async def abandon(self) -> None:
        """It could not be opened: release everything, so that another can be opened.

        Retained messages stay guarded until `unguard`: nothing leaves that nobody could copy.
        """
        self.is_abandoned = True
        self._undo.close()
        self.live.stop()
        await self._stop()
        table = self.broker.cursors.find(RETAINED_CURSOR)
        if table is not None:
            self.broker.cursors.abandon(table)

    def unguard(self) -> None:
        """Another hub guards the retained messages."""
        self._guard.close()

    async def _before_trim(self, partition: PartitionHandle, start: Offset) -> None:
        await self._know_retained()
        await self.retained.before_trim(partition, start)

    async def _before_compaction(self, partition: PartitionHandle, upto: Offset) -> None:
        await self._know_retained()
        await self.retained.before_compaction(partition, upto)

    async def _know_retained(self) -> None:
        await self._opened.wait()
        if self.is_abandoned:
            raise Unavailable("MQTT is not open: nobody copies what is retained")

    # -- numbers

    @property
    def received_messages(self) -> int:
        """Messages that clients published."""
        return self.turn.received_messages + self.counters.published

    @property
    def delivered_messages(self) -> int:
        """Messages that were sent to clients."""
        return self.fanout.delivered + self.counters.caught_up

    @property
    def sent_bytes(self) -> int:
        """Bytes that were sent to clients, answers included."""
        return self.fanout.sent_bytes + self.turn.answered_bytes + self.counters.sent_bytes

    # -- the way in

    def fits(self, topic: bytes) -> bool:
        """Whether a topic or filter is within the limits."""
        limits = self.limits
        return len(topic) <= limits.topic_bytes and topic.count(b"/") < limits.topic_levels

    def may_write(self, topic: str) -> bool:
        """Whether clients may publish to a topic: one that begins with $ belongs to a queue or to
        us."""
        if has_own_stream(topic):
            return self.broker.streams.home(topic).name != MAIN  # no client has made its stream yet
        return is_writable(topic)

    def resolve(self, principal: Principal, topic: bytes) -> MqttRoute | None:
        """The route of a topic; None: each publish to it needs a check."""
        aside = self.routes.find_aside(principal, topic, self.clock.monotonic())
        if aside is not None:
            return aside
        if not check_topic(topic) or topic.startswith(b"$") or not self.fits(topic):
            return None
        text: str | None = topic.decode()
        try:
            if self.rewriter:
                text = self.rewriter.route(topic.decode(), principal.name)
            if text is None or text.startswith("$"):
                return None
            found = self.broker.publisher.route(text, principal)
        except OnelogError:
            return None
        if found is None:
            return None
        route = MqttRoute(text.encode(), *found)
        self.routes.keep(principal, topic, route)
        return route

    def _permissions_changed(self) -> None:
        self.routes.forget()  # they include the right to publish
        self._choose_deliveries()
        look_anew(self)
        self.shares.rights_changed()

    def _choose_deliveries(self) -> None:
        authorizer, troubles = self.broker.authorizer, self.broker.troubles
        found = Deliveries(authorizer, troubles) if authorizer.checks_delivery else None
        self.deliveries = found
        self.fanout.forget_plans()
        self.convoy.forget_plans()

    def may_have(self, session: MqttSession, topic: bytes) -> bool:
        """Whether a session may have a topic. The fan-out remembers it with the topic's plan."""
        return self.deliveries is None or self.deliveries.allows_session(session, topic)

    def _streams_changed(self) -> None:
        self.routes.drop(self.broker.streams.touched)
        if self.live.listener is not None:
            self.retained.history.look()

    # -- the way out

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        """Give batches that became visible to all sessions that follow the end."""
        topic = source.fixed_topic
        following, touched, fallen = self.fanout.deliver(
            data, source.number, source.position, self.clock.now_ms(), topic
        )
        self.handed_out(source, data, following, touched, fallen)
        return following

    def handed_out(
        self,
        source: LiveSource,
        data: bytes | bytearray,
        following: int,
        touched: list[MqttOutput],
        fallen: list[tuple[MqttOutput, int]],
    ) -> None:
        """The fan-out came to `following`: finish what it left."""
        if self.fanout.retained:
            self.fanout.retained = False
            self.retained.note_batches(source, data, following)
        source.position = following
        self._finish(source, touched, fallen)

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        """Give records that were read from the log to all sessions that follow the end."""
        touched: list[MqttOutput] = []
        fallen: list[tuple[MqttOutput, int]] = []
        now_ms = self.clock.now_ms()
        try:
            for record in records:
                self.fanout.deliver_record(
                    record.topic.encode(),
                    record.value or b"",
                    record.headers,
                    (source.number, record.offset),
                    now_ms,
                    touched,
                    fallen,
                )
                self.retained.note_record(source, record)
                source.position = record.offset + 1
        finally:  # whatever a record does, earlier ones go out
            self._finish(source, touched, fallen)

    def release(self, numbers: set[int]) -> set[int]:
        """Partitions are gone. Returns those of which messages are in flight."""
        held: set[int] = set()
        for session in (*self.sessions.values(), *(row[0] for row in self._leaving.values())):
            if session.output.pending:
                held.update(row[1] for row in session.output.in_flight())
        return held & numbers

    def _finish(
        self,
        source: LiveSource,
        touched: list[MqttOutput],
        fallen: list[tuple[MqttOutput, int]],
    ) -> None:
        for output in touched:
            self.isolated(output, output.owner.write_out)
        for output, offset in fallen:
            self.counters.fallen_behind += 1
            self.isolated(output, output.owner.fall_behind, source, offset)
        if self.fanout.broken:
            broken, self.fanout.broken = self.fanout.broken, []
            for output, error in broken:
                self._broke(output, error)

    def isolated(self, output: MqttOutput, act: Callable[..., None], *said: object) -> None:
        """Let the owner of an output act. If it raises, only its connection ends."""
        try:
            act(*said)
        except Exception as error:  # noqa: BLE001
            self._broke(output, error)

    def _broke(self, output: MqttOutput, error: Exception) -> None:
        self.broker.troubles.note("mqtt-session", "mqtt", error, client=output.owner.client_id)
        connection = output.owner.connection
        if connection is not None:
            connection.transport.abort()

    async def open_special(
        self, session: MqttSession, row: Subscribed, principal: Principal
    ) -> Special:
        """A subscription that delivers by itself, ready to begin."""
        address = parse_address(row.filter)
        if address.kind == "replay":
            return await open_replay(self, session, row, address)
        check_owner(self, principal, share_cursor(address.argument))
        return await self.shares.join(session, row, address)

    # -- leaving

    async def leave(self, connection: Connection) -> None:
        """A connection is gone: park or end its session."""
        await self.let_go(connection, taken_over=False)

    async def let_go(self, connection: Connection, *, taken_over: bool) -> None:
        """Separate a session from its connection. A will is published unless the client sent
        DISCONNECT."""
        if connection.is_entering:  # a cursor that is still being opened cannot be closed
            await connection.entered.wait()
        session, door = connection.session, connection.door
        if session is None or door is None:
            leaving = self._leaving.get(connection)
            if leaving is not None:  # the next connection needs the state that is being saved
                await leaving[1].wait()
            return
        connection.session = None
        left = LateEvent()
        self._leaving[connection] = session, left
        try:
            session.park()
            if self.sessions.get(session.client_id) is session:
                del self.sessions[session.client_id]
            self.broker.shards.check_led(session.client_id.encode())
            await session.inbound.finish()
            await self.broker.cursors.close_cursor(session)
            if connection.will is not None:
                will, connection.will = connection.will, None
                expiry_ms = door.record.expiry_ms
                self.wills.leave(session.client_id, connection.principal, will, expiry_ms)
            else:
                self.wills.forget(session.client_id)
            if not taken_over:
                await self.broker.sessions.detach(door)
        except NotLeader:  # all of it is the next owner's, as it was kept last
            self.broker.cursors.abandon(session)
            connection.will = None
        finally:
            left.set()
            session.let_go()
            del self._leaving[connection]

    # -- the end

    def dismiss(self) -> None:
        """Disconnect everybody."""
        for connection in list(self.connections):
            connection.shut_down()

    async def close(self) -> None:
        """Disconnect everybody; persistent sessions are kept."""
        self.dismiss()
        waiting = [connection.gone.wait() for connection in self.connections]
        waiting += [left.wait() for _session, left in self._leaving.values()]
        if waiting:
            await asyncio.wait([asyncio.ensure_future(wait) for wait in waiting], timeout=5)
        await self._stop()

    async def _stop(self) -> None:
        self.clients.close()
        self.logins.close()
        if hasattr(self, "retained"):
            self.retained.close()
            await self.retained.history.close()
        await self.wills.close()
        await self.shares.close()
        await self.delayed.close()
        self.system.close()
        await self.producer_ids.close()
