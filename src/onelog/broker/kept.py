"""Kept rows: a protocol's own state by key, in an internal compacted stream, recovered at start.

Rules: rows that are put together are one batch, so after a crash all of them are there or none.
What a put has answered survives as the stream's durability says (I4). The last value of a key
counts; a value of None removes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from onelog.base.clock import Clock
from onelog.base.ids import Offset
from onelog.kernel import BatchBuilder
from onelog.log.catalog import Catalog
from onelog.log.config import Cleanup, Retention, StreamConfig
from onelog.log.partition import Partition
from onelog.record.batch import iterate_batches

_READ_BYTES: Final = 4 * 1024 * 1024
_SEGMENT_BYTES: Final = 16 * 1024 * 1024

KeptRow = tuple[bytes, bytes | None]


class KeptTable:
    """The rows of one internal stream. Make one with `KeptTable.open`."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock
        self._recovered: dict[bytes, bytes] = {}

    @classmethod
    async def open(cls, catalog: Catalog, clock: Clock, name: str) -> KeptTable:
        """Read every row; the stream is created on the first start."""
        stream = catalog.find(name) or await catalog.create(
            StreamConfig(
                name=name,
                cleanup=Cleanup.COMPACT,
                retention=Retention(age_ms=-1),
                segment_bytes=_SEGMENT_BYTES,
            )
        )
        table = cls(stream.partitions[0], clock)
        await table._load()
        return table

    async def _load(self) -> None:
        partition, rows = self._partition, self._recovered
        offset = partition.start_offset
        while offset < partition.high_watermark:
            data = partition.read(offset, _READ_BYTES)
            for info, slices in iterate_batches(data):
                for index in range(len(slices)):
                    key, value = slices.key(index), slices.value(index)
                    if key is None:
                        continue
                    if value is None:
                        rows.pop(key, None)
                    else:
                        rows[key] = value
                offset = Offset(info.last_offset + 1)
            await asyncio.sleep(0)

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """What was there when it was opened; handed over once and then forgotten."""
        recovered, self._recovered = self._recovered, {}
        yield from recovered.items()

    def put(self, rows: Sequence[KeptRow]) -> asyncio.Future[None]:
        """Append rows as one batch, now and in order; the future is done when they are durable."""
        if not rows:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        builder = BatchBuilder(False)
        now_ms = self._clock.now_ms()
        builder.extend([(None, key, value, (), now_ms) for key, value in rows])
        appended = self._partition.append_built(builder, index_topics=False)
        return self._partition.wait_visible(Offset(appended.end_offset - 1))
