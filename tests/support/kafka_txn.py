"""A transaction coordinator over a real broker, with time that a test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import StorageFull
from onelog.broker import Broker, Durability, StreamConfig
from onelog.broker.producer_ids import ProducerIds
from onelog.config.kafka import KafkaTransactions
from onelog.kernel import ATTR_TRANSACTIONAL
from onelog.log.partition import Appended, Partition
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.topics import Topics
from onelog.protocols.kafka.transactions.coordinator import Coordinator
from onelog.protocols.kafka.transactions.links import LinkRequest
from onelog.protocols.kafka.transactions.opening import open_coordinator
from onelog.protocols.kafka.transactions.participants import Participants
from onelog.protocols.kafka.transactions.state import Producer
from onelog.record.batch import build_batch, iterate_batches
from tests.logs import append_batches
from tests.support.brokers import running

TIMEOUT_MS = 60_000


@contextlib.contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    """The block raises a KafkaError with this code and a reason."""
    with pytest.raises(KafkaError, match=r"\w") as caught:
        yield
    assert caught.value.code is code, f"{caught.value.code.name} instead of {code.name}"


class ManualTimer:
    """A call that comes when the test lets its time pass."""

    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualTimers:
    """Stands in for the loop's clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._timers: list[ManualTimer] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self.clock.monotonic() + delay_s, callback)
        self._timers.append(timer)
        return timer

    @property
    def waiting(self) -> list[float]:
        """When the calls come that nobody cancelled."""
        return sorted(timer.at for timer in self._timers if not timer.cancelled)

    def is_paused(self) -> bool:
        """Whether something waits for its next try."""
        return any(
            timer.callback.__qualname__ == "Event.set" and not timer.cancelled
            for timer in self._timers
        )

    def pass_time(self, seconds: float) -> None:
        """Let time pass; what is due is called, earliest first."""
        self.clock.advance(seconds)
        now = self.clock.monotonic()
        while True:
            due = [timer for timer in self._timers if timer.at <= now or timer.cancelled]
            self._timers = [timer for timer in self._timers if timer not in due]
            called = [timer for timer in due if not timer.cancelled]
            if not called:
                return
            for timer in sorted(called, key=lambda timer: timer.at):
                if not timer.cancelled:
                    timer.callback()


