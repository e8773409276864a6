"""Subscriptions that are more than a filter: how they are written, and what a session asks of them.

`$share/<group>/<filter>`, `$replay/<from>/<filter>` and `$exclusive/<filter>`.

Rules: what is special about a subscription stands before its filter and is taken off before
anything looks at the filter. A special subscription delivers by itself, through the window and
the bytes of its session; it asks for room when the window is full and is called when there is.
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
    """What a SUBSCRIBE names: the kind, what the kind needs to know, and the filter."""

    kind: Kind
    argument: str
    filter: str

    @property
    def text(self) -> str:
        """As the client wrote it."""
        if self.kind == "plain":
            return self.filter
        parts = [f"${self.kind}", self.argument, self.filter]
        return "/".join(part for part in parts if part)

    @property
    def key(self) -> str:
        """What a session keeps the subscription under; an exclusive one is a plain one."""
        return self.filter if self.kind == "exclusive" else self.text


def parse_address(text: str) -> SubscribeAddress:
    """Take a filter apart; raises InvalidName or MqttError when it names nothing."""
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
    """What waits for room in the window of a session."""

    def go_on(self) -> None:
        """There is room again."""
        ...


class Special(Hungry, Protocol):
    """A subscription that delivers by itself."""

    row: Subscribed

    def begin(self) -> None:
        """Deliver from now on: the client was answered."""
        ...

    def settle(self, tag: int, *, accepted: bool) -> Cursor | None:
        """The client is done with what was sent under `tag`; the cursor that changed."""
        ...

    def positions(self) -> list[Position]:
        """Where to read on from after a restart; empty when that is not the session's to keep."""
        ...

    def park(self) -> None:
        """The connection is gone."""
        ...

    def end(self) -> None:
        """The client wants no more; what is in flight is completed (MQTT5 3.10.4-3)."""
        ...
