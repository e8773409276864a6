"""Kept rows: a protocol's own state by key, in an internal compacted stream, recovered at start.

Rules: rows that are put together are one batch, so after a crash all of them are there or none.
What a put has answered survives as the stream's durability says (I4). The last value of a key
counts; a value of None removes it. A damaged stream is an error (StateUnknown), never an empty one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from onelog.base.clock import Clock
from onelog.base.errors import OnelogError, PartitionStopped
from onelog.base.ids import Offset
from onelog.kernel import BatchBuilder
from onelog.log.catalog import Catalog
from onelog.log.config import Cleanup, Retention, StreamConfig
from onelog.log.internal import check_known, kept_batches, not_known
from onelog.log.partition import Partition
from onelog.log.wakeup import Callback, Waiter, as_future
from onelog.observe.troubles import Troubles

_SEGMENT_BYTES: Final = 16 * 1024 * 1024

KeptRow = tuple[bytes, bytes | None]


class KeptTable:
    """The rows of one internal stream. Make one with `KeptTable.open`."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock
        self._recovered: dict[bytes, bytes] = {}

    @property
    def troubles(self) -> Troubles:
        """Where failures of who waits for rows are told."""
        return self._partition.troubles

    @classmethod
    async def open(cls, catalog: Catalog, clock: Clock, name: str) -> KeptTable:
        """Read every row; the stream is created on the first start. Raises StateUnknown."""
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
        rows = self._recovered
        async for _info, slices in kept_batches(self._partition):
            for index in range(len(slices)):
                key, value = slices.key(index), slices.value(index)
                if key is None:
                    continue
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """What was there when it was opened; handed over once and then forgotten."""
        recovered, self._recovered = self._recovered, {}
        yield from recovered.items()

    def put(self, rows: Sequence[KeptRow]) -> asyncio.Future[None]:
        """Append rows as one batch, now and in order; the future is done when they are durable.

        It, or this call, raises StateUnknown when the stream is stopped.
        """
        if not rows:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        builder = BatchBuilder(False)
        now_ms = self._clock.now_ms()
        builder.extend([(None, key, value, (), now_ms) for key, value in rows])
        partition = self._partition
        check_known(partition)
        try:
            appended = partition.append_built(builder, index_topics=False)
        except PartitionStopped as error:
            raise not_known(partition, error) from error
        last = Offset(appended.end_offset - 1)

        def register(told: Callback) -> Waiter | None:
            def visible(error: OnelogError | None) -> None:
                told(not_known(partition, error) if isinstance(error, PartitionStopped) else error)

            return partition.when_visible(last, visible)

        return as_future(register)
