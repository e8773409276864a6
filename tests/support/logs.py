"""Streams of the memory engine without a broker, for tests that make many of them."""

from __future__ import annotations

from collections.abc import Callable

from onelog.base.clock import Clock
from onelog.base.ids import PartitionId
from onelog.cursors.sources import SourceRegistry
from onelog.kernel import BatchBuilder
from onelog.log.config import StreamConfig
from onelog.log.partition import Durability, Partition
from onelog.log.shared import Shared
from onelog.log.stream import Stream, StreamRecord
from onelog.log.syncer import Syncer
from onelog.observe.troubles import Troubles
from onelog.record.headers import Headers
from onelog.storage.engine import PartitionKey
from onelog.storage.memory import MemoryEngine


class OneStream:
    """A catalog that has one stream, which captures everything."""

    def __init__(self, clock: Clock, syncer: Syncer, partitions: int = 1, ttl_ms: int = -1) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.changed: frozenset[str] = frozenset()
        self._clock = clock
        config = StreamConfig(
            name="s", captures=("#",), partitions=partitions, message_ttl_ms=ttl_ms
        )
        record = StreamRecord(id="s-1", config=config, created_ms=0)
        engine = MemoryEngine(clock)
        self.stream = Stream(record, [])
        self.troubles = Troubles(clock)
        shared = Shared(syncer, clock, self.troubles)
        for number in map(PartitionId, range(partitions)):
            self.stream.local.append(
                Partition(
                    "s",
                    number,
                    engine.open(PartitionKey("s-1", number), config.log_settings()),
                    durability=Durability.MEMORY,
                    message_bytes_max=1 << 20,
                    shared=shared,
                )
            )

    def streams(self) -> list[Stream]:
        """The one."""
        return [self.stream]

    def holders(self, _text: str) -> list[Stream]:
        """The one."""
        return [self.stream]

    def registry(self) -> SourceRegistry:
        """Sources over it."""
        return SourceRegistry(self)  # type: ignore[arg-type]

    def write(
        self, topic: str, value: bytes | None, headers: Headers = (), partition: int | None = None
    ) -> int:
        """Append one record; its offset."""
        name = topic.encode()
        builder = BatchBuilder(True)
        builder.add(name, name, value, headers, self._clock.now_ms())
        if partition is None:
            target = self.stream.partition_of(name)
        else:
            target = self.stream.partitions[partition]
        return int(target.append_built(builder, index_topics=True).base_offset)

    def write_many(self, topic: str, count: int) -> None:
        """Append records in one batch."""
        name = topic.encode()
        builder = BatchBuilder(True)
        builder.extend([(name, name, b"x", (), self._clock.now_ms())] * count)
        self.stream.partition_of(name).append_built(builder, index_topics=True)
