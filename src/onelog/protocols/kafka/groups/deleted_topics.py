"""Tells which Kafka topics were deleted, so that nobody stands anywhere in them.

A topic that was deleted and made anew is another one: its stream has another id.
"""

from __future__ import annotations

from collections.abc import Callable

from onelog.broker import Broker
from onelog.protocols.kafka.topics import kafka_name


class DeletedTopics:
    """Looks at the streams after every change of them."""

    def __init__(self, broker: Broker, on_deleted: Callable[[list[str]], None]) -> None:
        self._broker = broker
        self._on_deleted = on_deleted
        self._known = self._present()
        broker.streams.on_change.append(self._look)

    def close(self) -> None:
        """Look no more."""
        self._broker.streams.on_change.remove(self._look)

    def _present(self) -> dict[str, str]:
        """Kafka topic → id of its stream."""
        return {
            name: stream.record.id
            for stream in self._broker.streams.streams()
            if (name := kafka_name(stream)) is not None
        }

    def _look(self) -> None:
        before, self._known = self._known, self._present()
        gone = [name for name, stream in before.items() if self._known.get(name) != stream]
        if gone:
            self._on_deleted(gone)
