"""Following the log: every record that becomes visible is given to the queues that it is for.

Rules:
- Each record is routed once, in order, by the bindings of that moment. How far the routing of a
  partition has come is the position of AMQP's live feed; queues keep it with their places.
- What a topic is routed to is remembered until the topology changes. Only where bindings look at
  headers, or a message has more keys than one, every record is looked at.
- After a restart each partition is routed again from the lowest position that a queue kept; a queue
  takes only what lies behind its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from onelog.base.ids import Offset, TimestampMs
from onelog.broker import EARLIEST, LATEST, LiveSource, Record, RoutedCursor, Start
from onelog.cursors.reader import read_records
from onelog.cursors.sources import Everything
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_TRANSACTIONAL,
    decode_batch,
    scan_batches,
)
from onelog.protocols.amqp.addresses import (
    DEFAULT_VHOST,
    ROOT_EXCHANGE,
    address_of,
    capture_of,
)
from onelog.protocols.amqp.mapping import BLIND_KEYS, extra_keys_of, headers_of
from onelog.protocols.amqp.queues.ready import pack
from onelog.protocols.amqp.router import Binding, Router

if TYPE_CHECKING:
    from onelog.broker import Published
    from onelog.protocols.amqp.hub import Hub
    from onelog.protocols.amqp.queues.queue import Queue

_SPECIAL: Final = ATTR_CODEC_MASK | ATTR_CONTROL | ATTR_TRANSACTIONAL
_TOPICS_MAX: Final = 100_000
_READ_ROWS: Final = 1_000
STREAM_PREFIX: Final = "amqp."

Queues = tuple["Queue", ...]


class Follower:
    """AMQP's ear at the log."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.live = hub.broker.new_live()
        self._topics: dict[bytes, Queues | None] = {}
        """Topic → its queues; None: every record has to be looked at."""
        self._refused: set[tuple[str, int, int]] = set()
        self._root_matters = False
        """Whether `amq.topic`, the root of the topic space, is bound to anything."""
        self._has_queues = False

    def topology_changed(self) -> None:
        """What is remembered may be wrong now."""
        self._topics.clear()
        root = self._hub.vhosts.find(DEFAULT_VHOST)
        self._root_matters = root is not None and bool(root.router.bindings_from(ROOT_EXCHANGE))
        self._has_queues = self._hub.has_queues

    def _concerns(self, source: LiveSource) -> bool:
        """Whether any queue may take records of a partition."""
        if not self._has_queues:
            return False
        return self._root_matters or source.stream.name.startswith(STREAM_PREFIX)

    # -- live

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        """Take batches that became visible; the offset that the routing came to."""
        if not self._concerns(source):
            return _end_of(source, data)  # what MQTT and Kafka write to each other costs nothing
        fixed = source.fixed_topic
        many_keys = BLIND_KEYS in data
        for info in scan_batches(data, 0, False):
            if info.attributes & _SPECIAL:
                return info.base_offset
            slices = decode_batch(data, info.position, None, False)
            for index in range(len(slices)):
                topic = fixed if fixed is not None else slices.topic(index)
                if topic is None:
                    continue
                queues = self._queues_of(topic)
                if queues == () and not many_keys:
                    continue
                offset = slices.offset(index)
                record: Record | None = None
                if queues is None or many_keys or any(queue.needs_records for queue in queues):
                    _offset, time, key, value, headers = slices.record(index)
                    record = Record(
                        source.stream.name, int(source.partition.id), Offset(offset),
                        topic.decode(errors="replace"), TimestampMs(time), key, value, headers,
                    )  # fmt: skip
                if queues is None or many_keys:
                    assert record is not None
                    queues = self._route(record)
                self._give(source.number, queues, offset, record)
        return _end_of(source, data)

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        """Take committed records that `deliver` left."""
        for record in records:
            self._give(source.number, self._route(record), record.offset, record)

    def _give(self, number: int, queues: Queues, offset: int, record: Record | None) -> None:
        place = pack(number, offset)
        for queue in queues:
            if not queue.take_in(place, record):
                source = self.live.source(number)
                self._refused.add((source.stream.name, int(source.partition.id), offset))

    def take_refusal(self, published: Published) -> bool:
        """Whether a queue refused a message; told once."""
        key = (published.stream, published.partition, int(published.offset))
        if key in self._refused:
            self._refused.discard(key)
            return True
        return False

    # -- routing

    def _queues_of(self, topic: bytes) -> Queues | None:
        try:
            return self._topics[topic]
        except KeyError:
            pass
        address = address_of(topic.decode(errors="replace"))
        vhost = self._hub.vhosts.find(address.vhost)
        found: Queues | None = ()
        if vhost is not None:
            if vhost.router.looks_at_headers(address.exchange):
                found = None
            else:
                names = vhost.router.route(address.exchange, address.routing_key, {})
                found = tuple(vhost.queues[name] for name in names if name in vhost.queues)
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        self._topics[topic] = found
        return found

    def _route(self, record: Record) -> Queues:
        address = address_of(record.topic)
        vhost = self._hub.vhosts.find(address.vhost)
        if vhost is None:
            return ()
        headers = headers_of(record)
        names: set[str] = set()
        for key in (address.routing_key, *extra_keys_of(record)):
            names |= vhost.router.route(address.exchange, key, headers)
        return tuple(vhost.queues[name] for name in names if name in vhost.queues)

    # -- recovery

    async def catch_up(self, queues: list[Queue], created_ms: dict[str, int]) -> None:
        """Route what came after the positions that queues kept, then follow the end."""
        self.topology_changed()
        self.live.start(self)
        for queue in queues:
            self._restore(queue)
        for source in list(self.live.sources()):
            await self._catch_up_source(source, queues, created_ms)
        for queue in queues:
            queue.cursor.position_of = self.position_of

    def position_of(self, key: tuple[str, int]) -> int | None:
        """How far the routing of a partition has come."""
        source = self.live.find(key)
        return None if source is None else source.position

    def _restore(self, queue: Queue) -> None:
        gone: set[tuple[str, int]] = set()
        for key, offset in queue.cursor.places():
            source = self.live.find(key)
            if source is None:
                gone.add(key)
                continue
            record = None
            if queue.needs_records:
                rows = self._hub.read(source.number, [offset])
                record = rows[0] if rows else None
            queue.restore(pack(source.number, offset), record)
        for key in gone:
            queue.cursor.forget(key)

    async def _catch_up_source(
        self, source: LiveSource, queues: list[Queue], created_ms: dict[str, int]
    ) -> None:
        starts: dict[Queue, int] = {}
        for queue in queues:
            kept = queue.cursor.routed_to(source.key)
            if kept is None:
                # A stream that is younger than what the queue kept: all of it is new to it.
                younger = source.stream.record.created_ms >= created_ms.get(queue.cursor.name, 0)
                kept = 0 if younger and source.stream.name.startswith(STREAM_PREFIX) else None
            if kept is not None and kept < source.position:
                starts[queue] = kept
        if not starts:
            return
        wanted = Everything(source.as_source)
        position = Offset(max(min(starts.values()), source.partition.start_offset))
        while position < source.position:
            records, position = read_records(
                wanted, wanted.sources[0], position, _READ_ROWS, upto=source.position
            )
            for record in records:
                place = pack(source.number, record.offset)
                for queue in self._route(record):
                    if starts.get(
                        queue, source.position
                    ) <= record.offset and not queue.cursor.holds(source.key, record.offset):
                        queue.take_in(place, record)
            await asyncio.sleep(0)

    # -- which partitions

    def amqp_sources(self) -> Iterator[LiveSource]:
        """Partitions that hold what exchanges and queues are sent."""
        return (row for row in self.live.sources() if row.stream.name.startswith(STREAM_PREFIX))

    def sources_of(self, vhost: str, exchange: str) -> Iterator[LiveSource]:
        """Partitions that may hold messages of an exchange."""
        own = capture_of(vhost, exchange)
        if own is not None:
            return (row for row in self.live.sources() if row.stream.name == own[0])
        return (row for row in self.live.sources())

    # -- history

    async def take_history(self, queue: Queue, binding: Binding) -> None:
        """Give a queue the records before its time that a binding matches."""
        vhost = queue.vhost
        alone = Router()
        for record in vhost.router.exchanges():
            if alone.find(record.name) is None:
                alone.add_exchange(record)
        alone.add_queue(queue.name)
        if binding.source:
            alone.bind(binding)
        start = _start_of(queue)
        for source in list(self.sources_of(vhost.name, binding.source)):
            await self._take_history_of(source, queue, alone, start)
        queue.wake()

    async def _take_history_of(
        self, source: LiveSource, queue: Queue, alone: Router, start: Start
    ) -> None:
        wanted = Everything(source.as_source)
        position = Offset(max(start.offset_in(source.as_source), source.partition.start_offset))
        end = source.position
        while position < end and not queue.is_deleted:
            records, position = read_records(
                wanted, wanted.sources[0], position, _READ_ROWS, upto=end
            )
            for record in records:
                address = address_of(record.topic)
                if address.vhost != queue.vhost.name or queue.cursor.holds(
                    source.key, record.offset
                ):
                    continue
                keys = (address.routing_key, *extra_keys_of(record))
                headers = headers_of(record)
                if any(queue.name in alone.route(address.exchange, key, headers) for key in keys):
                    queue.take_in(pack(source.number, record.offset), record)
            await asyncio.sleep(0)


def _start_of(queue: Queue) -> Start:
    chosen = queue.settings.start
    if chosen == "earliest":
        return EARLIEST
    if isinstance(chosen, int):
        return Start("offset", chosen)
    if isinstance(chosen, str) and chosen.startswith("timestamp:"):
        return Start("time", int(chosen.partition(":")[2]))
    return LATEST


def _end_of(source: LiveSource, data: bytes | bytearray) -> int:
    infos = scan_batches(data, 0, False)
    return infos[-1].last_offset + 1 if infos else source.position


def note_positions(cursor: RoutedCursor, live_sources: Iterator[LiveSource]) -> None:
    """Let a cursor begin at the routing's position in these partitions."""
    for source in live_sources:
        if cursor.routed_to(source.key) is None:
            cursor.set_routed_to(source.key, source.position)
