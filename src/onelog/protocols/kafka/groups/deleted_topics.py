"""Finds out which Kafka topics were deleted, so that their committed offsets are dropped.

A topic that was deleted and made again is another one: its stream has another id.
"""

from __future__ import annotations

from collections.abc import Callable

from onelog.broker import Broker
from onelog.protocols.kafka.topics import kafka_name


class DeletedTopics:
    """Looks at the streams after every change."""

    def __init__(self, broker: Broker, on_deleted: Callable[[list[str]], None]) -> None:
        self._broker = broker
        self._on_deleted = on_deleted
        self._known: dict[str, tuple[str, str]] = {}
        """Stream → the Kafka topic that it is, and the stream's id."""
        for stream in broker.streams.streams():
            self._note(stream.name)
        broker.streams.on_change.append(self._look)

    def close(self) -> None:
        """Stop listening."""
        self._broker.streams.on_change.remove(self._look)

    def _note(self, stream_name: str) -> tuple[str, str] | None:
        """Look at one stream. Returns what it was until now."""
        before = self._known.pop(stream_name, None)
        stream = self._broker.streams.find(stream_name)
        name = None if stream is None else kafka_name(stream)
        if stream is not None and name is not None:
            self._known[stream_name] = (name, stream.record.id)
        return before

    def _look(self) -> None:
        gone = []
        for stream_name in self._broker.streams.changed:
            before = self._note(stream_name)
            if before is not None and self._known.get(stream_name) != before:
                gone.append(before[0])
        if gone:
            self._on_deleted(gone)
