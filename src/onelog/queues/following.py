"""Following the log: every record that becomes visible goes to the queues that bindings choose for
it.

Rules:
- Each record is routed once, in order, by the bindings of that moment. The position of the queues'
  live feed says how far the routing of a partition has come; queues keep it with their places.
- The route of a topic is remembered until the topology changes, and the kernel finds the runs of
  records that go the same way. A record is looked at by itself only where bindings look at headers,
  where it has several keys or an expiry, or where its queue has to see it.
- Records may come from any client. One that cannot be routed, or that a queue cannot take, is
  reported to `Troubles` and left out there, and only there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Final, Literal

from onelog.base.ids import Offset, TimestampMs
from onelog.broker import LiveSource, Record, RoutedCursor
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_TRANSACTIONAL,
    BatchInfo,
    QueueFeed,
    Slices,
    Unconcerned,
    decode_batch,
    scan_batches,
)
from onelog.queues.addresses import (
    AUDIT_STREAM,
    QUEUES_STREAM,
    ROOT_EXCHANGE,
    STREAM_PREFIX,
    address_of,
    capture_of,
)
from onelog.queues.headers import extra_keys_of, headers_of, left_out_of
from onelog.queues.history import Moment
from onelog.queues.ready import pack, unpack
from onelog.queues.recovery import own_key
from onelog.queues.replies import REPLY_PREFIX
from onelog.queues.spreading import Queues, Spread, Spreader
from onelog.queues.standing import Standing
from onelog.record.headers import EXPIRY, find_header

if TYPE_CHECKING:
    from onelog.broker import Published
    from onelog.queues.hub import QueueHub
    from onelog.queues.queue import Queue
    from onelog.queues.vhosts import VirtualHost

_SPECIAL: Final = ATTR_CODEC_MASK | ATTR_CONTROL | ATTR_TRANSACTIONAL
_TOPICS_MAX: Final = 100_000
_REFUSED_MAX: Final = 100_000
QUEUE_TROUBLE: Final = "amqp-queue"
"""Incidents: a queue could not take or hand out a message."""
ROUTING_TROUBLE: Final = "amqp-routing"
"""Incidents: a record could not be routed."""
_REPLY: Final = REPLY_PREFIX.encode()

Target = Spread | Literal[False] | None
"""The queues for records of a topic; False: none; None: each record has to be looked at."""
Run = tuple[Target, bytes | None, int, int, int]
"""Records that go the same way (`topic_runs`): target, topic, first offset, count, marks."""


class Follower:
    """Listens to the log for all queues."""

    def __init__(self, hub: QueueHub) -> None:
        self._hub = hub
        self.live = hub.broker.new_live("amqp")
        self._spreader = Spreader(hub.loop, self._stumbled)
        self._topics: dict[bytes, Target] = {}
        self.refused: dict[tuple[str, int, int], None] = {}
        """Messages that queues refused lately, the oldest first."""
        self.standing = Standing(hub, self)
        self._moments: set[Moment] = set()
        """Moments that somebody may ask of where the routing stood."""
        self._root_matters = False
        """Whether an `amq.topic`, which shares all topics, has any binding."""
        self._has_queues = False
        self.unconcerned = Unconcerned()
        """Its turn changes when partitions may concern queues that did not before."""
        self.rights = 0
        """Counts changes of what makers of bindings may."""
        self.feed = QueueFeed(
            self._topics, self._find, self._stumbled, _Batches, self._take_run, self._hand_out
        )

    def settle_up(self) -> None:
        """Note in every queue what was routed to it."""
        self._spreader.settle_up()

    def moment(self) -> Moment:
        """Remember where the routing stands, until `forget_moment`."""
        moment = Moment(self.live)
        self._moments.add(moment)
        self.unconcerned.turn += 1
        return moment

    def forget_moment(self, moment: Moment) -> None:
        """Nobody asks any more where the routing stood."""
        self._moments.discard(moment)

    def _moves_on(self, source: LiveSource) -> None:
        for moment in self._moments:
            moment.moved.setdefault(source.key, source.position)

    def queue_wakes(self) -> None:
        """A queue that only collected has a consumer now."""
        self._spreader.forget()
        self._topics.clear()

    def topology_changed(self) -> None:
        """Remembered routes may be wrong now."""
        self.queue_wakes()
        hosts = self._hub.vhosts.all()
        self._root_matters = any(row.router.bindings_from(ROOT_EXCHANGE) for row in hosts)
        self._has_queues = self._hub.vhosts.have_queues
        self.unconcerned.turn += 1

    def _concerns(self, source: LiveSource) -> bool:
        """Whether any queue may take records of a partition, or a channel waits for answers."""
        name = source.stream.name
        if self._has_queues and (
            self._root_matters or name.startswith(STREAM_PREFIX) or name == AUDIT_STREAM
        ):
            return True
        return name == QUEUES_STREAM and self._waits_for_replies()

    def _waits_for_replies(self) -> bool:
        return any(vhost.replies for vhost in self._hub.vhosts.all())

    # -- live

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        """Route batches that became visible. Returns the offset that the routing has reached."""
        if self._moments:
            self._moves_on(source)
        if not self._concerns(source):
            # Records that no queue or exchange is for cost nothing. The first channel that waits
            # for answers changes no turn.
            if not self._moments and source.stream.name != QUEUES_STREAM:
                source.unconcerned_since = self.unconcerned.turn
            return _end_of(source, data)
        fixed = source.fixed_topic
        if fixed is None and not self._moments:
            source.concerned_since = self.unconcerned.turn
        return self.feed.deliver(source, data, fixed)

    def _take_run(self, batches: _Batches, row: Run, gone: int) -> None:
        """Give a run to its queues; its first `gone` records went to the only queue already."""
        target, _topic, first, count, marks = row
        number, woken = batches.number, batches.woken
        if marks or not target:
            self._look(number, batches, first, woken)
            return
        first, count = first + gone, count - gone
        place = pack(number, first)
        for queue in target.ready:
            try:
                sent = 0 if batches.shown is None else queue.pass_on(place, count, batches.shown)
                if sent < count:
                    queue.take_in_run(place + sent, count - sent)
                    woken[queue] = None
            except Exception as error:  # noqa: BLE001
                self._stumbled(queue, place, count, error)
        if target.quiet:
            self._spreader.later(target, place, count)
        if target.looking:
            self._show(number, batches, (first, count), target.looking)

    def _hand_out(self, batches: _Batches, end: int) -> None:
        """Let queues hand out records that just came, straight from their batches if possible."""
        data, number = batches.shown, batches.number
        first = 0 if data is None else int.from_bytes(data[:8], "big")
        for queue in batches.woken:
            if data is not None:
                queue.window.show(number, first, end, data)
            try:
                queue.pump()
            except Exception as error:  # noqa: BLE001
                self._note(queue, error, number, end)

    def _look(self, number: int, decoded: _Batches, offset: int, woken: dict[Queue, None]) -> None:
        """Route one record by its topic, keys and headers."""
        for record in decoded.records(offset, 1):
            self.notice_expiry([record])
            queues = self.route_safely(record)
            self._give(number, queues, offset, record)
            woken.update(dict.fromkeys(queues))

    def _stumbled(self, queue: Queue, place: int, count: int, failure: Exception) -> None:
        """A queue raised over a run of messages: give it those that it lacks, one by one."""
        number, first = unpack(place)
        self._note(queue, failure, number, first)
        for offset in range(first, first + count):
            if not queue.cursor.holds(self.live.keys[number], offset):
                self._offer(queue, number, offset, None)

    def _note(self, queue: Queue, error: Exception, number: int, offset: int) -> None:
        source = self.live.source(number)
        self._hub.broker.troubles.note(
            QUEUE_TROUBLE,
            f"{queue.vhost.name} {queue.name}",
            error,
            stream=source.stream.name,
            partition=int(source.partition.id),
            offset=offset,
        )

    def _show(self, number: int, decoded: _Batches, run: tuple[int, int], queues: Queues) -> None:
        """Give a run to queues that have to look at each message, or may refuse it."""
        first, count = run
        records: Iterable[Record | None] = repeat(None, count)
        if any(queue.needs_records for queue in queues):
            records = decoded.records(first, count)
        for at, record in enumerate(records):
            self._give(number, queues, first + at, record)

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        """Take committed records that `deliver` left."""
        if self._moments:
            self._moves_on(source)
        self.notice_expiry(records)
        for record in records:
            self._give(source.number, self._route(record), record.offset, record)
            source.position = record.offset + 1

    def release(self, numbers: set[int]) -> set[int]:
        """Partitions are gone. Returns those of which queues still have messages."""
        self._spreader.settle_up()
        by_key = {self.live.keys[number]: number for number in numbers}
        queues = [row for vhost in self._hub.vhosts.all() for row in vhost.queues.values()]
        held = {key for queue in queues for key in queue.cursor.partitions()} & by_key.keys()
        for queue in queues:
            queue.window.close()
            for key in by_key.keys() - held:
                queue.uncertain.pop(by_key[key], None)
                queue.cursor.forget(key)
        return {by_key[key] for key in held}

    def notice_expiry(self, records: list[Record]) -> None:
        """Note that there are messages that may expire."""
        if any(find_header(record.headers, EXPIRY) is not None for record in records):
            self._hub.saw_expiry = True

    def _give(self, number: int, queues: Queues, offset: int, record: Record | None) -> None:
        self._spreader.settle_up()  # records that came before
        for queue in queues:
            self._offer(queue, number, offset, record)

    def _offer(self, queue: Queue, number: int, offset: int, record: Record | None) -> None:
        """Let a queue take or refuse a message."""
        try:
            if queue.take_in(pack(number, offset), record):
                return
        except Exception as error:  # noqa: BLE001
            self._note(queue, error, number, offset)
            return
        source = self.live.source(number)
        self.refused[source.stream.name, int(source.partition.id), offset] = None
        if len(self.refused) > _REFUSED_MAX:  # refusals that no publisher asked about
            del self.refused[next(iter(self.refused))]

    def take_refusal(self, published: Published) -> bool:
        """Whether a queue refused this message. Each refusal is returned once."""
        key = (published.stream, published.partition, int(published.offset))
        return self.refused.pop(key, self) is None

    # -- routing

    def _find(self, topic: bytes) -> Target:
        """The queues for records of a topic, remembered."""
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        try:
            target = self._target(topic)
        except Exception:  # noqa: BLE001  its records are routed one by one, and report it
            target = None
        self._topics[topic] = target
        return target

    def _target(self, topic: bytes) -> Target:
        if _REPLY in topic:
            return None
        address = address_of(topic.decode(errors="replace"))
        vhost = self._hub.vhosts.find(address.vhost)
        if vhost is None:
            return False
        if vhost.router.looks_at_headers(address.exchange):
            return None
        names = sorted(vhost.router.route(address.exchange, address.routing_key, {}))
        queues = tuple(vhost.queues[name] for name in names if name in vhost.queues)
        queues = self._following(queues)
        return self._spreader.spread(queues) if queues else False

    def _following(self, queues: Queues) -> Queues:
        if not self.standing.queues:
            return queues
        return tuple(queue for queue in queues if queue not in self.standing.queues)

    def route_safely(self, record: Record) -> Queues:
        """As `_route`. A record that cannot be routed is reported, and goes to no queue."""
        try:
            return self._route(record)
        except Exception as error:  # noqa: BLE001
            self._hub.broker.troubles.note(
                ROUTING_TROUBLE,
                f"amqp {record.stream}/{record.partition}",
                error,
                offset=int(record.offset),
                topic=record.topic,
            )
            return ()

    def _route(self, record: Record) -> Queues:
        """The queues that take a record and follow the log. An answer goes to the channel that
        waits."""
        address = address_of(record.topic)
        vhost = self._hub.vhosts.find(address.vhost)
        if vhost is None:
            return ()
        if not address.exchange and address.routing_key.startswith(REPLY_PREFIX):
            self._answer(vhost, address.routing_key, record)
            return ()
        return self._following(self.queues_for(record))

    def queues_for(self, record: Record) -> Queues:
        """The queues that a record is for."""
        address = address_of(record.topic)
        vhost = self._hub.vhosts.find(address.vhost)
        if vhost is None:
            return ()
        headers = headers_of(record)
        further = extra_keys_of(record)
        names = vhost.router.route(address.exchange, address.routing_key, headers, further)
        left_out = left_out_of(record)
        return tuple(
            vhost.queues[name] for name in names if name in vhost.queues and name not in left_out
        )

    def _answer(self, vhost: VirtualHost, name: str, record: Record) -> None:
        """Give an answer that another protocol wrote to the channel that waits for it."""
        waiting = vhost.replies.find(name)
        if waiting is not None:
            waiting.take_answer(name, record)

    def position_of(self, key: tuple[str, int]) -> int | None:
        """How far the routing of a partition has come."""
        source = self.live.find(key)
        return None if source is None else source.position

    def _given_to(self, queue: Queue, key: tuple[str, int]) -> int | None:
        """Up to where a queue was given what a partition has for it."""
        standstill = self.standing.queues.get(queue)
        return self.position_of(key) if standstill is None else standstill.stands.at(key)

    def keep_informed(self, queue: Queue) -> None:
        """Let the cursor of a queue know, before it is kept, what the queue was given."""
        queue.cursor.position_of = partial(self._given_to, queue)
        queue.cursor.settle_up = self.settle_up

    # -- which partitions

    def queue_sources(self, queue: Queue) -> list[LiveSource]:
        """The partitions of a queue's own messages."""
        own = own_key(self._hub, queue)
        source = None if own is None else self.live.find(own)
        return [] if source is None else [source]

    def sources_behind(self, vhost: VirtualHost, exchange: str) -> list[LiveSource]:
        """The partitions of all messages that may reach an exchange, also through others."""
        upstream = vhost.router.exchanges_before(exchange)
        return list(
            {
                source.number: source
                for name in upstream
                for source in self.sources_of(vhost.name, name)
            }.values()
        )

    def sources_of(self, vhost: str, exchange: str) -> Iterator[LiveSource]:
        """Partitions that may hold messages of an exchange."""
        if not exchange:
            return (row for row in self.live.sources() if row.stream.name == QUEUES_STREAM)
        own = capture_of(vhost, exchange)
        if own is not None:
            return (row for row in self.live.sources() if row.stream.name == own[0])
        # Topics of the root lie in any stream but those of other exchanges.
        return (row for row in self.live.sources() if not row.stream.name.startswith(STREAM_PREFIX))


