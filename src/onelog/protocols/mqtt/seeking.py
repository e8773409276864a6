"""Moving a session: its client gets messages again from an earlier place, or skips some.

Rules: messages in flight stay in flight, with their packet ids, and are not sent under second ones:
the reader passes them over, also after the client acknowledged them. Everything else from the new
place on is sent again, and nothing below it. The plain subscriptions move; `$share` groups are
queues of their own and `$replay` has its own start. A subscription that was made late counts from
the new place on, too. A session without a connection is moved in its kept state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from onelog.base.errors import Conflict, NotFound
from onelog.broker import CursorKind, CursorState, Position, Source, Start, ignore_change, places
from onelog.protocols.mqtt.keeping import KeptBody, keep_subscriptions
from onelog.protocols.mqtt.session_state import (
    SessionBody,
    cursor_name,
    needed_positions,
    passed_at,
)

if TYPE_CHECKING:
    from onelog.protocols.mqtt.hub import Hub
    from onelog.protocols.mqtt.session import MqttSession

Chosen = Callable[[Source], bool]


class KeptMqttSession:
    """The kept state of a session that has no connection, as a cursor."""

    kind = CursorKind.SESSION

    def __init__(self, kept: CursorState) -> None:
        self.name = kept.name
        self.filters = kept.filters
        self.on_change: Callable[[], None] = ignore_change
        self._body = msgspec.msgpack.decode(kept.body, type=SessionBody)

    def go_to(self, to: list[Position]) -> None:
        """Read partitions from other places on."""
        body = self._body
        positions = {(row.stream_id, row.partition): row for row in (*body.positions, *to)}
        before = {(row.stream_id, row.partition, row.offset) for row in body.passed}
        passed = passed_at(to, before, body.in_flight)
        body.positions = list(positions.values())
        body.passed = [Position(*place) for place in sorted(passed)]

    def state(self) -> CursorState:
        """The state to keep."""
        body = msgspec.msgpack.encode(self._body)
        return CursorState(self.name, self.kind, self.filters, self.positions(), body)

    def positions(self) -> list[Position]:
        """The lowest offset that it still needs, per partition."""
        return needed_positions(self._body)

    def pending(self) -> int:
        """Messages that the client has not acknowledged."""
        return len(self._body.in_flight)

    def lag(self) -> int:
        """Nothing is known of ends here."""
        return 0

    def close(self) -> None:
        """Nothing to close."""


async def seek_session(hub: Hub, client_id: str, start: Start, chosen: Chosen) -> None:
    """Move a client's session, durably if it is kept. Raises NotFound, Conflict."""
    session = hub.sessions.get(client_id)
    if session is not None:
        await _seek_attached(hub, session, start, chosen)
        return
    sessions, cursors = hub.broker.sessions, hub.broker.cursors
    async with sessions.detached(client_id) as record:
        if cursor_name(client_id) not in record.cursors:
            raise NotFound(f"the session {client_id!r} reads nothing")
        async with cursors.moving(cursor_name(client_id), KeptMqttSession) as kept:
            assert isinstance(kept, KeptMqttSession), "a session without a connection is not open"
            sources = list(cursors.sources(kept.filters).sources) if kept.filters else []
            kept.go_to(await places(sources, start, chosen))
        body = msgspec.msgpack.decode(record.body, type=KeptBody) if record.body else KeptBody()
        for row in body.subscriptions:
            row.since = []
        await sessions.replace(msgspec.structs.replace(record, body=msgspec.msgpack.encode(body)))


async def _seek_attached(hub: Hub, session: MqttSession, start: Start, chosen: Chosen) -> None:
    cursors = hub.broker.cursors
    sources = list(cursors.sources(session.filters).sources) if session.filters else []
    to = await places(sources, start, chosen)
    connection = session.connection
    if connection is None or hub.sessions.get(session.client_id) is not session:
        raise Conflict(f"the client {session.client_id!r} just left: ask again")
    session.go_to(to)
    cursors.pins.outdated()
    cursors.pins.claim()
    await keep_subscriptions(connection)
