"""Subscriptions that are more than a filter: their form, and what a session asks of them.

`$share/<group>/<filter>`, `$replay/<from>/<filter>` and `$exclusive/<filter>`.

Rules: the special prefix stands before the filter, and is removed before anything looks at the
filter. A special subscription delivers by itself, through the window and the output of its session.
It asks for room when the window is full, and is called when there is some.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

import msgspec

from onelog.base.errors import InvalidName
from onelog.broker import Cursor, Position
from onelog.protocols.mqtt.subscribed import Subscribed
from onelog.protocols.mqtt.topics import SHARE_PREFIX, split_share

REPLAY_PREFIX: Final = "$replay/"
EXCLUSIVE_PREFIX: Final = "$exclusive/"

OWN_SOURCE: Final = -1
"""The source number of a packet id that a special subscription settles itself."""

Kind = Literal["plain", "share", "replay", "exclusive"]


class SubscribeAddress(msgspec.Struct, frozen=True):
    """The address of a SUBSCRIBE: the kind, the argument of the kind, and the filter."""

    kind: Kind
    argument: str
    filter: str

    @property
    def text(self) -> str:
        """The text as the client wrote it."""
        if self.kind == "plain":
            return self.filter
        parts = [f"${self.kind}", self.argument, self.filter]
        return "/".join(part for part in parts if part)

    @property
    def key(self) -> str:
        """The key of the subscription in its session; an exclusive one is a plain one."""
        return self.filter if self.kind == "exclusive" else self.text


def parse_address(text: str) -> SubscribeAddress:
    """Parse a filter with its prefix. Raises InvalidName or MqttError."""
    if text.startswith(SHARE_PREFIX):
        group, inner = split_share(text)
        assert group is not None, "it has the prefix"
        return SubscribeAddress("share", group, inner)
    if text.startswith(REPLAY_PREFIX):
        start, slash, inner = text[len(REPLAY_PREFIX) :].partition("/")
        if not start or not slash or not inner:
            raise InvalidName(f"{text[:60]!r} needs a start and a filter after $replay/")
        return SubscribeAddress("replay", start, inner)
    if text.startswith(EXCLUSIVE_PREFIX):
        inner = text[len(EXCLUSIVE_PREFIX) :]
        if not inner:
            raise InvalidName(f"{text[:60]!r} needs a filter after $exclusive/")
        return SubscribeAddress("exclusive", "", inner)
    return SubscribeAddress("plain", "", text)


class Hungry(Protocol):
    """Waits for room in the window of a session."""

    def go_on(self) -> None:
        """There is room again."""
        ...


class Special(Hungry, Protocol):
    """A subscription that delivers by itself."""

    row: Subscribed

    def begin(self) -> None:
        """Deliver from now on: the SUBACK was sent."""
        ...

    def settle(self, tag: int, *, accepted: bool) -> Cursor | None:
        """The client answered the message sent under `tag`. Returns the cursor that changed."""
        ...

    def positions(self) -> list[Position]:
        """The positions to read on from after a restart; empty when the session does not keep
        them."""
        ...

    def park(self) -> None:
        """The connection is gone."""
        ...

    def end(self) -> None:
        """The client has unsubscribed; messages in flight are completed (MQTT5 3.10.4-3)."""
        ...
