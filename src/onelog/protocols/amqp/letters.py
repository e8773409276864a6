"""A dead message in AMQP's form: its properties and headers are decoded, changed and encoded."""

from __future__ import annotations

from typing import Any

from onelog.broker import Message, Record
from onelog.protocols.amqp.mapping import to_message, to_properties
from onelog.record.tables import change_table


class AmqpLetter:
    """One dead message."""

    __slots__ = ("_properties", "_record", "table")

    def __init__(self, record: Record) -> None:
        self._record = record
        self._properties = to_properties(record)
        self.table = self._properties.table()

    @property
    def lifetime(self) -> str | None:
        """The `expiration` that it was sent with."""
        return self._properties.expiration

    def write(
        self,
        topic: str,
        changes: dict[str, Any],
        drop: tuple[str, ...],
        now_ms: int,
        further: tuple[str, ...],
        left_out: tuple[str, ...],
    ) -> Message:
        """The message to publish: with changed headers, and without its lifetime."""
        properties = self._properties
        properties.expiration = None
        properties.headers = change_table(properties.headers, changes, drop)
        table = {name: row for name, row in (self.table | changes).items() if name not in drop}
        body = self._record.value or b""
        return to_message(topic, properties, body, now_ms, table, further, left_out)