class PendingOffsetsTold:
    """The groups' side of a transaction: what it was told, for groups that only tests have."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, bool]] = []
        self.failures: list[Exception] = []

    def owns(self, group: str) -> bool:
        return bool(group)

    async def complete(
        self, group: str, producer_id: int, committed: bool, coordinator_epoch: int
    ) -> None:
        del coordinator_epoch
        if self.failures:
            raise self.failures.pop()
        self.told.append((group, producer_id, committed))


class Desk:
    """One coordinator, and the topics `a` and `b` with two partitions each."""

    def __init__(self, broker: Broker, clock: ManualClock, settings: KafkaTransactions) -> None:
        self.broker = broker
        self.clock = clock
        self.settings = settings
        self.timers = ManualTimers(clock)
        self.offsets = PendingOffsetsTold()
        self.topics = Topics(broker)
        self.producer_ids = ProducerIds(broker.store)
        self.coordinator: Coordinator
        self._sequences: dict[tuple[int, int, str, int], int] = {}

    async def open(self) -> None:
        """Recover the coordinator from its log."""
        self.timers = ManualTimers(self.clock)
        self.producer_ids = ProducerIds(self.broker.store)
        await self.producer_ids.open()
        self.coordinator = await open_coordinator(
            self.broker,
            Participants(self.broker, self.topics, self.offsets),
            self.producer_ids,
            self.settings,
            self.clock,
            self.timers.call_later,
        )

    async def crash(self) -> None:
        """Nothing of the coordinator's memory survives; its log and the partitions do."""
        await self.close()
        await self.open()

    async def close(self) -> None:
        """Stop what the coordinator does, and what it uses."""
        await self.coordinator.close()
        await self.producer_ids.close()

    @contextlib.contextmanager
    def without_markers(self, *logs: Partition) -> Iterator[None]:
        """No room for markers in these partitions; without any, in none at all."""
        append_marker = Partition.append_marker

        def append_where_is_room(log: Partition, *args: Any) -> Appended:
            if not logs or log in logs:
                raise StorageFull("no room")
            return append_marker(log, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Partition, "append_marker", append_where_is_room)
            yield

    def log(self, topic: str, number: int) -> Partition:
        return self.topics.get(topic).partition(number).log

    async def init(self, transactional_id: str = "t", expected: Producer | None = None) -> Producer:
        return await self.coordinator.init_producer(transactional_id, TIMEOUT_MS, expected)

    async def add(
        self,
        producer: Producer,
        *partitions: tuple[str, int],
        transactional_id: str = "t",
        groups: tuple[str, ...] = (),
    ) -> None:
        await self.coordinator.add(
            transactional_id, producer, frozenset(partitions), frozenset(groups)
        )

    async def end(
        self, producer: Producer, *, commit: bool = True, transactional_id: str = "t"
    ) -> None:
        await self.coordinator.end(transactional_id, producer, commit=commit)

    async def link(
        self, batch: int, members: dict[str, Producer], query: str = "q", **rest: Any
    ) -> str:
        """What a driver asks for; `owner` and `check` as the connection would give them."""
        owner = rest.pop("owner", "user")
        check = rest.pop("check", lambda _facts: None)
        rows = [(name, *producer) for name, producer in members.items()]
        asked = {"query": query, "batch": batch, "commit": True, "members": rows, **rest}
        request = msgspec.convert(asked, LinkRequest)
        return await self.coordinator.links.link(request, owner, check)

    async def stage(self, name: str, *values: str, topic: str = "a", number: int = 0) -> Producer:
        """What a task does: write and leave the transaction open."""
        producer = await self.init(name)
        await self.add(producer, (topic, number), transactional_id=name)
        for value in values:
            self.write(producer, topic, number, value, name)
        return producer

    def write(
        self, producer: Producer, topic: str, number: int, value: str, transactional_id: str = "t"
    ) -> None:
        """What Produce does with a transactional batch: verified, then appended."""
        self.coordinator.verify(transactional_id, producer.id, producer.epoch, topic, number)
        key = (producer.id, producer.epoch, topic, number)
        sequence = self._sequences.get(key, 0)
        data = bytearray(
            build_batch(
                [(None, None, value.encode(), (), self.clock.now_ms())],
                attributes=ATTR_TRANSACTIONAL,
                producer=(producer.id, producer.epoch, sequence),
            )
        )
        append_batches(self.log(topic, number), data)
        self._sequences[key] = sequence + 1

    async def settle(self) -> None:
        """Let everything finish that needs no time to pass."""
        quiet = 0
        while quiet < 3:  # what one pass of the loop calls shows in the next
            await asyncio.sleep(0)
            rows = self.coordinator._ids
            puts = [row.put for row in rows if row.put is not None and not row.put.done()]
            if puts:
                await asyncio.wait(puts)
                quiet = 0
            elif not self.coordinator.endings._tasks or self.timers.is_paused():
                quiet += 1

    def committed(self, topic: str, number: int) -> list[str]:
        """What a reader of committed records sees."""
        log = self.log(topic, number)
        aborted = log.aborted_between(0, log.last_stable_offset)
        found: list[str] = []
        data = log.read(log.start_offset, 1 << 30, committed=True)
        for info, slices in iterate_batches(data):
            if info.base_offset >= log.last_stable_offset or info.attributes & 0x20:
                continue
            if any(
                row.producer_id == info.producer_id
                and row.first_offset <= info.base_offset < row.last_offset
                for row in aborted
            ):
                continue
            found += [(slices.value(at) or b"").decode() for at in range(len(slices))]
        return found

    def is_stable(self, topic: str, number: int) -> bool:
        """Whether nothing holds the partition's stable end back."""
        log = self.log(topic, number)
        return log.last_stable_offset == log.end_offset


@contextlib.asynccontextmanager
async def desk(path: Path, settings: KafkaTransactions | None = None) -> AsyncIterator[Desk]:
    """A coordinator for the length of a block."""
    clock = ManualClock()
    async with running(path, clock=clock) as broker:
        for name in ("a", "b"):
            await broker.streams.create(
                StreamConfig(name=name, captures=(name,), partitions=2, durability=Durability.OS)
            )
        made = Desk(broker, clock, settings or KafkaTransactions())
        await made.open()
        try:
            yield made
        finally:
            await made.close()
            made.topics.close()
