"""WebSocket as a transport: the protocol above sees a stream of bytes, as over TCP.

Rules:
- Binary frames only; a text frame ends the connection with 1003. Frames do not matter to the
  protocol: all the payload of one read reaches it in one call, and a write is one frame.
- Before the upgrade a peer can make us hold few bytes (I8) and has until a deadline. A request
  other than an upgrade gets an HTTP error. The protocol above is made only after the upgrade.
- Pings are answered by the library; a peer that sends them and reads nothing is cut off.
- A read is parsed piece by piece: when it turns out to be many small frames, the other connections
  have a turn in between, and nothing more is read from this peer meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import msgspec
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from onelog.net.deadline import Deadline
from onelog.net.origins import may_connect
from onelog.net.peer import StreamProtocol

UPGRADE_BYTES_MAX: Final = 16_384
"""Bytes of an upgrade request."""

UNREAD_PONGS_BYTES_MAX: Final = 65_536
"""Bytes of pongs that may wait for a peer that does not read."""

SEND_FRAME_BYTES_MAX: Final = 262_144
"""Bytes of one frame that is sent; more becomes several frames."""

PIECE_BYTES: Final = 4_096
"""Bytes of a read that are parsed before the frames in them are counted."""

FRAMES_PER_PASS: Final = 256
"""Frames that are dealt with before others have a turn."""

CLOSE_TIMEOUT_S: Final = 2.0
"""How long the peer's own close frame is waited for."""

_LIBRARY_LOG: Final = logging.getLogger("onelog.websocket")
_LIBRARY_LOG.setLevel(logging.ERROR)


class WebSocketSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a WebSocket listener."""

    subprotocols: tuple[str, ...]
    """Names of the protocol above, the best one first; a client must offer one of them."""
    frame_bytes_max: int = 1_048_576 + 16
    """Bytes of one frame: one packet of the largest size fits."""
    message_bytes_max: int | None = None
    """Bytes of one message of several frames. None: no bound is needed, frames are handed on."""
    paths: tuple[str, ...] = ()
    """Request paths that are served; none: every path."""
    origins: tuple[str, ...] = ()
    """Web pages that may connect, as `https://example.org`; `*`: all (`net/origins.py`)."""
    trusts_names: bool = False
    """Whether a page that was loaded from here may also have come by a host's name."""


