"""One connection of a link: bytes of a socket to frames, and the frames of a pass to one write.

Rules:
- What is sent within one pass of the loop goes out in one write; neighbours of one kind are one
  frame.
- A peer is asked for a sign of life each half second. A peer that says nothing for four looks in a
  row is silent, and one that answers none of them for twenty does not read: both end the link. It
  counts looks, not time: a node that was stopped itself blames nobody for it.
- Batches go out as far as the peer gave credit. What waits for credit are views of the log, as many
  as the windows of feeds allow; a sender that asks for `room` first keeps nothing waiting. All else
  that waits for the peer is bounded by `REST_BYTES_MAX`.
- Reading never stops because the peer does not read: two nodes could wait for each other.
- Bad bytes, a wrong proof and a fault of ours in taking a frame end this connection, and nothing
  else (I10). The peer hears the reason, if it can be sent.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from onelog.base.clock import Clock
from onelog.base.errors import ProtocolViolation, Unavailable
from onelog.base.limits import (
    BATCH_BYTES_MAX,
    FORWARD_WINDOW_BYTES,
    LINK_CALL_BYTES_MAX,
    LINK_WINDOW_BYTES,
)
from onelog.cluster.forward_frames import ForwardBatch, Forwarded, LinkFrame
from onelog.cluster.frames import AckFeed, CloseFeed, FeedBatches, FeedLane, OpenFeed
from onelog.cluster.link.calls import Answering, Asking, Handler
from onelog.cluster.link.codec import decode_frame, encode_frames
from onelog.cluster.link.credit import ReceiveCredit, SendCredit
from onelog.cluster.link.handshake import LinkHandshake
from onelog.cluster.link.hello import FORWARDING, Agreed, Sender, decode_bye, encode_bye
from onelog.cluster.link.layout import (
    FRAME_BYTES_MAX,
    INNER_HEAD_BYTES,
    SHAKE_BYTES_MAX,
    LinkKind,
    LinkViolation,
    frame,
    read_head,
)
from onelog.kernel import pass_of
from onelog.net.deadline import Deadline
from onelog.net.frames import Frame, FrameCutter
from onelog.observe import Troubles

SHAKE_S: Final = 5.0
"""How long a handshake may take."""
PING_S: Final = 0.5
SILENT_LOOKS: Final = 4
"""Looks in a row without a byte of the peer."""
UNANSWERED_MAX: Final = 20
"""Pings in a row without an answer."""
PART_S: Final = 1.0
"""How long the last words to a peer may take."""
REST_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes that may wait for the peer beside batches: acknowledgements, calls, answers."""
_FORWARDS_BYTES_MAX: Final = FORWARD_WINDOW_BYTES + BATCH_BYTES_MAX
LINK_TROUBLE: Final = "inner-link"
"""Incidents: a frame of another node met a fault of ours."""

NOBODY: Final = -1
"""The node of a connection that has not said which."""
_U64: Final = struct.Struct(">Q")
_AT_ONCE: Final = (AckFeed, OpenFeed, ForwardBatch, Forwarded)
"""What no leader of a feed sends: it need not wait behind batches that wait for credit."""
NEVER: Final = float("-inf")
_FORWARDS: Final = (LinkKind.FORWARD, LinkKind.FORWARDED)
_ANSWER: Final = 1
"""Flag of a PING that answers one."""


class LinkOwner(Protocol):
    """Whoever has the connections of a node."""

    troubles: Troubles
    counters: LinkCounters
    clock: Clock

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """What other nodes may call."""
        ...

    def handshake(self, connection: LinkConnection, secure: Any) -> LinkHandshake:
        """The handshake of a new connection; `secure` is its `ssl` object, None without TLS.
        Raises LinkViolation."""
        ...

    def opened(self, connection: LinkConnection) -> None:
        """The peer has proved who it is. Raises LinkViolation if it is not wanted."""
        ...

    def received(self, connection: LinkConnection, frame: LinkFrame) -> None:
        """A frame of a feed. Its bytes count as dealt with when this returns."""
        ...

    def has_room(self, connection: LinkConnection) -> None:
        """Credit came after there was none."""
        ...

    def lost(self, connection: LinkConnection) -> None:
        """The connection is gone; `ended` says why."""
        ...


