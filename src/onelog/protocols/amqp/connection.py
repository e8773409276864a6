"""One AMQP connection: handshake, tune, heartbeats, frames to channels, the end.

Rules:
- Before the connection is open, only the handshake is accepted, within a deadline, and frames are
  small. Another protocol header gets ours as an answer, and the connection ends (4.2.2).
- A channel's methods take effect in their order. While one of them waits, the channel's later
  frames wait too, up to a bound: beyond that nothing is read from the peer (I8). They also wait
  while too many bytes are unsent, because their answers would add to these.
- A hard error closes the connection with its code, a soft one the channel; never another connection
  (I10). After a close everything is ignored until the peer's close-ok, or a deadline. Bytes that
  the peer still sends are read from the socket before it is closed, so that the connection ends in
  order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from onelog.base.errors import OnelogError
from onelog.broker import Principal
from onelog.kernel import AmqpInput, AmqpReader
from onelog.net import (
    ByteBound,
    Deadline,
    OwnedTasks,
    Pauses,
    Peer,
    SilenceWatch,
    StreamTransport,
    Throttled,
)
from onelog.observe import get_logger
from onelog.protocols.amqp import frames
from onelog.protocols.amqp.blocking import tell_blocked, tell_unblocked
from onelog.protocols.amqp.channel import Channel
from onelog.protocols.amqp.errors import BUG, AmqpError, Reply, amqp_error
from onelog.protocols.amqp.frames import Ack, Event, Frame, Publish
from onelog.protocols.amqp.handshake import Handshake
from onelog.protocols.amqp.reading import TURN, ConnectionReads
from onelog.protocols.amqp.states import State
from onelog.security.identity import Identity
from onelog.security.quotas.seat import QuotaSeat

if TYPE_CHECKING:
    from onelog.protocols.amqp.hub import Hub
    from onelog.queues.vhosts import VirtualHost

_log = get_logger("amqp")

_UNTUNED_FRAME_BYTES: Final = 8192
"""Largest frame before the tune, as RabbitMQ has it."""
_LOOKS: Final = 4
"""A heartbeat goes out each half interval; a peer silent for two intervals is gone (4.2.7)."""
_CLOSE_DEADLINE_S: Final = 5.0
_WRITE_HIGH_BYTES: Final = 1024 * 1024
_WAITING: Final = "frames that wait for a method before them"
_UNWRITTEN: Final = "publishes that are not durable yet"
_BLOCKED: Final = "publishes that cannot be taken now"
_OVER_QUOTA: Final = "more than the quota"
_TOLD_S: Final = 0.1
"""A shorter pause needs no message."""


class Connection(AmqpReader, Throttled):
    """A peer that speaks AMQP. All methods run on the loop."""

    __slots__ = (
        "__weakref__", "_deadline", "_handshake", "_opening", "_resumed", "_state", "_tasks",
        "blocked_by", "body_bytes", "channel_max", "connected_ms", "heartbeat_s", "hub",
        "identity", "login_name", "mechanism", "name", "peer", "principal", "properties",
        "unwritten", "vhost", "waiting", "written",
    )  # fmt: skip

    _transport: StreamTransport | None
    channels: dict[int, Channel]
    pauses: Pauses
    reading: ConnectionReads
    seat: QuotaSeat | None

    def __init__(self, hub: Hub, peer: Peer) -> None:
        self.hub = hub
        self.peer = peer
        self.counters = hub.counters
        self.envelopes = hub.envelopes
        self.unacked_max = hub.limits.unacked
        self.loop_time = hub.loop.time
        self.queues = hub.queues
        self.clock = hub.clock
        self.name = peer.address
        self.state = State.HEADER
        self.identity: Identity | None = None
        self.principal: Principal | None = None
        self.login_name = ""
        self.mechanism = ""
        self.vhost: VirtualHost | None = None
        self.properties: dict[str, Any] = {}
        """The properties that the client sent in its start-ok."""
        self.channel_max = hub.limits.channels
        self.frame_bytes_max = _UNTUNED_FRAME_BYTES
        self.heartbeat_s = 0
        self.channels = {}
        self.connected_ms = hub.clock.now_ms()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.written: dict[str, None] = {}
        """Topics that it published to, to show who writes them (`note_written`)."""
        self.blocked_by: frozenset[str] = frozenset()
        """Why its publishes are not taken now."""
        self.seat = None
        self._handshake = Handshake(self)
        self.reading = ConnectionReads(self)
        self._transport = None
        self.input = AmqpInput(_UNTUNED_FRAME_BYTES)
        self._opening = b""
        self._writing = True
        self._resumed = 0
        """The channel that went on first when the peer last read again."""
        self.pauses = Pauses()
        self.waiting = ByteBound(self.pauses, hub.limits.waiting_bytes, _WAITING)
        self.unwritten = ByteBound(self.pauses, hub.limits.unwritten_bytes, _UNWRITTEN)
        """The bound of unhandled bytes, so that a fast peer cannot fill the memory."""
        self.body_bytes = 0
        """Bytes of incomplete bodies, on all channels."""
        self._deadline = Deadline(hub.loop)
        """The deadline of the login, then of the next heartbeat, then of the end."""
        self._tasks = OwnedTasks(hub.loop)

    # -- the transport's side

    def connection_made(self, transport: StreamTransport) -> None:
        """The connection stands."""
        self._transport = transport
        self.pauses.begin(transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self.hub.connections.add(self)
        self.hub.counters.connects += 1
        self._deadline.start(self.hub.limits.login_timeout_ms / 1000, self._login_late)

    def _login_late(self) -> None:
        if self.state in (State.HEADER, State.HANDSHAKE):
            self.abort("no login in time")

    @property
    def state(self) -> State:
        """How far it is."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self.is_open = state is State.OPEN

    def take_slowly(self, data: bytes) -> None:
        """Take a read that may be anything."""
        if self.state is State.CLOSED:
            return
        self.pauses.heard = True
        self.received_bytes += len(data)
        self.hub.counters.received_bytes += len(data)
        try:
            if self.state is State.HEADER:
                data = self._take_protocol_header(data)
            self.reading.take(data)
        except Exception as error:  # noqa: BLE001 - a bug ends one connection
            self.reading.fail(error)

    def fail_with(self, error: BaseException) -> None:
        """Close the connection because of an error."""
        if not isinstance(error, OnelogError):
            self.hub.broker.troubles.note(BUG, self.state.value, error, peer=self.name)
            error = AmqpError(Reply.INTERNAL_ERROR, str(error))
        self.fail(amqp_error(error))

    def _take_protocol_header(self, data: bytes) -> bytes:
        """The bytes after the protocol header; empty while the header is incomplete."""
        wanted = frames.PROTOCOL_HEADER
        data = self._opening + data
        if len(data) < len(wanted) and wanted.startswith(data):
            self._opening = data
            return b""
        if not data.startswith(wanted):
            # 4.2.2: the answer names the version that is spoken here.
            self._write_now([wanted])
            self.abort("another protocol header")
            return b""
        self.state = State.HANDSHAKE
        self._handshake.begin()
        return data[len(wanted) :]

    def take(self, frame: Event) -> None:
        """One event of the peer, in its order."""
        if self.state is State.CLOSED:
            return
        if not isinstance(frame, Frame):
            self._take_whole(frame)
            return
        if frame.kind == frames.HEARTBEAT:
            if frame.channel:
                raise AmqpError(Reply.UNEXPECTED_FRAME, "a heartbeat on a channel")
            if len(frame.payload):
                raise AmqpError(Reply.FRAME_ERROR, "a heartbeat has no payload")
            return
        if frame.channel == 0:
            self._take_control(frame)
        elif self.state is State.OPEN:
            self._take_channel(frame)
        elif self.state is not State.CLOSING:
            raise AmqpError(Reply.CHANNEL_ERROR, "a channel before the connection is open")

    def _take_whole(self, event: Publish | Ack) -> None:
        """Take an event that spans whole frames."""
        if self.state is State.CLOSING:
            return
        channel = self.channels.get(event.channel)
        if event.channel == 0 or self.state is not State.OPEN or channel is None:
            raise AmqpError(
                Reply.CHANNEL_ERROR, f"expected 'channel.open' on channel {event.channel}"
            )
        channel.take(event)

    def _take_control(self, frame: Frame) -> None:
        if frame.kind != frames.METHOD:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "a content on channel 0")
        method = frames.decode_method(frame.payload)
        if isinstance(method, commands.Connection.CloseOk):
            self._end()
        elif isinstance(method, commands.Connection.Close):
            if self.state is State.OPEN:
                self.state = State.CLOSING
                self._deadline.stop()
                self.input.forget()
                self.run(self._leave())
            else:
                self.send(0, commands.Connection.CloseOk())
                self._end()
        elif self.state is not State.CLOSING:
            self._handshake.take(method)

    async def _leave(self) -> None:
        """The peer leaves: its earlier methods take effect, then its own queues are deleted."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                for channel in list(self.channels.values()):
                    await channel.quiet()
        for channel in list(self.channels.values()):
            channel.lost()
        self.channels.clear()
        if self.vhost is not None:
            await self.vhost.owner_gone(self)
        self.send(0, commands.Connection.CloseOk())
        self._end()

    def _take_channel(self, frame: Frame) -> None:
        channel = self.channels.get(frame.channel)
        if channel is None:
            channel = self._open_channel(frame)
            if channel is None:
                return
        channel.take(frame)

    def _open_channel(self, frame: Frame) -> Channel | None:
        number = frame.channel
        if frame.kind == frames.METHOD:
            method = frames.decode_method(frame.payload)
            if isinstance(method, commands.Channel.Open):
                if self.channel_max and len(self.channels) >= self.channel_max:
                    raise AmqpError(
                        Reply.NOT_ALLOWED,
                        f"number of channels opened ({len(self.channels)}) has reached the"
                        f" negotiated channel_max ({self.channel_max})",
                    )
                self.channels[number] = Channel(self, number)
                self.send(number, commands.Channel.OpenOk())
                return None
            if isinstance(method, commands.Channel.Close):
                self.send(number, commands.Channel.CloseOk())
            if isinstance(method, (commands.Channel.Close, commands.Channel.CloseOk)):
                return None
        raise AmqpError(Reply.CHANNEL_ERROR, f"expected 'channel.open' on channel {number}")

    def forget_channel(self, number: int) -> None:
        """A channel has ended; its number may be used again."""
        self.input.forget()
        self.channels.pop(number, None)

    def eof_received(self) -> bool | None:
        """The peer sends no more: it is gone."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        del exc
        self.state = State.CLOSED
        self._deadline.stop()
        self._handshake.end()
        self.hub.connections.discard(self)
        self.hub.counters.disconnects += 1
        for channel in list(self.channels.values()):
            channel.lost()
        self.channels.clear()
        self._tasks.cancel()
        if self.seat is not None:
            self.seat.leave()
            self.seat = None
        if self.vhost is not None:
            self.hub.queues.run(self.vhost.owner_gone(self))
        self._transport = None
        self.pauses.end()
        # They refer to the connection: otherwise all three would wait for the cycle collector.
        del self._handshake, self.reading

    def pause_writing(self) -> None:
        """The peer reads too slowly: its consumers get nothing for now."""
        self._writing = False

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._writing = True
        self.pauses.heard = True  # it was perhaps not read meanwhile, and is not silent
        channels = list(self.channels.values())
        if channels:
            # Each time another channel is the first, because one alone could fill the socket.
            self._resumed = (self._resumed + 1) % len(channels)
            for channel in channels[self._resumed :] + channels[: self._resumed]:
                channel.go_on()
                channel.may_deliver()

    @property
    def is_over(self) -> bool:
        """Whether further events of the peer are ignored."""
        return self.state is State.CLOSED

    @property
    def is_writable(self) -> bool:
        """Whether the peer keeps up with reading."""
        return self._writing and self.is_open

    @property
    def is_stuffed(self) -> bool:
        """Whether so many bytes are unsent that no method is handled that would add to them."""
        if self._writing or self._transport is None:
            return False
        return self._transport.get_write_buffer_size() > 2 * _WRITE_HIGH_BYTES

    # -- the handshake's side

    def opened(self, vhost: VirtualHost) -> None:
        """The peer has opened its virtual host."""
        self.vhost = vhost
        self.state = State.OPEN
        self.hub.counters.logins += 1
        self._deadline.stop()
        if self.heartbeat_s and self._transport is not None:
            self._beat()
            is_reading = self._transport.is_reading
            watch = SilenceWatch(
                self._deadline, self.pauses, is_reading, self._fell_silent, self._beat
            )
            watch.start(self.heartbeat_s / 2, _LOOKS)

    def log_in(self, identity: Identity, login_name: str) -> bool:
        """The peer is authenticated; its login name may differ from its identity. False: too
        late."""
        self.identity = identity
        self.login_name = login_name or identity.name
        self.principal = identity.principal("amqp")
        return self.state in (State.HANDSHAKE, State.OPEN)

    def tuned(self, channel_max: int, frame_bytes_max: int, heartbeat_s: int) -> None:
        """Set the values that both sides agreed on."""
        self.channel_max = channel_max
        self.frame_bytes_max = self.input.frame_bytes_max = frame_bytes_max
        self.heartbeat_s = heartbeat_s

    def _beat(self) -> None:
        if self._writing:  # otherwise other bytes wait, and a heartbeat would only add to them
            self.write([frames.HEARTBEAT_FRAME])

    def _fell_silent(self) -> None:
        self.hub.counters.heartbeats_missed += 1
        self.abort("missed heartbeats")

    # -- sending

    def send(self, channel: int, method: Any) -> None:
        """Send a method."""
        self.write([frames.encode_method(channel, method)])

    def write(self, pieces: list[Any]) -> None:
        """Send pieces; the transport sends what is written in one pass together."""
        if self.state is not State.CLOSED:
            self._write_now(pieces)

    def _write_now(self, pieces: list[Any]) -> None:
        if self._transport is not None and pieces:
            size = sum(map(len, pieces))
            self.sent_bytes += size
            self.hub.counters.sent_bytes += size
            self._transport.writelines(pieces)

    def write_one(self, data: bytes) -> None:
        """Send whole frames."""
        if self._transport is not None and self.state is not State.CLOSED:
            self.sent_bytes += len(data)
            self.hub.counters.sent_bytes += len(data)
            self._transport.write(data)

    # -- pacing

    @property
    def lacks_room(self) -> bool:
        """Whether the disk is full, or a quota of the program that runs the broker refuses it."""
        return _BLOCKED in self.blocked_by

    def block(self, why: str) -> None:
        """Publishes of the peer cannot be accepted now: send connection.blocked, and stop
        reading."""
        tell_blocked(self, _BLOCKED, why)
        self.pauses.pause(_BLOCKED)

    def unblock(self) -> None:
        """The peer may publish again."""
        tell_unblocked(self, _BLOCKED)
        self.pauses.resume(_BLOCKED)

    def held_back(self, seconds: float) -> None:
        """The peer is over its quota, and is not read: tell it, if that takes long."""
        if seconds >= _TOLD_S and self.state is State.OPEN:
            tell_blocked(self, _OVER_QUOTA, "the client does more than its quota allows")

    def let_on(self) -> None:
        """The peer is read again."""
        tell_unblocked(self, _OVER_QUOTA)

    def is_able(self, capability: str) -> bool:
        """Whether the client announced a capability."""
        capabilities = self.properties.get("capabilities")
        return isinstance(capabilities, dict) and bool(capabilities.get(capability))

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
        """Run a coroutine that ends with the connection. If it fails, the connection fails."""
        return self._tasks.run(work, self.fail_with)

    # -- the end

    def fail(self, error: AmqpError, method: Any = None) -> None:
        """Close the connection with an error's code."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        self.hub.counters.protocol_errors += 1
        why = error.reply_text
        _log.info("an AMQP connection is closed", peer=self.name, user=self.login_name, why=why)
        if self.state is State.HEADER:
            self.abort(str(error))
            return
        self.close(error.code, why, method)

    def close(self, code: int, text: str, method: Any = None) -> None:
        """Send connection.close with the reason."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        index = method.index if method is not None else 0
        self.state = State.CLOSING
        self.input.forget()
        for channel in list(self.channels.values()):
            channel.lost()
        self.channels.clear()
        for why in self.pauses.reasons - {TURN}:
            self.pauses.resume(why)  # its close-ok must be read
        self.send(
            0,
            commands.Connection.Close(
                reply_code=int(code),
                reply_text=text,
                class_id=index >> 16,
                method_id=index & 0xFFFF,
            ),
        )
        self._deadline.start(_CLOSE_DEADLINE_S, self._end)

    def user_changed(self) -> None:
        """The peer's user was changed or removed, and could not log in any more: close."""
        assert self.identity is not None
        self.close(320, f"CONNECTION_FORCED - user '{self.identity.name}' was changed")

    def abort(self, why: str) -> None:
        """Close without a word: the peer does not speak AMQP, or is gone."""
        _log.info("an AMQP connection is ended", peer=self.name, user=self.login_name, why=why)
        self._end()

    def _end(self) -> None:
        self.state = State.CLOSED
        self._deadline.stop()
        if self._transport is not None:
            self._transport.part()
