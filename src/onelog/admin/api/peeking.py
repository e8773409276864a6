"""Reading messages for a person: bounded, in pieces, without a cursor that anybody keeps.

Rules: a look costs a bounded number of reads, each of bounded bytes; the answer says whether it saw
everything. What the caller may not have by the access list is left out, topic by topic. Bytes that
are not text are shown as base64, and long values are cut.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from onelog.admin.api.declaring import Caller
from onelog.admin.api.share import LoopShare
from onelog.base.errors import NotAuthorized
from onelog.base.ids import TimestampMs
from onelog.broker import Action, Broker, Position, Reading, Record, Source

LOOKS_MAX: Final = 800
"""Reads of each source for one answer."""
LOOK_BYTES_MIN: Final = 8 * 1024
LOOK_BYTES_MAX: Final = 64 * 1024
"""Bytes that one read looks at: few while records are found, which cost most, and more and more
while there are none."""
LOOK_RECORDS: Final = 24
VALUES_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of values that one answer holds, one message more at most."""
WAIT_S: Final = 5.0
"""How long a look waits for bytes that come from the disk."""
_WINDOW_GROWTH: Final = 8


class HeaderShown(msgspec.Struct, frozen=True, kw_only=True):
    """One header of a message; names that begin with `~` are OneLog's own."""

    name: str
    text: str | None
    base64: str | None
    """null: the header has no value."""


class MessageShown(msgspec.Struct, frozen=True, kw_only=True):
    """One message, as far as a person wants to see it."""

    stream: str
    partition: int
    offset: int
    topic: str
    timestamp_ms: int
    key_text: str | None
    key_base64: str | None
    value_text: str | None
    """null: there is no value, or it is no text."""
    value_base64: str | None
    """null: there is no value, or it is shown as text."""
    value_bytes: int
    truncated: bool
    """Whether the value is longer than what is shown."""
    headers: list[HeaderShown]


class Peek:
    """One look at messages of a filter."""

    def __init__(self, broker: Broker, share: LoopShare, caller: Caller, text: str) -> None:
        self._broker = broker
        self._share = share
        self._caller = caller
        self.looks = 0
        """Sources that were read, each time."""
        if not broker.authorizer.allows(caller.principal, Action.SUBSCRIBE, text):
            raise NotAuthorized(f"{caller.name} may not subscribe to {text}")
        self._filter = text
        self.sources: Sequence[Source] = broker.cursors.sources([text]).sources
        self._looks_max = LOOKS_MAX * max(1, len(self.sources))

    def may_have(self, record: Record) -> bool:
        """Whether the caller may have a record."""
        return self._broker.authorizer.allows(self._caller.principal, Action.DELIVER, record.topic)

    async def starts(self, at_ms: int) -> list[int]:
        """The first offset at or after a time, per source."""
        found: list[int] = []
        for source in self.sources:
            partition = source.partition
            place = None
            if partition.stopped is None:
                place = await partition.find_time(TimestampMs(at_ms))
            found.append(partition.high_watermark if place is None else place[0])
            await self._share.breathe()
        return found

    def reading(self, starts: Sequence[int]) -> Reading:
        """Read from these offsets on, one per source."""
        positions = [
            Position(*source.key, start) for source, start in zip(self.sources, starts, strict=True)
        ]
        return self._broker.cursors.reading([self._filter], positions)

    async def forward(
        self, reading: Reading, limit: int, ends: Mapping[tuple[str, int], int] | None = None
    ) -> tuple[list[Record], bool]:
        """Records from where a reading stands, and whether it reached the end.

        The end is that of the log, which moves on while messages come, or `ends`, by source.
        """
        found: list[Record] = []
        size, look_bytes = 0, LOOK_BYTES_MIN
        while len(found) < limit and self.looks < self._looks_max and size < VALUES_BYTES_MAX:
            if ends is not None and _has_reached(reading, ends):
                return found, True
            self.looks += 1
            await self._share.breathe()
            rows = reading.read(min(limit - len(found), LOOK_RECORDS), look_bytes, sources_max=1)
            look_bytes = LOOK_BYTES_MIN if rows else min(2 * look_bytes, LOOK_BYTES_MAX)
            found += (record for _index, record in rows if self.may_have(record))
            size += sum(len(record.value or b"") for _index, record in rows)
            if not rows and not reading.is_behind():
                return found, True
            if not rows and not reading.may_go_on() and not await reading.wait_readable(WAIT_S):
                break
        return found, not reading.is_behind()

    async def newest(self, limit: int) -> tuple[list[Record], bool]:
        """The last records, the newest first, and whether all there are were looked at."""
        window = max(limit, 16)
        while True:
            ends = [source.partition.high_watermark for source in self.sources]
            starts = [
                max(source.partition.start_offset, end - window)
                for source, end in zip(self.sources, ends, strict=True)
            ]
            everything = all(
                start <= source.partition.start_offset
                for source, start in zip(self.sources, starts, strict=True)
            )
            keys = (source.key for source in self.sources)
            found = await self._window(starts, dict(zip(keys, ends, strict=True)), limit)
            if len(found) >= limit or everything or self.looks >= self._looks_max:
                return found, everything and self.looks < self._looks_max
            window *= _WINDOW_GROWTH

    async def _window(
        self, starts: Sequence[int], ends: Mapping[tuple[str, int], int], limit: int
    ) -> list[Record]:
        """The newest records between these offsets, the newest first."""
        reading = self.reading(starts)
        try:
            found: list[Record] = []
            while self.looks < self._looks_max:
                more, at_end = await self.forward(reading, 1000, ends)
                found = _newest([*found, *more], limit)
                if at_end or not more:
                    break
            return found
        finally:
            reading.close()


def _has_reached(reading: Reading, ends: Mapping[tuple[str, int], int]) -> bool:
    return all(
        row.offset >= ends.get((row.stream_id, row.partition), 0) for row in reading.positions()
    )


def _newest(records: list[Record], limit: int) -> list[Record]:
    """The newest ones whose values may be held together, the newest first."""
    records.sort(key=lambda row: (row.timestamp_ms, row.offset), reverse=True)
    size = 0
    for number, record in enumerate(records[:limit]):
        size += len(record.value or b"")
        if size > VALUES_BYTES_MAX and number:
            return records[:number]
    return records[:limit]


def shown(record: Record, value_max: int) -> MessageShown:
    """A record as a person sees it."""
    value = record.value
    text, encoded = (None, None) if value is None else _as_text(value[:value_max])
    key_text, key = (None, None) if record.key is None else _as_text(record.key)
    return MessageShown(
        stream=record.stream,
        partition=record.partition,
        offset=record.offset,
        topic=record.topic,
        timestamp_ms=record.timestamp_ms,
        key_text=key_text,
        key_base64=key,
        value_text=text,
        value_base64=encoded,
        value_bytes=len(value or b""),
        truncated=value is not None and len(value) > value_max,
        headers=[_header(*pair) for pair in record.headers],
    )


def _header(name: bytes, value: bytes | None) -> HeaderShown:
    text, encoded = (None, None) if value is None else _as_text(value)
    return HeaderShown(name=name.decode(errors="replace"), text=text, base64=encoded)


def _as_text(data: bytes) -> tuple[str | None, str | None]:
    """Bytes as text, or as base64 if they are no text. A character that was cut off at the end is
    left out."""
    try:
        return data.decode(), None
    except UnicodeDecodeError as error:
        if error.start >= len(data) - 3 and error.reason == "unexpected end of data":
            return data[: error.start].decode(), None
    return None, base64.b64encode(data).decode()
