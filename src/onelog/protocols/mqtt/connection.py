"""A connection: bytes in, kernel, packets to their handlers, bytes out; keep-alive and the end.

Rules:
- `data_received` is one kernel call for all plain packets of a read; the rest is dispatched by the
  table of `handlers`, in order. A handler that has to wait suspends the connection: packets that
  came after it are not handled until it is done.
- Bad bytes end this connection with MQTT's own code and nothing else (I10).
- A peer that does not read is sent nothing more, and its session reads the log later (I8).
  `net/pace.py` decides how long such a peer may stay, and when it is not read either.
- The last packet is followed by a half close, so that the peer reads it before the socket goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from onelog.base.errors import (
    MessageTooLarge,
    NotAuthenticated,
    OnelogError,
    ProtocolViolation,
    QuotaExceeded,
)
from onelog.base.late_event import LateEvent
from onelog.broker import NOBODY, Cursor, Principal, Session
from onelog.kernel import MqttInput, MqttOutput, encode_acks
from onelog.net import (
    Deadline,
    OwnedTasks,
    Pauses,
    Peer,
    SilenceWatch,
    StreamTransport,
    Throttled,
)
from onelog.observe import get_logger
from onelog.protocols.mqtt.codec import answer_version, decode_packet
from onelog.protocols.mqtt.elsewhere import told
from onelog.protocols.mqtt.errors import MqttError, malformed
from onelog.protocols.mqtt.fitting import explained, fit_packet
from onelog.protocols.mqtt.handlers import HANDLERS
from onelog.protocols.mqtt.hub import Hub
from onelog.protocols.mqtt.pacing import charge_of, count_request
from onelog.protocols.mqtt.packet_types import V5, V311, PacketType
from onelog.protocols.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubrec,
    Suback,
    Will,
)
from onelog.protocols.mqtt.properties import NO_PROPERTIES, Properties
from onelog.protocols.mqtt.reasons import RETURN_CODES, ReasonCode
from onelog.protocols.mqtt.routes import no_route, resolver
from onelog.protocols.mqtt.session import MqttSession
from onelog.protocols.mqtt.state import CLOSED, CONNECTED, NEW, State, advance
from onelog.protocols.mqtt.unanswered import Unanswered
from onelog.security.identity import Identity
from onelog.security.quotas.seat import QuotaSeat
from onelog.security.scram import ScramExchange

_log = get_logger("mqtt")

PACKETS_PER_PASS: Final = 64
"""Packets of a read, other than those that the kernel handles, that are handled before others have
a turn: a read may have more than a hundred thousand of the smallest ones."""
_LOOKS: Final = 4
"""How often a silent peer is checked before its keep-alive is over."""
_CONNECT: Final = PacketType.CONNECT
_TURN: Final = "the others have their turn"
_WORK: Final = "a handler waits"


class Connection(Throttled):
    """One MQTT connection, over any transport."""

    __slots__ = (
        "__weakref__", "_is_lost", "_taken", "_tasks", "_unread", "_writable", "_written",
        "aliases", "connect_packet", "data_received", "deadline", "door", "entered",
        "exchange", "gone", "hub", "identity", "input", "is_entering", "is_slow", "output",
        "pauses", "peer", "principal", "published", "seat", "session", "state",
        "token_timer", "transport", "unanswered", "version", "will", "written",
    )  # fmt: skip

    def __init__(self, hub: Hub, peer: Peer) -> None:
        self.hub, self.peer = hub, peer
        self.transport: StreamTransport
        self.state = NEW
        self.version = 0
        self.principal: Principal = NOBODY
        self.seat: QuotaSeat | None = None
        """Its place in the quotas, from CONNECT to the end."""
        self.identity: Identity | None = None
        self.session: MqttSession | None = None
        self.door: Session | None = None
        self.will: Will | None = None
        self.exchange: ScramExchange | None = None
        self.connect_packet: Connect | None = None
        self.aliases: dict[int, str] = {}
        self.written: dict[str, None] = {}
        """Topics that it published to, as far as the kernel asked (`RouteTable.set_aside`)."""
        self.is_slow = False
        self._writable: asyncio.Event | None = None
        """Set when the peer reads again, while packets wait for that."""
        self.gone = LateEvent()
        self._unread = bytearray()
        self._taken = 0
        """Packets that the kernel left to Python."""
        self.pauses = Pauses()
        self._tasks = OwnedTasks(hub.loop)
        self._is_lost = False
        self.is_entering = False
        """Whether its session is being attached. That is finished, even when the socket is lost."""
        self.entered = LateEvent()
        """Set when the session is attached, or could not be: only then can it be released."""
        self.deadline = Deadline(hub.loop)
        """Of the keep-alive; that of CONNECT is the hub's (`logins`)."""
        self.token_timer: asyncio.TimerHandle | None = None  # ends a login by token
        limits = hub.limits
        self.output = MqttOutput(None, 0, limits.inflight)
        self.input = MqttInput(self.output, {}, no_route, limits.connect_packet_bytes)
        self.input.join(self, hub.turn)
        self.unanswered = Unanswered(self.input, limits.receive_maximum)
        self.data_received = self.input.receive
        """One call of the kernel per read."""
        self.published = 0
        """Publishes that the kernel left to Python."""
        self._written = 0
        """How many of these publishes are visible, or have failed."""

    # -- the transport's side

    def connection_made(self, transport: StreamTransport) -> None:
        """The socket is connected; CONNECT has to come in time."""
        self.transport = transport
        self.pauses.begin(transport)
        self.hub.connections.add(self)
        transport.set_write_buffer_limits(self.hub.limits.outbox_bytes)
        self.hub.logins.begin(self, transport.abort)

    def keep_unread(self, data: bytes) -> None:
        """Keep bytes that came while a handler waits, or after the end."""
        if self.state is not CLOSED:
            self._unread += data

    def take_packets(self, event: tuple[int, bytes] | None) -> None:
        """Handle packets that the kernel left to Python, in order, until one has to wait."""
        try:
            while event is not None:
                self._packet(*event)
                self._taken += 1
                if not self.input.suspended and self._taken % PACKETS_PER_PASS == 0:
                    self.start(self._turn_of_others())
                if self.input.suspended:
                    return
                event = self.input.feed(b"", self.hub.clock.now_ms())
        except OnelogError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours ends one connection (I10)
            self._fault(error)

    async def _turn_of_others(self) -> None:
        """Between packets: others have a turn, and the peer reads its answers first."""
        await asyncio.sleep(0)
        if self.is_slow and not self._is_lost:
            self._writable = asyncio.Event()
            await self._writable.wait()

    def _go_on(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set()

    def catch_up(self) -> None:
        """There may be room for a session that reads the log."""
        if self.session is not None and self.output.room:
            self.session.catch_up()

    def rest(self) -> None:
        """This connection has read its share of the pass: others have a turn."""
        if _TURN not in self.pauses.reasons and not self.transport.is_closing():
            self.pauses.pause(_TURN)
            self.hub.loop.call_soon(self.pauses.resume, _TURN)

    def eof_received(self) -> bool | None:
        """The peer sends no more."""
        return False

    def pause_writing(self) -> None:
        """The peer reads too slowly: its session reads the log later."""
        self.is_slow = True
        # Not at once: this call may come in the middle of a delivery, and the position of the feed
        # is right for this client only after it.
        self.hub.loop.call_soon(self._follow_no_more)

    def _follow_no_more(self) -> None:
        if self.is_slow and self.session is not None:
            self.session.stop_following()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.is_slow = False
        self._go_on()
        if self.session is not None:
            self.session.catch_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self.output.writer = None
        del exc
        self.hub.counters.disconnects += 1
        self.state = CLOSED
        self._is_lost = True
        self._leave_quotas()
        self._go_on()
        self.stop_clocks()
        if self.token_timer is not None:
            self.token_timer.cancel()
        if self.session is not None:
            self.start(self.hub.leave(self), at_once=True)
        elif not self.is_entering:
            self._tasks.cancel()
        self._part()

    def _part(self) -> None:
        """Leave the hub once no work of the connection is under way: closing waits for that."""
        if self._is_lost and not self._tasks and not self.gone.is_set():
            self.hub.connections.discard(self)
            if self.input.version:  # it was accepted
                self.hub.routes.leave(self.principal)
            self.gone.set()
            # Release references here: the cycle collector comes too seldom.
            self.input.owner = None
            self.door = None
            self.stop_clocks()
            self.pauses.end()

    # -- packets

    def _packet(self, first: int, body: bytes) -> None:
        if self.version == 0 and first >> 4 == _CONNECT:
            self.version = answer_version(body)
        packet = decode_packet(first, body, self.version or V311)
        self.state = advance(self.state, packet.type)
        if self.seat is not None and self.seat.is_paced:
            count_request(self.seat, packet.type)
        HANDLERS[packet.type](self, packet)

    def start(self, work: Coroutine[Any, Any, None], *, at_once: bool = False) -> None:
        """Run a coroutine; later packets of the peer are not handled until it is done.

        With `at_once` it runs in this call up to where it has to wait."""
        self.input.suspended = True
        run = self._tasks.run_at_once if at_once else self._tasks.run
        task = run(self._finish(work), self._fault)
        if task is not None:
            self.pauses.pause(_WORK)
            task.add_done_callback(lambda _task: work.close())  # it may be cancelled at its begin
            task.add_done_callback(lambda _task: self._part())

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except OnelogError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - as in `take_packets`
            self._fault(error)
        if self.state is CLOSED:
            return  # later packets of the peer are not handled
        self.input.suspended = False
        if _WORK in self.pauses.reasons:  # else it did not wait, and its caller goes on
            self.pauses.resume(_WORK)
            data = bytes(self._unread)
            self._unread.clear()
            self.input.receive(data)

    def send(self, packet: Packet) -> None:
        """Send a packet; leave out explanations that the client has no room for (3.1.2-24)."""
        data = fit_packet(packet, self.version or V311, self.output.packet_bytes_max)
        if data is not None:
            self.send_bytes(data)
        elif not isinstance(packet, Connack | Disconnect):  # after those we close anyway
            self.end(ReasonCode.PACKET_TOO_LARGE)

    def send_explained(self, packet: Puback | Pubrec | Suback, error: OnelogError | None) -> None:
        """Send an answer, with a reason string if the client wants it (MQTT5 3.1.2-29)."""
        asked = self.connect_packet
        told = asked is None or asked.properties.request_problem_information is not False
        if error is not None and told and self.version == V5:
            packet = msgspec.structs.replace(packet, properties=explained(error))
        self.send(packet)

    def send_bytes(self, data: bytes) -> None:
        """Send a whole packet."""
        self.hub.counters.sent_bytes += len(data)
        self.write(data)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if data and self.state is not CLOSED and not self.transport.is_closing():
            self.transport.write(data)

    def write_chunks(self, chunks: list[bytes]) -> None:
        """Send several pieces."""
        if self.state is not CLOSED:
            self.transport.writelines(chunks)

    def open_up(self) -> None:
        """The client is accepted: let the kernel handle its plain packets."""
        hub = self.hub
        self.join_routes()
        self.input.packet_bytes_max = hub.limits.packet_bytes
        self.input.version = self.version
        self.quotas_changed()
        if self.version == V5:
            self.input.receive_maximum = hub.limits.receive_maximum
        self.tag_publishes()

    def join_routes(self) -> None:
        """Let the kernel use the routes of the client's principal."""
        self.input.routes = self.hub.routes.join(self.principal)
        # Without the connection, which has the input: a cycle.
        self.input.resolve = resolver(self.hub, self.principal, self.written)

    def quotas_changed(self) -> None:
        """Let the kernel report what it stages if anybody counts it."""
        self.input.charge = charge_of(self)

    def patience_spent(self) -> None:
        """The peer would be held back for too long: disconnect it (0x97)."""
        self.fail(QuotaExceeded("the client does more than its quota allows; connect again later"))

    def _leave_quotas(self) -> None:
        seat, self.seat = self.seat, None
        self.input.charge = None  # it refers to the connection
        if seat is not None:
            seat.leave()

    def tag_publishes(self) -> None:
        """Let the client's publishes carry its id while it has a `no local` subscription."""
        session = self.session
        if session is not None:  # else the socket was lost while a subscription was being opened
            needed = self.hub.shares.settings.needs_publishers or session.hides_own
            self.input.publisher = session.client_id.encode() if needed else b""

    def after_saving(self, answer: Callable[[], None], *more: Cursor) -> None:
        """Answer when the session's state is durable, if it is kept, and that of `more`."""
        if self.session is None or not self.session.is_kept:
            answer()
            return
        saver = self.session.saver
        saver.then(answer, *more)
        if saver.is_full and not self.input.suspended:
            self.start(saver.finish())

    @property
    def is_publishing(self) -> bool:
        """Whether the client has publishes that may not be visible yet."""
        return self.input.staged + self.published != self._written

    async def wait_published(self) -> None:
        """Wait until all publishes of the client are visible, or have failed."""
        session, count = self.session, self.input.staged + self.published
        written = asyncio.Event()
        self.hub.broker.publisher.when_written(written.set)
        await written.wait()
        if session is not None:
            await session.inbound.finish()
        self._written = count

    @property
    def keeps(self) -> bool:
        """Whether the session's subscriptions are kept."""
        return self.session is not None and self.door is not None and self.door.is_kept

    # -- acknowledgements

    def acknowledge_some(self, acks: bytes, reasons: dict[int, int]) -> None:
        """Acknowledge publishes of which some failed. Version 3 has no code for that."""
        if self.version == V5:
            self.write(self.input.answer(acks, reasons))
            return
        for at in range(0, len(acks), 4):
            if int.from_bytes(acks[at + 2 : at + 4], "big") in reasons:
                self.write(encode_acks(acks[:at]))
                self.end(ReasonCode.UNSPECIFIED_ERROR)
                return
        self.write(self.input.answer(acks))

    # -- time

    def accept(self, keep_alive_s: float) -> None:
        """CONNECT came in time; from now on the keep-alive counts."""
        self.stop_clocks()
        if keep_alive_s:
            is_reading, on_silent = self.transport.is_reading, self._fell_silent
            watch = SilenceWatch(self.deadline, self.input, is_reading, on_silent)
            watch.start(keep_alive_s * 1.5 / _LOOKS, _LOOKS)  # MQTT5 3.1.2-22

    def stop_clocks(self) -> None:
        """Neither CONNECT nor anything else has to come in time. Idempotent."""
        self.hub.logins.end(self)
        self.deadline.stop()

    def _fell_silent(self) -> None:
        self.end(ReasonCode.KEEP_ALIVE_TIMEOUT)
        self.transport.close()  # nothing of a silent peer is unread: its will need not wait

    # -- the end

    def fail(self, error: OnelogError) -> None:
        """End the connection with the reason code of an error."""
        if isinstance(error, MessageTooLarge):
            error = MqttError(ReasonCode.PACKET_TOO_LARGE, str(error))
        elif isinstance(error, ProtocolViolation) and not isinstance(error, MqttError):
            error = malformed(str(error))
        user = "" if self.identity is None else self.identity.name
        _log.info("connection ended", peer=self.peer.address, user=user, reason=str(error))
        if self.state in (NEW, State.AUTHENTICATING):
            # If a CONNECT cannot be read, nobody knows how long an answer the client accepts.
            reason, words = told(self, error, PacketType.CONNACK)
            self.refuse(reason, words if self.state is State.AUTHENTICATING else NO_PROPERTIES)
        else:
            self.end(*told(self, error, PacketType.DISCONNECT))

    def _fault(self, error: BaseException) -> None:
        """An unexpected error: it is reported, and ends this connection only."""
        self.hub.broker.troubles.note("mqtt-connection", self.state.value, error)
        try:
            self.fail(OnelogError("the broker could not handle this packet; its log says why"))
        except Exception as again:  # noqa: BLE001 - then without a word
            self.hub.broker.troubles.note("mqtt-connection", "end", again)
            self.transport.abort()

    def refuse(self, reason: ReasonCode, properties: Properties = NO_PROPERTIES) -> None:
        """Refuse CONNECT. A peer that never sent one is closed without an answer."""
        self.hub.counters.refused += 1
        # The version is known from the first byte of a CONNECT, however bad the rest is. Version 3
        # has no code for some reasons: there the close is the answer (MQTT311 3.1.4-1).
        if self.version == V5 or (self.version and RETURN_CODES[reason] is not None):
            self.send(Connack(reason=reason, properties=properties))
        self._close()

    def end(self, reason: ReasonCode, properties: Properties = NO_PROPERTIES) -> None:
        """Disconnect the peer; version 5 gets the reason."""
        if self.state is CLOSED:
            return
        if self.version == V5 and self.state is CONNECTED:
            self.send(Disconnect(reason, properties))
        self._close()

    async def taken_over(self) -> None:
        """Another connection speaks for the client: close this one and release the session."""
        self.end(ReasonCode.SESSION_TAKEN_OVER)
        await self.hub.let_go(self, taken_over=True)

    def user_changed(self) -> None:
        """The client's user was changed or removed, and could not log in any more: end."""
        error = NotAuthenticated(f"the user {self.principal.name!r} was changed; log in again")
        if self.state is CONNECTED:
            self.end(ReasonCode.ADMINISTRATIVE_ACTION, Properties(reason_string=str(error)))
        elif self.state is not CLOSED:
            self.fail(error)

    def shut_down(self) -> None:
        """The broker stops."""
        if self.state is CONNECTED:
            self.end(ReasonCode.SERVER_SHUTTING_DOWN)
        else:
            self._close()

    def send_no_more(self) -> None:
        """Deliver nothing more: new messages wait for the session's next connection."""
        self.state = CLOSED
        self.is_slow = True
        if self.session is not None:
            self.session.leave_off()
            self.session.output.writer = None

    def _close(self) -> None:
        self.send_no_more()
        self.input.suspended = True  # later packets of the peer are not handled
        if self.transport.is_closing():
            return
        self.stop_clocks()
        # The system resets a connection that is closed with unread input, and the peer may lose
        # the last packet: half close, let the peer read, then close. TLS has no half close.
        if self.transport.get_extra_info("ssl_object") is None:
            self.transport.part()
        else:
            self.transport.resume_reading()
            self.transport.close()
