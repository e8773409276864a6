"""Where the inner listener of a node is: `host:port`, or `unix:path` on the same machine."""

from __future__ import annotations

import msgspec

from onelog.base.errors import InvalidRequest

UNIX = "unix:"


class LinkAddress(msgspec.Struct, frozen=True):
    """A place to dial: a path, or else a host and a port."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return UNIX + self.path
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> LinkAddress:
    """The address that a text names. Raises InvalidRequest."""
    if text.startswith(UNIX):
        return LinkAddress(path=text[len(UNIX) :])
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InvalidRequest(f"{text!r} is no address of a node: host:port or unix:path")
    return LinkAddress(host=host.removeprefix("[").removesuffix("]"), port=int(port))
