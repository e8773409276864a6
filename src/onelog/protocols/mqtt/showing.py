"""MQTT as operators see it: connections, retained messages, wills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from onelog.broker import PartitionHandle, Principal, Record, Source, Start
from onelog.broker.showing import (
    ConnectionRow,
    ReaderRow,
    Traffic,
    WillRow,
    WriterRow,
    connection_id,
    plain_row,
    written_by,
)
from onelog.protocols.mqtt.connection import Connection
from onelog.protocols.mqtt.hub import Hub
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.seeking import seek_session
from onelog.protocols.mqtt.state import State

_VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}


class MqttDesk:
    """What there is of MQTT now."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def traffic(self) -> Traffic:
        """Its counters now."""
        hub = self._hub
        return Traffic(
            connections=len(hub.connections),
            received_messages=hub.received_messages,
            sent_messages=hub.delivered_messages,
            received_bytes=hub.turn.received_bytes,
            sent_bytes=hub.sent_bytes,
        )

    def connections(self) -> Iterator[ConnectionRow]:
        """Every connection."""
        return map(_row, list(self._hub.connections))

    def kick(self, connection: str, reason: str) -> int:
        """Disconnect the peers of this id (0x98)."""
        found = [row for row in self._hub.connections if _id(row) == connection]
        for row in found:
            if row.state is State.CONNECTED:
                row.end(ReasonCode.ADMINISTRATIVE_ACTION, Properties(reason_string=reason))
            else:
                row.transport.abort()
        return len(found)

    def readers(self, topic: str, partition: PartitionHandle) -> Iterator[ReaderRow]:
        """None: the sessions of MQTT are cursors of the door."""
        del topic, partition
        return iter(())

    def writers(self, topic: str) -> Iterator[WriterRow | None]:
        """Connections that published to the topic.

        Clients of a user share their routes, so of a topic that the kernel takes only the first
        client is noted. This look lets each further one be noted with its next publish to the
        topic. Of those that did not publish since, all that is known is how many there are.
        """
        self._hub.routes.set_aside(topic.encode(), self._hub.clock.monotonic())
        others: Counter[Principal] = Counter()
        for row in list(self._hub.connections):
            if topic in row.written:
                yield written_by(_row(row))
            else:
                others[row.principal] += row.input.staged > 0
                yield None
        for principal in self._hub.routes.writers(topic.encode()):
            if others[principal]:
                yield WriterRow(
                    protocol="mqtt",
                    connection="",
                    client_id="",
                    user=principal.name,
                    address="",
                    connections=others[principal],
                )

    def retained(self, text: str) -> list[int]:
        """The numbers of retained messages of a filter, ascending."""
        return self._hub.retained.matching(text)

    async def retained_record(self, number: int) -> Record | None:
        """One of them; None when it is no more."""
        return await self._hub.retained.record(number)

    async def seek_session(
        self, client_id: str, start: Start, chosen: Callable[[Source], bool]
    ) -> None:
        """Let a session go on elsewhere in the log. Raises NotFound, Conflict."""
        await seek_session(self._hub, client_id, start, chosen)

    async def delete_share(self, cursor: str) -> None:
        """Forget a share group without members. Raises NotFound, Conflict."""
        await self._hub.shares.delete(cursor)

    def wills(self) -> Iterator[WillRow]:
        """Every will that is kept."""
        return (
            WillRow(
                client_id=client_id,
                user=row.user,
                topic=row.will.topic,
                qos=row.will.qos,
                retain=row.will.retain,
                payload_bytes=len(row.will.payload),
                due_ms=row.due_ms,
            )
            for client_id, row in self._hub.wills.kept()
        )


def _id(connection: Connection) -> str:
    return connection_id(connection.peer.listener, connection.peer.address)


def _row(connection: Connection) -> ConnectionRow:
    session = connection.session
    client_id = "" if session is None else session.client_id
    plain = plain_row(
        "mqtt", connection.peer, connection.identity, client_id, connection.state.value
    )
    return msgspec.structs.replace(
        plain,
        version=_VERSIONS.get(connection.version, ""),
        subscriptions=0 if session is None else len(session.subscriptions),
    )
