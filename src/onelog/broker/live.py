"""The live feed: every record that becomes visible, once, to the protocols that follow the end.

Rules:
- A protocol gets whole batches as they were appended, in the same pass of the loop, without
  reading the log back. It answers how far it came; what it leaves (compressed, transactional,
  control batches) is read from the log and handed over as records when it is decided.
- `position` of a source is the next offset that the live feed hands out. Who stops following
  remembers it and reads the log from there; who has read up to it may follow again.
- A stream that took over topics is held until what came before has been handed out: its old homes
  may become visible later (`log/moves.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.cursors.reader import read_records
from onelog.cursors.sources import Everything, Source
from onelog.kernel import scan_batches
from onelog.log.catalog import Catalog
from onelog.log.moves import Move
from onelog.log.partition import LiveFeed, Partition
from onelog.log.stream import Stream
from onelog.record.record import Record

ROWS_PER_READ = 1_000


class LiveSource:
    """One partition that is followed."""

    __slots__ = ("feed", "held", "number", "partition", "position", "stream")

    def __init__(self, number: int, stream: Stream, partition: Partition) -> None:
        self.number = number
        self.stream = stream
        self.partition = partition
        self.position = int(partition.high_watermark)
        self.feed: LiveFeed | None = None
        self.held: tuple[Move, ...] = ()
        """Moves whose old homes come first."""

    @property
    def limit(self) -> int:
        """Where it is handed out to for now."""
        end = int(self.partition.last_stable_offset)
        number = int(self.partition.id)
        return min(end, *(move.end_of(number) for move in self.held)) if self.held else end

    @property
    def as_source(self) -> Source:
        """The same place as cursors name it."""
        return Source(self.stream, self.partition)

    @property
    def fixed_topic(self) -> bytes | None:
        """The topic of every record from `position` on; None when records carry their own."""
        topic = self.stream.fixed_topic_at(self.partition.id, self.position)
        return None if topic is None else topic.encode()

    @property
    def key(self) -> tuple[str, int]:
        """What a cursor remembers a position under."""
        return self.stream.record.id, self.partition.id


class LiveListener(Protocol):
    """A protocol that follows the end."""

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        """Take batches from `source.position` on; the offset that it came to."""
        ...

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        """Take committed records that `deliver` had left."""
        ...


class Live:
    """All sources that are followed, and by whom."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._listener: LiveListener | None = None
        self._sources: dict[tuple[str, int], LiveSource] = {}
        self._by_number: list[LiveSource] = []
        self.keys: list[tuple[str, int]] = []
        """What a cursor remembers a position under, by the number of the source."""
        self._known: set[str] = set()
        """Ids of internal streams that have numbers, too."""
        self._held: list[LiveSource] = []

    def start(self, listener: LiveListener) -> None:
        """Let a protocol follow every partition from now on, those of later streams too."""
        assert self._listener is None, "a second listener has a Live of its own"
        self._listener = listener
        self._catalog.on_change.append(self._streams_changed)
        self._streams_changed()

    def know(self, stream: Stream) -> None:
        """Give an internal stream numbers, so that its records can be in flight; not followed."""
        self._known.add(stream.record.id)
        self._streams_changed()

    def _streams_changed(self) -> None:
        known = set()
        for stream in self._catalog.streams():
            followed = not stream.config.internal
            if not followed and stream.record.id not in self._known:
                continue
            for partition in stream.partitions:
                key = (stream.record.id, int(partition.id))
                known.add(key)
                if key not in self._sources:
                    source = LiveSource(len(self._by_number), stream, partition)
                    self._sources[key] = source
                    self._by_number.append(source)
                    self.keys.append(key)
                    if followed:
                        source.feed = partial(self.feed, source)
                        partition.follow(source.feed)
        for key in set(self._sources) - known:
            gone = self._sources.pop(key)
            if gone.feed is not None:
                gone.partition.unfollow(gone.feed)
        self._held = [source for source in self.sources() if self._hold(source)]

    def _hold(self, source: LiveSource) -> bool:
        """Look anew what comes before a source; whether anything does."""
        source.held = tuple(move for move in source.stream.record.moves if not self._is_out(move))
        return bool(source.held)

    def _is_out(self, move: Move) -> bool:
        """Whether everything that was written before a move has been handed out."""
        for key, end in move.after:
            old = self._sources.get(key)
            if old is None or old.partition.stopped is not None:
                continue
            if old.position < min(end, old.partition.end_offset):
                return False
        return True

    def _release(self) -> None:
        """Go on with what was held, as far as what comes first is handed out by now."""
        for source in [row for row in self._held if not self._hold(row)]:
            if source in self._held:
                self._held.remove(source)
                self._read_on(source)

    def sources(self) -> list[LiveSource]:
        """Every partition that is followed now."""
        return [source for source in self._sources.values() if source.feed is not None]

    def source(self, number: int) -> LiveSource:
        """A source by its number."""
        return self._by_number[number]

    def place_of(self, record: Record) -> tuple[int, int] | None:
        """The source number and offset of a record; None when its stream is gone."""
        stream = self._catalog.find(record.stream)
        source = None if stream is None else self.find((stream.record.id, record.partition))
        return None if source is None else (source.number, record.offset)

    def find(self, key: tuple[str, int]) -> LiveSource | None:
        """A source by stream id and partition; None when it is not followed (any more)."""
        return self._sources.get(key)

    def feed(self, source: LiveSource, data: bytes | bytearray) -> None:
        """Batches became visible."""
        listener = self._listener
        if source.held:
            self._release()  # an old home may have stopped, and holds nobody back then
            self._read_on(source)
            return
        if listener is None or source.position != int.from_bytes(data[:8], "big"):
            return  # it is reading the log, and will come to these
        source.position = listener.deliver(source, data)
        if source.position < source.partition.high_watermark:
            infos = scan_batches(data, 0, False)
            if source.position <= infos[-1].last_offset:
                self._read_on(source)
        if self._held:
            self._release()

    def _read_on(self, source: LiveSource) -> None:
        """Hand over decided records from the log until the feed has caught up."""
        wanted = Everything(source.as_source)
        partition = source.partition
        while self._listener is not None and source.position < source.limit:
            records, following = read_records(
                wanted,
                wanted.sources[0],
                Offset(source.position),
                ROWS_PER_READ,
                upto=source.limit,
            )
            source.position = following
            if records:
                self._listener.deliver_records(source, records)
        if self._held:
            self._release()
        if source.position < partition.high_watermark and not source.held:

            def decided(error: OnelogError | None) -> None:
                if error is None:
                    self._read_on(source)

            partition.when_stable(Offset(source.position), decided)