class LinkCounters:
    """What all connections of a node did."""

    __slots__ = (
        "frames_in",
        "frames_out",
        "in_bytes",
        "opened",
        "out_bytes",
        "violations",
        "writes",
    )

    def __init__(self) -> None:
        self.opened = 0
        self.violations = 0
        self.frames_in = 0
        self.frames_out = 0
        self.writes = 0
        self.in_bytes = 0
        self.out_bytes = 0


class LinkConnection(asyncio.Protocol):
    """One of the two connections between two nodes."""

    __slots__ = (
        "_answering", "_clock", "_counters", "_cutter", "_deadline", "_frame_bytes_max",
        "_frames", "_handshake", "_heard", "_held", "_incoming", "_is_starved", "_loop",
        "_out_bytes_max", "_outgoing", "_owner", "_pass", "_pending", "_silent_looks",
        "_table", "_transport", "_unanswered", "agreed", "answered_at", "asking", "closed", "dials",
        "ended", "is_silent", "lane", "rtt_s", "sender", "to",
    )  # fmt: skip

    def __init__(
        self, owner: LinkOwner, *, dials: bool, to: int = NOBODY, lane: FeedLane = FeedLane.LIVE
    ) -> None:
        """`to` is the node that is dialled, for `lane`; HELLO of a dialler says it."""
        self._loop = asyncio.get_running_loop()
        self._pass = pass_of(self._loop)
        self._owner = owner
        self._counters = owner.counters
        self._clock = owner.clock
        self.dials = dials
        self.to = to
        self.agreed: Agreed | None = None
        self.lane = lane
        self.sender = Sender(NOBODY, 0)
        """The peer, once it is known."""
        self.ended: str | None = None
        """Why the connection ended, or is ending."""
        self.is_silent = False
        """Whether it ended because nothing came from the peer."""
        self.closed = self._loop.create_future()
        """Done when the socket is gone."""
        self.rtt_s = 0.0
        """How long the last answer to a ping took."""
        self.answered_at = NEVER
        """When this node sent the newest ping that was answered, in the time of the loop. What the
        peer had said before it answered is known here."""
        self._transport: Any = None
        self._handshake: LinkHandshake | None = None
        self._cutter = FrameCutter()
        self._frames: deque[Frame] = deque()
        self._pending: list[LinkFrame | bytes] = []
        self._held: deque[LinkFrame] = deque()
        """What waits for credit."""
        self._incoming = ReceiveCredit(LINK_WINDOW_BYTES)
        self._outgoing = SendCredit(1)
        self._is_starved = False
        self._out_bytes_max = REST_BYTES_MAX
        self._frame_bytes_max = SHAKE_BYTES_MAX
        self._deadline = Deadline(self._loop)
        self._heard = False
        self._silent_looks = 0
        self._unanswered = 0
        self.asking = Asking(self._loop, self.say)
        self._answering = Answering(self._loop, self.say, owner.handlers, owner.troubles)
        self._table: dict[int, Callable[[int, int, bytes], None]] = {
            LinkKind.BYE: self._take_bye,
            LinkKind.PING: self._take_ping,
            LinkKind.CREDIT: self._take_credit,
            LinkKind.CALL: self._take_call,
            LinkKind.ANSWER: self._take_answer,
            LinkKind.CANCEL: self._take_cancel,
        }

    # -- the beginning and the end

    def connection_made(self, transport: Any) -> None:
        """The socket stands: say HELLO, or wait for one."""
        self._transport = transport
        if self.ended is not None:  # this node stopped between the accept and now
            transport.abort()
            return
        self._deadline.start(SHAKE_S, self.end, f"no handshake within {SHAKE_S:g} s")
        try:
            secure = transport.get_extra_info("ssl_object")
            self._handshake = self._owner.handshake(self, secure)
        except LinkViolation as error:
            self._violated(error)
            return
        if self.dials:
            self._write(self._handshake.begin())

    def _opened(self, agreed: Agreed) -> None:
        peer = agreed.peer
        self.agreed = agreed
        self.to = peer.node
        self.sender = Sender(peer.node, peer.epoch)
        self.lane = FeedLane.BULK if peer.purpose == "bulk" else FeedLane.LIVE
        self._outgoing = SendCredit(peer.window)
        self._out_bytes_max = REST_BYTES_MAX + peer.window + BATCH_BYTES_MAX + _FORWARDS_BYTES_MAX
        self._frame_bytes_max = FRAME_BYTES_MAX
        self._transport.set_write_buffer_limits(high=self._out_bytes_max)
        self._heard = True
        self._counters.opened += 1
        self._deadline.start(PING_S, self._look)
        self._owner.opened(self)

    def end(self, reason: str) -> None:
        """Say why, and close; the peer has a second to take it. Idempotent."""
        if self.ended is not None:
            return
        self.ended = reason
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._flush_now()
        self._write(frame(LinkKind.BYE, encode_bye(reason)))
        transport.close()
        self._deadline.start(PART_S, transport.abort)

    def _write(self, data: bytes) -> None:
        # Each write may find that the peer is gone; uvloop raises at the next one then.
        if not self._transport.is_closing():
            self._transport.write(data)

    def _cut_off(self, reason: str) -> None:
        """End at once: the peer takes nothing, so it gets no words."""
        if self.ended is None:
            self.ended = reason
            self._transport.abort()

    def _violated(self, error: ProtocolViolation) -> None:
        self._counters.violations += 1
        self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self.ended is None:
            self.ended = f"the connection broke ({exc})" if exc else "the peer closed it"
        self._deadline.stop()
        self._pending.clear()
        self._held.clear()
        self.asking.lost(self.to)
        self._answering.lost()
        if not self.closed.done():
            self.closed.set_result(None)
        self._owner.lost(self)

    def eof_received(self) -> None:
        """The peer sends no more: so do we."""

    # -- signs of life

    def _look(self) -> None:
        self._silent_looks = 0 if self._heard else self._silent_looks + 1
        self._heard = False
        self._unanswered += 1
        if self._silent_looks >= SILENT_LOOKS:
            self.is_silent = True
            self._cut_off(f"silent for {SILENT_LOOKS * PING_S:g} s")
            return
        if self._unanswered > UNANSWERED_MAX:
            words = f"no ping was answered for {UNANSWERED_MAX * PING_S:g} s: it does not read"
            self._cut_off(words)
            return
        self._deadline.start(PING_S, self._look)
        self.say(frame(LinkKind.PING, _U64.pack(int(self._clock.monotonic() * 1e6))))

    def _take_ping(self, flags: int, channel: int, body: bytes) -> None:
        if flags & ~_ANSWER or channel or len(body) != _U64.size:
            raise LinkViolation(f"PING with flags {flags} and {len(body)} bytes")
        if not flags:
            self.say(frame(LinkKind.PING, body, 0, _ANSWER))
            return
        self._unanswered = 0
        self.rtt_s = max(0.0, self._clock.monotonic() - _U64.unpack(body)[0] / 1e6)
        self.answered_at = self._loop.time() - self.rtt_s

    # -- sending

    @property
    def room(self) -> int:
        """Bytes of batches that go out at once; 0 or less: `has_room` will be called."""
        if self.agreed is None or self.ended is not None:
            return 0
        left = self._outgoing.left
        if left <= 0 or self._held:
            self._is_starved = True
            return min(0, left)
        return left

    def send(self, one: LinkFrame) -> None:
        """Send a frame with this pass, or as soon as the peer gives credit for it."""
        if self.ended is not None:
            return
        if self._held and not _goes_at_once(one):
            self._held.append(one)  # frames of a leader keep their order
        elif not isinstance(one, FeedBatches):
            self._queue(one)
        elif self._outgoing.left <= 0:
            self._held.append(one)
        else:
            self._outgoing.spend(len(one.data))
            self._queue(one)

    def _send_held(self) -> None:
        held, credit = self._held, self._outgoing
        while held:
            one = held[0]
            if isinstance(one, FeedBatches):
                if credit.left <= 0:
                    return
                credit.spend(len(one.data))
            self._queue(held.popleft())

    def say(self, data: bytes) -> None:
        """Send an encoded frame with this pass."""
        if self.ended is None:
            self._queue(data)

    def _queue(self, one: LinkFrame | bytes) -> None:
        if not self._pending:
            self._pass.call_last(self._flush)
        self._pending.append(one)

    def _flush(self) -> None:
        self._flush_now()
        waiting = self._transport.get_write_buffer_size()
        if waiting > self._out_bytes_max:
            self._cut_off(f"{waiting} bytes wait for the peer: it does not read")

    def _flush_now(self) -> None:
        pending, self._pending = self._pending, []
        if not pending or self._transport.is_closing():
            return
        try:
            pieces = encode_frames(pending)
        except Exception as error:  # noqa: BLE001 - a fault of ours: the stream is broken
            self._owner.troubles.note(LINK_TROUBLE, f"to node {self.to}", error)
            self._cut_off("a frame could not be written: see the log")
            return
        counters = self._counters
        counters.frames_out += len(pending)
        counters.writes += 1
        counters.out_bytes += sum(map(len, pieces))
        self._transport.writelines(pieces)

    async def call(self, method: str, argument: Any, timeout_s: float) -> bytes:
        """Ask the peer; its answer in msgpack."""
        if self.agreed is None or self.ended is not None:
            raise Unavailable(f"there is no link to node {self.to}")
        return await self.asking.ask(self.to, method, argument, timeout_s)

    # -- receiving

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer."""
        self._heard = True
        self._counters.in_bytes += len(data)
        self._pass.run(lambda: self._receive(data))

    def _receive(self, data: bytes) -> None:
        frames = self._frames
        try:
            self._cut(data)
            while frames and self.ended is None:
                self._take(*frames.popleft())
            if self.ended is None:
                self._cutter.check(self._frame_bytes_max)
        except ProtocolViolation as error:
            self._violated(error)
        except Exception as error:  # noqa: BLE001 - it must not reach the loop: the link ends
            self._owner.troubles.note(LINK_TROUBLE, f"node {self.to}", error)
            self.end("a fault of the other node: see its log")
        if self.ended is not None:
            frames.clear()

    def _cut(self, data: bytes) -> None:
        self._cutter.take(data, self._frame_bytes_max, self._frames)

    def _take(self, buffer: bytes | bytearray, start: int, end: int) -> None:
        kind, flags, channel = read_head(buffer, start, end)
        start += INNER_HEAD_BYTES
        self._counters.frames_in += 1
        if self.agreed is None:
            self._take_shake(kind, flags, bytes(buffer[start:end]))
            return
        act = self._table.get(kind)
        if act is not None:
            if end - start > LINK_CALL_BYTES_MAX:
                raise LinkViolation(f"a frame of kind {kind} with {end - start} bytes")
            act(flags, channel, bytes(buffer[start:end]))
            return
        if kind in _FORWARDS and not self.agreed.features & FORWARDING:
            raise LinkViolation(f"a frame of kind {kind}, which was not agreed on")
        for one in decode_frame(kind, flags, channel, buffer, start, end):
            if self.ended is not None:
                return
            if isinstance(one, FeedBatches):
                size = len(one.data)
                self._incoming.take(size)
                self._owner.received(self, one)
                total = self._incoming.free(size)
                if total is not None:
                    self.say(frame(LinkKind.CREDIT, _U64.pack(total)))
            else:
                self._owner.received(self, one)

    def _take_shake(self, kind: int, flags: int, body: bytes) -> None:
        assert self._handshake is not None
        if kind == LinkKind.BYE:
            self._take_bye(flags, 0, body)
            return
        answer = self._handshake.take(kind, body)
        if answer:
            self._write(answer)
        agreed = self._handshake.agreed
        if agreed is not None:
            self._handshake = None
            self._opened(agreed)
            # Frames that came with the proof may be longer than those before it.
            self._cut(b"")

    def _take_bye(self, _flags: int, _channel: int, body: bytes) -> None:
        reason = decode_bye(body).reason
        self.ended = f"the peer ended it: {reason}"
        self._transport.close()
        self._deadline.start(PART_S, self._transport.abort)

    def _take_credit(self, flags: int, channel: int, body: bytes) -> None:
        if flags or channel or len(body) != _U64.size:
            raise LinkViolation(f"CREDIT with flags {flags} and {len(body)} bytes")
        self._outgoing.grant(_U64.unpack(body)[0])
        self._send_held()
        if self._is_starved and self._outgoing.left > 0:
            self._is_starved = False
            self._owner.has_room(self)

    def _take_call(self, flags: int, channel: int, body: bytes) -> None:
        if flags:
            raise LinkViolation(f"CALL with flags {flags}")
        self._answering.called(self.to, channel, body)

    def _take_answer(self, flags: int, channel: int, body: bytes) -> None:
        self.asking.answered(channel, flags, body)

    def _take_cancel(self, flags: int, channel: int, body: bytes) -> None:
        if flags or body:
            raise LinkViolation("CANCEL has neither flags nor a body")
        self._answering.cancelled(channel)


def _goes_at_once(one: LinkFrame) -> bool:
    return isinstance(one, _AT_ONCE) or (isinstance(one, CloseFeed) and one.by_copy)
