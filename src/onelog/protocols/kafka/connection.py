"""One client connection: frames in, answers out in the order of the requests.

Rules:
- A produce may begin while earlier produces wait to be durable. Any other request begins when all
  earlier ones are answered, as in Kafka, so that a client's requests take effect in their order.
- Waiting requests are bounded in number and bytes: beyond that nothing is read from the peer (I8).
  While the peer does not read its answers, nothing new begins.
- A frame that cannot be read ends this connection and no other (I10).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import NotAuthenticated, OnelogError, ProtocolViolation
from onelog.broker import Principal, note_failed_login
from onelog.kernel import FrameInput, parse_request_header
from onelog.net import Deadline, OwnedTasks, Pauses, Peer, StreamTransport, Throttled
from onelog.net.frames import LENGTH_BYTES, Frame, FrameCutter
from onelog.observe import get_logger
from onelog.protocols.kafka.admin.auditing import note_request
from onelog.protocols.kafka.answers import AnswerSlot
from onelog.protocols.kafka.apis import PRIVATE, SERVED, Api, ApiKey
from onelog.protocols.kafka.codec import (
    FLEXIBLE_FROM,
    Body,
    decode_request,
    encode_response,
    is_long,
    throttled,
)
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.fetching import begin_fetch
from onelog.protocols.kafka.handlers import HANDLERS
from onelog.protocols.kafka.producing import Produce
from onelog.protocols.kafka.refusals import error_body
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.sasl import SaslExchange
from onelog.security.identity import Identity
from onelog.security.quotas.seat import QuotaSeat

if TYPE_CHECKING:
    from onelog.config.listeners import KafkaListener
    from onelog.protocols.kafka.hub import Hub

_log = get_logger("kafka")
BUG: Final = "kafka-request"
"""Incidents: an unexpected error in a request ended its connection."""

RawStep = Callable[[bytes], Coroutine[Any, Any, bytes]]
"""Answers a frame that is no request."""

_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_VERSIONS: Final = {
    int(api.key): range(max(api.first, api.served), api.last + 1) for api in SERVED.values()
}
_TURN: Final = "the others have their turn"
_WAITING: Final = "requests that wait"
_WRITE_HIGH_BYTES: Final = 4 * 1024 * 1024
_READ_BYTES_MAX: Final = 1024 * 1024
"""Bytes that are read from one peer before others have their turn."""


class Connection(Throttled):
    """A peer that speaks Kafka. All methods run on the loop."""

    def __init__(self, hub: Hub, peer: Peer, listener: KafkaListener) -> None:
        self.hub = hub
        self.peer = peer
        self.listener = listener
        self.number = 0
        """Later connections have greater numbers."""
        self.principal: Principal | None = None
        """The identity of the peer; None until it has logged in."""
        self.identity: Identity | None = None
        self.client_id = ""
        """What the client calls itself, as far as it has said so."""
        self.written: dict[str, None] = {}
        """Topics that it produced to, to show who writes them (`note_written`)."""
        self.seat: QuotaSeat | None = None
        """Its place in the quotas, from the first request after the login on."""
        self.pacing: QuotaSeat | None = None
        """The same while a rate bounds it; else None, for a look where a call would be too much."""
        self.exchange: SaslExchange | None = None
        """The login in progress."""
        self.on_raw_frame: RawStep | None = None
        """Set while tokens of a login come as bare frames (SASL handshake v0)."""
        self._transport: StreamTransport | None = None
        self._input = FrameInput(self._take_read, self._take_frame)
        self.data_received = self._input.receive
        """Takes bytes of the peer, in order."""
        self._cutter = FrameCutter(self._input.expect)
        self._frames: deque[Frame] = deque()
        self._frame_bytes = 0
        self._read_bytes = 0
        self._slots: deque[AnswerSlot] = deque()
        self._tasks = OwnedTasks(hub.loop)
        self.pauses = Pauses()
        self._writing = True
        self._closed = False
        self.ends_after_answer = False
        """Whether the answer to the current request is the last one."""
        self._beginning = False
        self._last_request_at = 0.0
        self._deadline = Deadline(hub.loop)
        """The deadline of the login, then of an idle peer."""

    @property
    def advertised(self) -> tuple[str, int]:
        """The address that this client gets in metadata: as configured, or the one it connected
        to."""
        if self.listener.advertised:
            host, _, port = self.listener.advertised.rpartition(":")
            return host.strip("[]"), int(port)
        transport = self._transport
        name = transport.get_extra_info("sockname") if transport is not None else None
        return (name[0], name[1]) if name else ("127.0.0.1", self.listener.port)

    # -- the transport's side

    def connection_made(self, transport: StreamTransport) -> None:
        """The connection stands."""
        self._transport = transport
        self.pauses.begin(transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        hub = self.hub
        hub.connections.add(self)
        hub.counters.connects += 1
        self.number = hub.counters.connects
        self._log_in_by_network()
        self._last_request_at = hub.loop.time()
        self._watch(hub.limits.login_timeout_ms if self.principal is None else hub.limits.idle_ms)

    def _log_in_by_network(self) -> None:
        """Log in by a client certificate, or anonymously where that is allowed."""
        ask, peer = self.hub.authenticator, self.peer
        with contextlib.suppress(NotAuthenticated):
            if peer.certificate is not None:
                self.log_in(ask.certificate(peer.certificate))
                return
        with contextlib.suppress(NotAuthenticated):
            self.log_in(
                ask.anonymous(listener_is_loopback=peer.listener_is_loopback, peer_host=peer.host)
            )

    def log_in(self, identity: Identity) -> None:
        """The peer has logged in."""
        self.identity = identity
        self.principal = identity.principal("kafka")
        if self.seat is not None and self.seat.user != identity.name:
            self._leave_quotas()

    def _watch(self, after_ms: int) -> None:
        self._deadline.start(after_ms / 1000, self._look_at_clock)

    def _look_at_clock(self) -> None:
        if self.principal is None:
            self.close("no login in time")
            return
        now = self.hub.loop.time()
        if self._input.has_moved():  # a long request is on its way
            self._last_request_at = now
        idle_ms = (now - self._last_request_at) * 1000
        limit_ms = self.hub.limits.idle_ms
        if idle_ms >= limit_ms and not self._slots and not self._is_held():
            self.close("idle")
        else:
            self._watch(max(1000, int(limit_ms - idle_ms)))

    def _note_read(self, size: int) -> None:
        self.hub.counters.received_bytes += size
        self._last_request_at = self.hub.loop.time()
        self._read_bytes += size

    def _take_frame(self, frame: bytearray, read_bytes: int) -> None:
        """A long request is here; so many bytes of it are not counted yet."""
        if self._closed:
            return
        self._note_read(read_bytes)
        self._frame_bytes += len(frame) - LENGTH_BYTES
        self._frames.append((frame, LENGTH_BYTES, len(frame)))
        self._begin_frames()

    def _take_read(self, data: bytes) -> None:
        if self._closed:
            return
        self._note_read(len(data))
        try:
            self._frame_bytes += self._cutter.take(data, self.frame_bytes_max, self._frames)
            self._begin_frames()
            self._cutter.check(self.frame_bytes_max)
        except OnelogError as error:
            self.fail(error)

    @property
    def frame_bytes_max(self) -> int:
        """Bytes of one request that this peer may send now."""
        limits = self.hub.limits
        if self.principal is None:
            return limits.request_bytes_unauthenticated
        return limits.request_bytes

    def eof_received(self) -> bool | None:
        """The peer sends no more: answers that wait have no reader either."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        del exc
        self._closed = True
        self._input.end()
        self._cutter = FrameCutter()  # the beginning of a frame goes now, not with the collector
        self._leave_quotas()
        self.hub.connections.discard(self)
        self.hub.counters.disconnects += 1
        self._deadline.stop()
        self._frames.clear()
        for slot in self._slots:
            if slot.cancel is not None:
                slot.cancel()
        self._slots.clear()
        self._tasks.cancel()
        self.pauses.end()
        self._transport = None

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._writing = False

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._writing = True
        self._begin_frames()

    # -- requests

    def _begin_frames(self) -> None:
        if self._beginning:
            return  # the answer was ready at once; the loop below goes on
        self._beginning = True
        try:
            while self._frames and self._may_begin():
                frame = self._frames.popleft()
                self._frame_bytes -= frame[2] - frame[1]
                self._begin(frame)
        except OnelogError as error:
            self.fail(error)
        finally:
            self._beginning = False
        self._send_ready()
        if self._frames or self.pauses.reasons or self._read_bytes > _READ_BYTES_MAX:
            self._pace_reading()

    def _may_begin(self) -> bool:
        """Whether the next request may begin."""
        slots = self._slots
        if self._closed or not self._writing or len(slots) >= self.hub.limits.requests_waiting:
            return False
        if self.pacing is not None and self.pacing.is_held:
            return False
        if slots and not (slots[-1].is_produce and self._is_produce(self._frames[0])):
            self._send_ready()
            return not slots and self._writing
        return True

    # -- quotas

    def _seated(self, client_id: str) -> QuotaSeat:
        """The place of a client in the quotas. Raises QuotaExceeded when there are too many."""
        seat = self.seat
        if seat is None:
            assert self.identity is not None, "nothing is counted before the login"
            seat = self.seat = self.hub.broker.client_quotas.join(
                self, "kafka", self.identity.name, client_id, self.peer.listener
            )
        elif seat.client != client_id:
            seat.rename(client_id)
        self.quotas_changed()
        return seat

    def quotas_changed(self) -> None:
        """Look anew whether a rate bounds the client."""
        seat = self.seat
        self.pacing = seat if seat is not None and seat.is_paced else None

    def _is_held(self) -> bool:
        return self.pacing is not None and self.pacing.is_held

    def let_on(self) -> None:
        """The client has waited as long as its quota wants."""
        self._begin_frames()

    def _leave_quotas(self) -> None:
        seat, self.seat, self.pacing = self.seat, None, None
        if seat is not None:
            seat.leave()

    def _is_produce(self, frame: Frame) -> bool:
        buffer, start, end = frame
        return (
            self.on_raw_frame is None
            and end - start >= 2
            and buffer[start] == 0
            and buffer[start + 1] == _PRODUCE
        )

    def _pace_reading(self) -> None:
        if self._transport is None:
            return
        limits, pauses = self.hub.limits, self.pauses
        if self._read_bytes > _READ_BYTES_MAX and _TURN not in pauses.reasons:
            pauses.pause(_TURN)
            self.hub.loop.call_soon(self._read_on)
        waiting = len(self._frames)
        if waiting >= limits.requests_waiting or self._frame_bytes > limits.request_bytes:
            pauses.pause(_WAITING)
        else:
            pauses.resume(_WAITING)

    def _read_on(self) -> None:
        """Others had their turn."""
        self._read_bytes = 0
        self._pace_reading()
        self.pauses.resume(_TURN)

    def _begin(self, frame: Frame) -> None:
        hub = self.hub
        buffer, start, end = frame
        if self.on_raw_frame is not None:
            slot = self._new_slot()
            self.run(slot, self._raw(slot, self.on_raw_frame, bytes(buffer[start:end])))
            return
        key, version, correlation_id, client_id, at = parse_request_header(
            buffer, start, end, FLEXIBLE_FROM
        )
        hub.counters.requests += 1
        api = SERVED.get(key)
        if api is None:
            raise ProtocolViolation(f"the API {key} is not known here")
        if version not in _VERSIONS[key]:
            self._refuse_version(api, version, correlation_id, self._new_slot())
        elif not api.before_login and not self._is_logged_in():
            error = NotAuthenticated(f"a request {api.key.name} without a login that counts")
            if hub.authenticator.bans.admits(self.peer.host):
                note_failed_login(hub.broker.audit, "kafka", self.peer.host, "", error)
            raise error
        else:
            if (self.seat is None or self.pacing is not None) and not api.before_login:
                self._seated(client_id or "")
            if key == _PRODUCE:
                produce = Produce(self, version, correlation_id)
                self._slots.append(produce)
                produce.begin(buffer, at, end)
                return
            slot = self._new_slot()
            if self.pacing is not None and not api.before_login:
                slot.delay(self.pacing.ask(1))
            if key == _FETCH:
                begin_fetch(self, slot, (buffer, at, end), version, correlation_id)
                return
            data = bytes(buffer[at:end])
            body = data if key in PRIVATE else decode_request(api, version, data, 0)
            request = Request(api, version, correlation_id, client_id or "", body, self)
            self.client_id = request.client_id
            if self.seat is not None and self.seat.client != self.client_id:
                self._seated(self.client_id)
            self.run(slot, self._serve(slot, request))

    def _new_slot(self) -> AnswerSlot:
        slot = AnswerSlot(self)
        self._slots.append(slot)
        return slot

    def _is_logged_in(self) -> bool:
        expires_ms = -1 if self.identity is None else self.identity.expires_ms
        return not expires_ms or self.hub.clock.now_ms() < expires_ms

    def _refuse_version(
        self, api: Api, version: int, correlation_id: int, slot: AnswerSlot
    ) -> None:
        if api.key is not ApiKey.API_VERSIONS:
            raise ProtocolViolation(
                f"{api.key.name} version {version} is not served,"
                f" {max(api.first, api.served)} to {api.last} are"
            )
        # KIP-511: the answer has the form of version 0, and lists the served versions.
        body = self.hub.api_versions(ErrorCode.unsupported_version)
        slot.finish([encode_response(api, 0, correlation_id, body)])

    def run(self, slot: AnswerSlot, work: Coroutine[Any, Any, None]) -> None:
        """Let a coroutine fill a slot; it ends with the connection."""
        slot.cancel = self._tasks.run(work, self._broke).cancel

    def _broke(self, error: BaseException) -> None:
        """A slot stays empty, so no later request could be answered: close."""
        if not isinstance(error, OnelogError):
            self.hub.broker.troubles.note(BUG, "raw", error)
        self.fail(error)

    async def _raw(self, slot: AnswerSlot, step: RawStep, data: bytes) -> None:
        try:
            answer = await step(data)
        except OnelogError as error:
            self.fail(error)
            return
        slot.finish([len(answer).to_bytes(4, "big") + answer])

    async def _serve(self, slot: AnswerSlot, request: Request) -> None:
        api, version = request.api, request.version
        try:
            body = await self._answer(request)
            if slot.throttle_ms and body is not None:
                body = throttled(api, version, body, slot.throttle_ms)
            pieces = [] if body is None else [await self._encoded(request, body)]
        except OnelogError as error:
            self.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - one request's bug ends one connection
            self.hub.broker.troubles.note(BUG, api.key.name, error, version=version)
            self.fail(error)
            return
        slot.finish(pieces)

    async def _encoded(self, request: Request, body: Body | bytes) -> bytes:
        asked = (request.api, request.version, request.correlation_id)
        if not is_long(body):
            return encode_response(*asked, body)
        async with self.hub.long_answers:
            return await asyncio.to_thread(encode_response, *asked, body)

    async def _answer(self, request: Request) -> Body | bytes | None:
        try:
            answer = await HANDLERS[request.api.key](self.hub, request)
        except ProtocolViolation:
            raise
        except OnelogError as error:
            note_request(request, None, error)
            body = error_body(request, error)
            if body is None:
                raise
            if not isinstance(error, KafkaError):
                _log.info("a Kafka request was refused", api=request.api.key.name, why=str(error))
            return body
        note_request(request, answer, None)
        return answer

    # -- answers

    def answers_ready(self) -> None:
        """Send every answer whose turn it is, and begin requests that waited for that."""
        if not self._beginning:
            self._send_ready()
            if self._frames:
                self._begin_frames()

    def _send_ready(self) -> None:
        slots = self._slots
        if not slots or slots[0].pieces is None:
            return
        pieces: list[Any] = []
        while slots and (ready := slots[0].pieces) is not None:
            pieces += ready
            slots.popleft()
        if pieces and self._transport is not None:
            self.hub.counters.sent_bytes += sum(map(len, pieces))
            self._transport.writelines(pieces)
            if self.ends_after_answer:
                self.close("its login counts no more")

    # -- the end

    def fail(self, error: BaseException) -> None:
        """The peer sent something that cannot be answered: end this connection."""
        if not self._closed:
            self.hub.counters.protocol_errors += 1
            self.close(str(error))

    def close_after_answer(self) -> None:
        """The answer to the current request is the last one."""
        self.ends_after_answer = True

    def user_changed(self) -> None:
        """The client's user was changed or removed, and could not log in any more: end."""
        assert self.identity is not None
        if not self.ends_after_answer:  # otherwise it changed itself, and gets the answer first
            self.close(f"the user {self.identity.name} was changed")

    def close(self, why: str) -> None:
        """Send answers that are ready, then end."""
        if not self._closed:
            self._closed = True
            user = "" if self.principal is None else self.principal.name
            _log.info("a Kafka connection is closed", peer=self.peer.address, user=user, why=why)
        if self._transport is not None:
            self._transport.close()