class WebSocketServer(asyncio.Protocol):
    """The lower end of one connection: speaks WebSocket with the peer."""

    def __init__(
        self,
        settings: WebSocketSettings,
        make_upper: Callable[[], StreamProtocol],
        deadline_s: float,
        on_failed: Callable[[bool], None],
    ) -> None:
        self._settings = settings
        self._make_upper = make_upper
        self._deadline_s = deadline_s
        self._on_failed = on_failed  # no upgrade came; True: the deadline passed
        self._upper: StreamProtocol | None = None
        self._upgraded = False
        self._late = False
        self._ended = False
        self._deaf = False  # we end the connection: what the peer still sends does not count
        self._upgrade_bytes = 0
        self._waiting = bytearray()  # bytes of the peer for which this pass had no time
        self._is_wanted = True  # whether the protocol above wants to be read
        self._unread = False
        self._unread_pongs_bytes = 0
        self._deadline = Deadline(asyncio.get_running_loop())
        self.lower: asyncio.Transport
        self.wire = ServerProtocol(
            subprotocols=[Subprotocol(name) for name in settings.subprotocols],
            max_size=(settings.message_bytes_max, settings.frame_bytes_max),
            logger=_LIBRARY_LOG,
        )

    # ---- from below ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands: the upgrade has until the deadline."""
        self.lower = cast("asyncio.Transport", transport)
        self._deadline.start(self._deadline_s, self._upgrade_late)

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer: part of the upgrade, or frames."""
        if self._ended:
            return
        if not self._upgraded:
            self._upgrade_bytes += len(data)
            if self._upgrade_bytes > UPGRADE_BYTES_MAX:
                self._end()
                return
        if self._waiting:
            self._waiting += data
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        payload: list[bytes] = []
        frames = 0
        for start in range(0, len(data), PIECE_BYTES):
            if frames >= FRAMES_PER_PASS:
                self._waiting += data[start:]
                self.lower.pause_reading()
                asyncio.get_running_loop().call_soon(self._go_on)
                break
            self.wire.receive_data(data[start : start + PIECE_BYTES])
            events = self.wire.events_received()
            frames += len(events)
            for event in events:
                if isinstance(event, Frame):
                    self._take_frame(event, payload)
                elif isinstance(event, Request):
                    self._take_request(event)
        self._flush()
        if payload and self._upper is not None:
            self._upper.data_received(payload[0] if len(payload) == 1 else b"".join(payload))

    def _go_on(self) -> None:
        data = bytes(self._waiting)
        self._waiting.clear()
        if not self._ended:
            self._take(data)
        if self._is_wanted:
            self.resume_reading()

    def eof_received(self) -> bool | None:
        """The peer sends no more: a WebSocket ends then."""
        if self._upper is not None:
            self._upper.eof_received()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._ended = True
        self._deadline.stop()
        self._let_go()
        upper, self._upper = self._upper, None
        if upper is not None:
            upper.connection_lost(exc)
        elif not self._upgraded:
            self._on_failed(self._late)

    def _let_go(self) -> None:
        """End what the library ties into cycles, so that nothing waits for the cycle collector."""
        self.wire.parser.close()  # it holds the protocol, which holds it
        for error in (self.wire.parser_exc, self.wire.handshake_exc):
            found: BaseException | None = error
            while found is not None:  # a traceback holds us, by the frames it leads through
                found.__traceback__ = None
                found = found.__cause__ or found.__context__

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._unread = True
        if self._upper is not None:
            self._upper.pause_writing()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._unread = False
        self._unread_pongs_bytes = 0
        if self._upper is not None:
            self._upper.resume_writing()

    # ---- the upgrade ----

    def _take_request(self, request: Request) -> None:
        if self.wire.data_to_send():
            # RFC 6455 4.1: a client waits for the answer. Frames came behind the request, and the
            # library answered them before it.
            self._end()
            return
        response = self._answer(request)
        del response.headers["Date"]
        self.wire.send_response(response)
        if response.status_code != 101:
            return
        self._deadline.stop()
        self._flush()
        self._upgraded = True
        self._upper = self._make_upper()
        self._upper.connection_made(WebSocketTransport(self))

    def _answer(self, request: Request) -> Response:
        paths = self._settings.paths
        if paths and request.path.partition("?")[0] not in paths:
            return self.wire.reject(404, "There is nothing here.\n")
        settings, headers = self._settings, request.headers
        if not may_connect(
            headers.get_all("Origin"),
            headers.get_all("Host"),
            settings.origins,
            trusts_names=settings.trusts_names,
        ):
            return self.wire.reject(403, "Pages of this origin may not connect.\n")
        return self.wire.accept(request)

    def _upgrade_late(self) -> None:
        self._late = True
        self._end()

    # ---- frames ----

    def _take_frame(self, frame: Frame, payload: list[bytes]) -> None:
        if self._deaf:
            return
        if frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
            if frame.data:
                payload.append(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT and not self.wire.eof_sent:
            # MQTT5 6.0.0-1: control packets travel in binary frames.
            self._deaf = True
            self.wire.fail(CloseCode.UNSUPPORTED_DATA, "binary frames only")

    def _flush(self) -> None:
        """Send what the library wants to send; an empty piece means: close."""
        pieces = self.wire.data_to_send()
        if not pieces or self._ended:
            return
        data = b"".join(pieces)
        if data:
            self.lower.write(data)
        if not pieces[-1]:
            self._ended = True
            self.lower.close()
        elif self._unread:
            self._unread_pongs_bytes += len(data)
            if self._unread_pongs_bytes > UNREAD_PONGS_BYTES_MAX:
                self._end()

    def _end(self) -> None:
        self._ended = True
        self.lower.abort()

    # ---- from above, through the transport ----

    @property
    def is_open(self) -> bool:
        """Whether data may be sent."""
        return self.wire.state is State.OPEN and not self._ended

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._is_wanted = False
        self.lower.pause_reading()

    def resume_reading(self) -> None:
        """Read again, as soon as what was read is dealt with."""
        self._is_wanted = True
        if not self._waiting and not self.lower.is_closing():
            self.lower.resume_reading()

    def send_close(self, code: int, reason: str) -> None:
        """Begin the closing handshake; it ends soon, whatever the peer does."""
        self._deaf = True
        self.wire.send_close(code, reason)
        self._flush()
        self.resume_reading()  # the peer's answer must be seen
        self._deadline.start(CLOSE_TIMEOUT_S, self.lower.abort)


class WebSocketTransport(asyncio.Transport):
    """The transport of the protocol above, with the same calls as a TCP transport."""

    __slots__ = ("_lower", "_server")

    def __init__(self, server: WebSocketServer) -> None:
        self._server = server
        self._lower = server.lower

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes as one frame, or as several when they are many."""
        if not self._server.is_open or not data:
            return
        size = len(data)
        if size <= SEND_FRAME_BYTES_MAX:
            self._lower.write(b"".join((_frame_head(size), data)))
            return
        view = memoryview(data)
        for start in range(0, size, SEND_FRAME_BYTES_MAX):
            piece = view[start : start + SEND_FRAME_BYTES_MAX]
            self._lower.write(b"".join((_frame_head(len(piece)), piece)))

    def writelines(self, chunks: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several pieces as one write."""
        self.write(b"".join(chunks))

    def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Send what waits, then a close frame, then end."""
        if self._server.is_open:
            self._server.send_close(code, reason)

    def part(self) -> None:
        """End in order: the closing handshake lets the peer finish."""
        self.close()

    def abort(self) -> None:
        """End at once."""
        self._lower.abort()

    def can_write_eof(self) -> bool:
        """A WebSocket ends in both directions at once."""
        return False

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return not self._server.is_open or self._lower.is_closing()

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._server.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._server.resume_reading()

    def is_reading(self) -> bool:
        """Whether it reads."""
        return self._lower.is_reading()

    def get_write_buffer_size(self) -> int:
        """Bytes that the peer has not read yet."""
        return self._lower.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The marks of `set_write_buffer_limits`."""
        return self._lower.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When `pause_writing` and `resume_writing` of the protocol are called."""
        self._lower.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Facts of the connection below, and `subprotocol`."""
        if name == "subprotocol":
            return self._server.wire.subprotocol
        return self._lower.get_extra_info(name, default)


def _frame_head(size: int) -> bytes:
    """The first bytes of a final, unmasked binary frame (RFC 6455 5.2)."""
    if size < 126:
        return bytes((0x82, size))
    if size < 65_536:
        return b"\x82\x7e" + size.to_bytes(2)
    return b"\x82\x7f" + size.to_bytes(8)
