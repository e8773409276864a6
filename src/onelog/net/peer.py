"""The other end of a connection, as far as the network knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

Via = Literal["tcp", "tls", "ws", "wss"]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """The other end of one connection."""

    host: str
    """Its address; behind a proxy, the one that the proxy reports."""
    port: int
    via: Via
    listener: str
    """Name of the listener it came through."""
    listener_is_loopback: bool
    certificate: Mapping[str, Any] | None = None
    """The verified client certificate, as `ssl` shows it."""
    proxy_host: str | None = None
    """The proxy in between, if it reported the peer."""

    @property
    def address(self) -> str:
        """`host:port` as people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class StreamTransport(Protocol):
    """The calls that a protocol may make on its connection, over TCP, TLS or WebSocket."""

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until the peer reads."""
        ...

    def writelines(self, chunks: list[bytes]) -> None:
        """Send several pieces with one call."""
        ...

    def close(self) -> None:
        """Send what waits, then end."""
        ...

    def abort(self) -> None:
        """End at once."""
        ...

    def is_closing(self) -> bool:
        """Whether `close` or `abort` was called or the connection is lost."""
        ...

    def pause_reading(self) -> None:
        """Read no more for now."""
        ...

    def resume_reading(self) -> None:
        """Read again."""
        ...

    def is_reading(self) -> bool:
        """Whether it reads; a peer that is not read cannot be heard."""
        ...

    def part(self) -> None:
        """Send what waits, say that nothing more comes, and let the peer finish."""
        ...

    def get_write_buffer_size(self) -> int:
        """Bytes that the peer has not read yet."""
        ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When `pause_writing` and `resume_writing` of the protocol are called."""
        ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Facts of the connection: `peername`, `socket`, `ssl_object`, …"""
        ...


class StreamProtocol(Protocol):
    """The calls that a connection makes on its protocol; `asyncio.Protocol` is one."""

    def connection_made(self, transport: Any) -> None:
        """The connection stands; `transport` is a StreamTransport."""
        ...

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer, in order."""
        ...

    def eof_received(self) -> bool | None:
        """The peer sends no more; True keeps the connection open."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        ...

    def pause_writing(self) -> None:
        """The peer reads too slowly: write no more for now."""
        ...

    def resume_writing(self) -> None:
        """Write again."""
        ...


ProtocolFactory = Callable[[Peer], StreamProtocol]
