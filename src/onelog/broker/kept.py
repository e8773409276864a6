"""Kept rows: a protocol's own state by key, in an internal compacted stream, recovered at start.

Rules: the rows of a shard are read when this node begins to own it (`load`). Rows of one name that
are put together are one batch, so after a crash all of them are there or none. Rows whose `put` is
done survive as the stream's durability says (I4). The last value of a key counts; a value of None
removes it. A damaged stream is an error (StateUnknown), never an empty one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from onelog.base.clock import Clock
from onelog.base.errors import NotLeader, NotOwner, OnelogError, PartitionStopped
from onelog.kernel import BatchBuilder
from onelog.log.catalog import Catalog
from onelog.log.handle import PartitionHandle
from onelog.log.internal import check_known, internal_stream, kept_batches, not_known, rows_there
from onelog.log.stream import Stream
from onelog.log.wakeup import Callback, Waiter, as_future

KeptRow = tuple[bytes, bytes | None]


class KeptTable:
    """The rows of one internal stream. Make one with `KeptTable.open`."""

    def __init__(
        self, stream: Stream, catalog: Catalog, clock: Clock, name_of: Callable[[bytes], bytes]
    ) -> None:
        self._stream = stream
        self._placement = catalog.placement
        self.troubles = catalog.troubles
        """The register for failures of callbacks that wait for rows."""
        self._clock = clock
        self._name_of = name_of
        self._recovered: dict[bytes, bytes] = {}

    @classmethod
    async def open(
        cls,
        catalog: Catalog,
        clock: Clock,
        name: str,
        name_of: Callable[[bytes], bytes] = bytes,
    ) -> KeptTable:
        """Read every row. The stream is created at the first start. Raises StateUnknown."""
        table = await cls.make(catalog, clock, name, name_of)
        for partition in table._stream.partitions:
            table._recovered |= await table.load(int(partition.id))
        return table

    @classmethod
    async def make(
        cls,
        catalog: Catalog,
        clock: Clock,
        name: str,
        name_of: Callable[[bytes], bytes] = bytes,
    ) -> KeptTable:
        """A table of which nothing is read yet. The stream is created at the first start.

        `name_of` gives the name that a row belongs to, from its key; by default, the key itself.
        """
        return cls(await internal_stream(catalog, name), catalog, clock, name_of)

    def epoch(self, shard: int) -> int:
        """The epoch of this node as the leader of a shard's rows."""
        return int(self._stream.partitions[shard].leader_epoch)

    async def load(self, shard: int) -> dict[bytes, bytes]:
        """The rows of a shard, when all that an earlier owner may have answered is visible.

        Raises StateUnknown.
        """
        if shard >= len(self._stream.partitions):
            return {}
        rows: dict[bytes, bytes] = {}
        partition = self._stream.partitions[shard]
        await rows_there(partition)
        async for _info, slices in kept_batches(partition):
            for index in range(len(slices)):
                key, value = slices.key(index), slices.value(index)
                if key is None:
                    continue
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value
        return rows

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The rows that were there when it was opened; returned once and then forgotten."""
        recovered, self._recovered = self._recovered, {}
        yield from recovered.items()

    def put(self, rows: Sequence[KeptRow]) -> asyncio.Future[None]:
        """Append rows now and in order, those of a name together. The future is done when all of
        them are durable.

        The future, or this call, raises StateUnknown when the stream is stopped. This call raises
        NotOwner, and nothing is written, when another node leads the rows.
        """
        if not rows:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        if len(self._stream.partitions) == 1:
            return self._put(self._stream.partitions[0], rows)
        parts: dict[PartitionHandle, list[KeptRow]] = {}
        for key, value in rows:
            partition = self._placement.home(self._stream, self._name_of(key))
            parts.setdefault(partition, []).append((key, value))
        for partition in parts:
            check_led(partition)
        return _all_done([self._put(partition, part) for partition, part in parts.items()])

    def _put(self, partition: PartitionHandle, rows: Iterable[KeptRow]) -> asyncio.Future[None]:
        builder = BatchBuilder(False)
        now_ms = self._clock.now_ms()
        builder.extend([(None, key, value, (), now_ms) for key, value in rows])
        check_known(partition)
        try:
            appended = partition.append_built(builder, index_topics=False)
        except PartitionStopped as error:
            raise not_known(partition, error) from error
        except NotLeader as error:
            raise NotOwner(str(error)) from error

        def register(told: Callback) -> Waiter | None:
            def visible(error: OnelogError | None) -> None:
                told(not_known(partition, error) if isinstance(error, PartitionStopped) else error)

            return partition.when_visible(appended.last_offset, visible)

        return as_future(register)


def check_led(partition: PartitionHandle) -> None:
    """Raise StateUnknown when rows are not known, NotOwner when another node leads them."""
    check_known(partition)
    if isinstance(partition.refusal, NotLeader):
        raise NotOwner(str(partition.refusal))


def _all_done(futures: Sequence[asyncio.Future[None]]) -> asyncio.Future[None]:
    """Done when all of them are, with the first error if there is one."""
    if len(futures) == 1:
        return futures[0]
    together: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(futures)

    def one_done(future: asyncio.Future[None]) -> None:
        nonlocal left
        left -= 1
        error = None if future.cancelled() else future.exception()
        if together.done():
            return
        if error is not None:
            together.set_exception(error)
        elif not left:
            together.set_result(None)

    for future in futures:
        future.add_done_callback(one_done)
    return together