class _Batches:
    """Batches that became visible; plain ones are decoded when a record of them is needed."""

    __slots__ = ("_batches", "_data", "_fixed", "_source", "number", "shown", "woken")

    def __init__(self, source: LiveSource, data: bytes | bytearray, fixed: bytes | None) -> None:
        self._source = source
        self._data = data
        self.number = source.number
        self.shown = data if fixed is None else None
        """The batches, if their records can be delivered from them: they carry their topics."""
        self.woken: dict[Queue, None] = {}
        """Queues that have to hand out what they took."""
        self._fixed = fixed
        self._batches: list[tuple[BatchInfo, Slices]] | None = None

    def records(self, first: int, count: int) -> Iterator[Record]:
        """Records that follow each other."""
        if self._batches is None:
            self._batches = [
                (info, decode_batch(self._data, info.position, None, False))
                for info in scan_batches(self._data, 0, False)
                if not info.attributes & _SPECIAL
            ]
        name, partition = self._source.stream.name, int(self._source.partition.id)
        for info, slices in self._batches:
            is_dense = len(slices) == info.last_offset - info.base_offset + 1
            start = max(first - info.base_offset, 0) if is_dense else 0
            for index in range(start, len(slices)):
                offset, time, key, value, headers = slices.record(index)
                if offset >= first + count:
                    return
                topic = self._fixed if self._fixed is not None else slices.topic(index)
                if offset >= first and topic is not None:
                    yield Record(
                        name, partition, Offset(offset), topic.decode(errors="replace"),
                        TimestampMs(time), key, value, headers,
                    )  # fmt: skip


def _end_of(source: LiveSource, data: bytes | bytearray) -> int:
    infos = scan_batches(data, 0, False)
    return infos[-1].last_offset + 1 if infos else source.position


def note_positions(cursor: RoutedCursor, live_sources: Iterable[LiveSource]) -> None:
    """Let a cursor begin where its queue stands in these partitions."""
    for source in live_sources:
        if cursor.routed_to(source.key) is None:
            cursor.set_routed_to(source.key, cursor.position_of(source.key) or 0)
