"""Transactions: Kafka producers begin, write, commit, abort and vanish; the broker dies in between.

The real coordinator and the real groups run over the broker. What is checked:
- a reader of committed records sees nothing of a transaction that nobody asked to commit, or whose
  commit was refused, ever;
- once all is settled, a transaction whose commit was answered is there, whole; one that was asked
  for and not answered is there whole or not at all; the group's offset moved with it, or not;
- what a reader of committed records saw stays (or a newer record of its key does, where the topic
  is compacted); each producer's records stand in the order in which they were written;
- an idempotent producer that repeats what was not answered has each record once;
- no transaction stays open: the stable end comes to the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.broker import LOCAL, Cleanup, Compaction, Message, StreamConfig
from onelog.broker.producer_ids import ProducerIds
from onelog.config.kafka import KafkaGroups, KafkaTransactions
from onelog.kernel import ATTR_CONTROL, ATTR_TRANSACTIONAL
from onelog.log.partition import Partition
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.groups.coordinator import Groups
from onelog.protocols.kafka.topics import Topics
from onelog.protocols.kafka.transactions.opening import open_coordinator
from onelog.protocols.kafka.transactions.participants import Participants
from onelog.protocols.kafka.transactions.state import Producer
from onelog.record.batch import build_batch, iterate_batches
from tests.logs import append_batches
from tests.simulation.world import Work, World, number_of, read_all

TOPICS = (
    StreamConfig(name="plain", captures=("plain",), partitions=2, segment_bytes=4096),
    StreamConfig(
        name="last",
        captures=("last",),
        segment_bytes=4096,
        cleanup=Cleanup.COMPACT,
        compaction=Compaction(min_dirty_ratio=0.01, tombstone_ms=300),
    ),
)
PLACES = (("plain", 0), ("plain", 1), ("last", 0))
KEYS = (b"k1", b"k2", b"k3")
IDS = ("t1", "t2")
TIMEOUT_MS = 900
TOLD_TO_RETRY = (ErrorCode.concurrent_transactions,)
FENCED = (
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_producer_id_mapping,
)

Place = tuple[str, int]


class Spot(NamedTuple):
    """Where a record lies."""

    place: Place
    key: bytes | None
    offset: int


class Txn(msgspec.Struct):
    """One transaction as its producer knows it."""

    number: int
    id: str
    values: list[bytes] = []
    has_offsets: bool = False
    wish: str = ""
    """What was asked for: "", "commit", "abort"; "refused": the commit was."""
    told: bool = False
    """Whether that was answered."""


class Transactions(World):
    """Two transactional producers, an idempotent one, a plain one, and a reader."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.txns: list[Txn] = []
        self.owner: dict[bytes, Txn] = {}
        """Value → its transaction."""
        self.free: dict[bytes, str] = {}
        """Value outside of transactions → who wrote it."""
        self.acknowledged: set[bytes] = set()
        """Of the free ones."""
        self.places: dict[bytes, Spot] = {}
        """Value → where it was written to."""
        self.seen: set[bytes] = set()
        self.idempotent: int | None = None
        self.sequence = 0
        self.unanswered: list[tuple[int, bytes]] = []
        """Sequences and values that the idempotent producer has no answer for."""

    def works(self) -> Sequence[Work]:
        """What somebody may do next."""
        return (
            self.transact, self.transact, self.transact, self.transact, self.transact_last,
            self.publish, self.repeat, self.rest, self.rest, self.rest, self.read, self.wait_long,
            self.fail_disk,
        )  # fmt: skip

    async def begin(self) -> None:
        """Recover the coordinator, and look at what readers see already."""
        for config in TOPICS:
            if self.broker.streams.find(config.name) is None:
                await self.broker.streams.create(config)
        self.busy: set[str] = set()
        self.producers: dict[str, Producer] = {}
        self.began_ms: dict[str, int] = {}
        """Id → since when it may have a transaction."""
        self.sequences: dict[tuple[Producer, Place], int] = {}
        self.topics = Topics(self.broker)
        self.ids = ProducerIds(self.broker.store)
        await self.ids.open()
        self.groups = await Groups.open(self.broker, KafkaGroups(), self.clock)
        self.coordinator = await open_coordinator(
            self.broker,
            Participants(self.broker, self.topics, self.groups),
            self.ids,
            KafkaTransactions(),
            self.clock,
        )
        self.check_seen()

    async def end(self) -> None:
        """Stop in the order in which the Kafka server does."""
        await self.coordinator.close()
        await self.groups.close()
        await self.ids.close()
        self.topics.close()

    # -- what clients do

    async def wait_long(self) -> None:
        """So long that open transactions time out."""
        if self.chance.random() < 0.3:
            await asyncio.sleep(1.2 * TIMEOUT_MS / 1000)

    async def transact(self) -> None:
        name = self.chance.choice(IDS)
        if name not in self.busy:
            self.busy.add(name)
            self.later(lambda: self.transact_as(name))

    async def transact_last(self) -> None:
        """A producer is told how its transaction ended, and that very moment the power goes."""
        name = self.chance.choice(IDS)
        if name not in self.busy and self.chance.random() < 0.5:
            self.busy.add(name)
            before = len(self.txns)
            await self.transact_as(name)
            if any(txn.told for txn in self.txns[before:] if txn.id == name):
                self.doom = "power"

    async def transact_as(self, name: str) -> None:
        """A whole transaction, as far as it comes."""
        try:
            with self.kafka_refusals(name):
                txn, producer = await self.begin_transaction(name)
                await self.end_transaction(txn, producer)
        finally:
            self.busy.discard(name)

    @contextlib.contextmanager
    def kafka_refusals(self, name: str) -> Iterator[None]:
        """A producer is told to try again; or it was slow, is fenced, and has to begin anew."""
        try:
            yield
        except KafkaError as error:
            if error.code in TOLD_TO_RETRY:
                return
            self.producers.pop(name, None)
            took_ms = self.clock.now_ms() - self.began_ms.get(name, 0)
            is_late = error.code in FENCED and took_ms >= TIMEOUT_MS
            assert self.sick or is_late, f"refused after {took_ms} ms: {error!r}"

    async def begin_transaction(self, name: str) -> tuple[Txn, Producer]:
        producer = self.producers.get(name)
        if producer is None or self.chance.random() < 0.2:
            self.producers.pop(name, None)
            producer = await self.coordinator.init_producer(name, TIMEOUT_MS)
            self.producers[name] = producer
        places = self.chance.sample(PLACES, self.chance.randint(1, len(PLACES)))
        self.began_ms[name] = self.clock.now_ms()
        await self.coordinator.add(name, producer, frozenset(places))
        self.count += 1
        txn = Txn(self.count, name, [])
        self.txns.append(txn)
        for _ in range(self.chance.randint(1, 3)):
            await self.write(txn, producer, self.chance.choice(places))
            if self.chance.random() < 0.3:
                await asyncio.sleep(self.chance.random() * 0.3)
        if self.chance.random() < 0.4:
            await self.move_group(txn, producer)
        return txn, producer

    async def write(self, txn: Txn, producer: Producer, place: Place) -> None:
        """What Produce does with a batch of a transaction: verified, then appended."""
        rows = []
        for _ in range(self.chance.randint(1, 3)):
            value, key = self.next_value((10, 1400)), self.chance.choice(KEYS)
            self.owner[value] = txn
            rows.append((None, key, value, (), self.clock.now_ms()))
        self.coordinator.verify(txn.id, *producer, *place)
        sequence = self.sequences.get((producer, place), 0)
        self.sequences[producer, place] = sequence + len(rows)
        numbers = (*producer, sequence)
        data = bytearray(build_batch(rows, attributes=ATTR_TRANSACTIONAL, producer=numbers))
        log = self.log(place)
        appended = append_batches(log, data)
        await log.wait_visible(Offset(appended.end_offset - 1))
        for at, (_topic, key, value, _headers, _time) in enumerate(rows, appended.base_offset):
            self.places[value] = Spot(place, key, at)
            txn.values.append(value)

    async def move_group(self, txn: Txn, producer: Producer) -> None:
        """What TxnOffsetCommit does: the group comes to stand at the transaction's number."""
        group = f"group-{txn.id}"
        await self.coordinator.add(txn.id, producer, groups=frozenset({group}))
        self.coordinator.verify_group(txn.id, producer, group)
        txn.has_offsets = True
        await self.groups.offsets.stage(group, *producer, {("plain", 0): (txn.number, -1, "")})

    async def end_transaction(self, txn: Txn, producer: Producer) -> None:
        wish = self.chance.choice(("commit", "commit", "commit", "abort", "vanish"))
        if wish == "vanish":
            del self.producers[txn.id]
            return
        txn.wish = wish
        try:
            await self.coordinator.end(txn.id, producer, commit=wish == "commit")
        except KafkaError:
            if not self.sick:
                txn.wish = "refused"
            raise
        txn.told = True

    async def publish(self) -> None:
        """Records outside of transactions, between theirs."""
        topic, key = self.chance.choice(("plain", "last")), self.chance.choice(KEYS)
        value = self.next_value((10, 1400))
        self.free[value] = "publisher"

        async def tell() -> None:
            row = await self.broker.publish(Message(topic, value, key), principal=LOCAL)
            self.places[value] = Spot((topic, int(row.partition)), key, int(row.offset))
            self.acknowledged.add(value)

        self.later(tell)

    async def repeat(self) -> None:
        """The idempotent producer sends again what was not answered, and something new."""
        if "idempotent" in self.busy:
            return
        if self.idempotent is None:
            self.idempotent = self.ids.take()
        value = self.next_value((10, 100))
        self.free[value] = "idempotent"
        self.unanswered.append((self.sequence, value))
        self.sequence += 1
        self.busy.add("idempotent")
        self.later(self.send_unanswered)
        if self.chance.random() < 0.15:  # the broker dies before or after it wrote, or answered
            await asyncio.sleep(self.chance.random() * 0.02)
            self.doom = self.chance.choice(("kill", "power"))

    async def send_unanswered(self) -> None:
        try:
            assert self.idempotent is not None
            log = self.log(("plain", 1))
            ends = []
            for sequence, value in self.unanswered:
                rows = [(None, b"k", value, (), self.clock.now_ms())]
                producer = (self.idempotent, 0, sequence)
                data = bytearray(build_batch(rows, producer=producer))
                ends.append(append_batches(log, data).end_offset)
            await log.wait_visible(Offset(max(ends) - 1))
            self.acknowledged.update(value for _, value in self.unanswered)
            self.unanswered.clear()
        finally:
            self.busy.discard("idempotent")

    async def read(self) -> None:
        self.check_seen()

    # -- what must hold

    def log(self, place: Place) -> Partition:
        """Where a topic's partition lies."""
        return self.broker.streams.get(place[0]).partitions[place[1]]

    def visible(self, place: Place) -> list[bytes]:
        """What a Kafka client that reads committed records sees; where it lies is noted."""
        log = self.log(place)
        aborted = log.aborted_between(log.start_offset, log.last_stable_offset)
        found: list[bytes] = []
        offset = log.start_offset
        while len(data := log.read(offset, 1 << 20, committed=True)):
            for info, slices in iterate_batches(data):
                offset = Offset(info.last_offset + 1)
                dropped = any(
                    row.producer_id == info.producer_id
                    and row.first_offset <= info.base_offset <= row.last_offset
                    for row in aborted
                )
                transactional = info.attributes & ATTR_TRANSACTIONAL
                if info.attributes & ATTR_CONTROL or (transactional and dropped):
                    continue
                for at in range(len(slices)):
                    value = slices.value(at) or b""
                    spot = Spot(place, slices.key(at), int(slices.offset(at)))
                    assert self.places.setdefault(value, spot) == spot, f"{value[:8]!r} moved"
                    found.append(value)
        return found

    def check_seen(self) -> None:
        """What readers of committed records see at any moment."""
        try:
            self.see()
        except OnelogError:
            assert self.sick, "cannot be read although nothing is wrong"

    def see(self) -> None:
        all_found: set[bytes] = set()
        told: dict[Place, list[bytes]] = {place: [] for place in PLACES}
        for row in read_all(self.broker, ["plain", "last"]):
            told[row.stream, row.partition].append(row.value or b"")
        for place in PLACES:
            found = self.visible(place)
            assert found == told[place], f"{place}: a cursor and a client see different records"
            self.check_place(place, found)
            self.seen.update(found)
            all_found.update(found)
        for value in self.seen - all_found:
            assert self.is_superseded(value, all_found), f"{value[:8]!r} was seen and is gone"

    def check_place(self, place: Place, found: list[bytes]) -> None:
        assert len(set(found)) == len(found), f"{place}: a record is there twice"
        last: dict[str, int] = {}
        for value in found:
            txn = self.owner.get(value)
            assert txn is not None or value in self.free, f"{place}: nobody wrote {value[:8]!r}"
            if txn is not None:
                assert txn.wish == "commit", f"{value[:8]!r} is seen, and its wish: {txn.wish!r}"
            writer = self.free[value] if txn is None else txn.id
            assert last.get(writer, 0) < number_of(value), f"{place}: the order changed"
            last[writer] = number_of(value)

    def is_superseded(self, value: bytes, found: set[bytes]) -> bool:
        """Whether compaction may have taken a record: there is a newer one of its key."""
        place, key, offset = self.places[value]
        newer = (self.places[other] for other in found)
        return place[0] == "last" and any(
            row.place == place and row.key == key and row.offset > offset for row in newer
        )

    async def finish(self) -> None:
        """Everything that was left open is aborted by its timeout; then all is decided."""
        if self.unanswered:
            await self.send_unanswered()
        await asyncio.sleep(1.2 * TIMEOUT_MS / 1000)
        self.check_seen()
        for place in PLACES:
            log = self.log(place)
            assert log.last_stable_offset == log.end_offset, f"{place}: a transaction stays open"
        found = {value for place in PLACES for value in self.visible(place)}
        for value in self.acknowledged:
            assert value in found or self.is_superseded(value, found), f"{value[:8]!r} is lost"
        groups = dict.fromkeys(IDS, 0)
        for txn in self.txns:
            there = [value in found for value in txn.values]
            gone = [value for value in txn.values if value not in found]
            whole = all(self.is_superseded(value, found) for value in gone)
            # A transaction of which compaction left nothing tells by nothing that it was one.
            is_committed = any(there) or (txn.wish == "commit" and txn.told)
            if is_committed:
                assert whole, f"transaction {txn.number} is there in part: {there}"
            if is_committed and txn.has_offsets:
                groups[txn.id] = txn.number
        for name, number in groups.items():
            self.check_group(name, number)

    def check_group(self, name: str, number: int) -> None:
        """The group stands where the last committed transaction with offsets put it."""
        offsets = self.groups.offsets.find(f"group-{name}")
        row = None if offsets is None else offsets.find("plain", 0)
        stands = 0 if row is None else row.offset
        unsure = [
            txn.number
            for txn in self.txns
            if txn.id == name and txn.has_offsets and txn.wish == "commit" and not txn.told
        ]
        assert stands == number or (stands in unsure and stands > number), (
            f"the group of {name} stands at {stands}, its transactions at {number}"
        )
        assert offsets is None or not offsets.pending, f"offsets of {name} wait for ever"
