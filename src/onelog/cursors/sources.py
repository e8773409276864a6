"""Sources: the partitions that a set of filters reads from, shared by all cursors with the same
filters.

Rules: a source set is immutable. When a change of streams touches its filters, the registry hands
out a new one, and a cursor carries its positions over by (stream id, partition); all other sets
stay. The gates of a set say which sources wait for which others, because topics moved between them
(`log/moves.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from onelog.base.errors import NotLeader
from onelog.base.topics import check_filter, is_exact
from onelog.kernel import TopicFilter, TopicTrie
from onelog.log.catalog import Catalog
from onelog.log.handle import PartitionHandle
from onelog.log.stream import Stream
from onelog.log.touched import ByFilters, Filters

_SETS_MAX: Final = 10_000
LISTENER: Final = "sources-listener"
"""Incidents: a cursor's listener for changed streams raised."""


class Source(NamedTuple):
    """One partition of one stream."""

    stream: Stream
    partition: PartitionHandle

    @property
    def key(self) -> tuple[str, int]:
        """The key of a position: the id of a stream is never used again."""
        return self.stream.record.id, self.partition.id


Gates = dict[int, tuple[tuple[int, tuple[tuple[int, int], ...]], ...]]
"""Source index → (the end for now, ((index of another source, the offset to read that one to
first), …)), …"""


class SourceSet:
    """The sources of some filters."""

    __slots__ = ("_only", "_trie", "exact", "filters", "gates", "generation", "sources")

    def __init__(
        self,
        filters: tuple[str, ...],
        sources: tuple[Source, ...],
        generation: int,
        gates: Gates | None = None,
    ) -> None:
        self.filters = filters
        self.sources = sources
        self.generation = generation
        """The change of streams up to which the registry knows that this set is current."""
        self.gates = gates
        self.exact = filters[0] if len(filters) == 1 and is_exact(filters[0]) else None
        # Both are made with the first record: an idle cursor needs neither.
        self._only: TopicFilter | None = None
        self._trie: TopicTrie | None = None

    @property
    def only(self) -> TopicFilter | None:
        """The compiled filter, when there is just one."""
        if self._only is None and len(self.filters) == 1:
            self._only = TopicFilter(self.filters[0].encode())
        return self._only

    def matches(self, topic: bytes) -> bool:
        """Whether a topic matches one of the filters."""
        only = self.only
        if only is not None:
            return only.matches(topic)
        if self._trie is None:
            self._trie = TopicTrie()
            for number, text in enumerate(self.filters):
                self._trie.add(text.encode(), number)
        return bool(self._trie.match(topic))


class Everything(SourceSet):
    """Every record of one source, reserved topics (`$…`) included, which no filter matches."""

    __slots__ = ()

    def __init__(self, source: Source) -> None:
        super().__init__((), (source,), 0)

    def matches(self, topic: bytes) -> bool:
        """Yes."""
        del topic
        return True


class SourceRegistry:
    """Hands out source sets, and calls listeners when streams changed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.troubles = catalog.troubles
        self._cache: ByFilters[SourceSet] = ByFilters()
        self._shared: dict[tuple[Source, ...], tuple[tuple[Source, ...], Gates | None]] = {}
        self._listeners: ByFilters[dict[Callable[[], None], None]] = ByFilters()
        self.generation = 0
        catalog.on_change.append(self._changed)

    def _changed(self) -> None:
        self.generation += 1
        change = self._catalog.touched
        for filters in self._cache.touched_by(change):
            gone = self._cache.pop(filters)
            assert gone is not None
            self._shared.pop(gone.sources, None)  # sets with the same sources are all touched
        for filters in self._listeners.touched_by(change):
            self.troubles.tell(LISTENER, self._listeners.get(filters) or ())

    def listen(self, filters: Filters, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of streams that touches these filters, until
        `ignore`."""
        listeners = self._listeners.get(filters)
        if listeners is None:
            self._listeners.put(filters, {listener: None})
        else:
            listeners[listener] = None

    def ignore(self, filters: Filters, listener: Callable[[], None]) -> None:
        """Stop calling the listener."""
        listeners = self._listeners.get(filters)
        if listeners is not None and listeners.pop(listener, 0) is None and not listeners:
            self._listeners.pop(filters)

    def renew(self, known: SourceSet) -> SourceSet:
        """The current sources of a set's filters: the set itself if no change touched it."""
        if self._cache.get(known.filters) is not known:
            return self.resolve(known.filters)
        known.generation = self.generation
        return known

    def resolve(self, filters: Iterable[str]) -> SourceSet:
        """The current sources of these filters."""
        key = tuple(sorted({check_filter(text) for text in filters}))
        found = self._cache.get(key)
        if found is None:
            # Sets differ by their filters, but most of them have the same sources.
            sources = tuple(self._sources(key))
            shared = self._shared.get(sources)
            if shared is None:
                shared = self._shared[sources] = (sources, self._gates(sources))
            found = SourceSet(key, shared[0], self.generation, shared[1])
            if len(self._cache) >= _SETS_MAX:
                self._cache.clear()
                self._shared.clear()
            self._cache.put(key, found)
        found.generation = self.generation
        return found

    def keys(self, filters: Iterable[str]) -> Iterator[tuple[str, int]]:
        """The partitions that hold or may come to hold records of these filters. Nothing is
        remembered: it is asked for every kept cursor."""
        return (source.key for source in self._sources(tuple(filters)))

    def elsewhere(self, text: str) -> Iterator[Source]:
        """The partitions of a filter of which this node has no copy for good."""
        hosting = self._catalog.hosting
        if hosting.is_shared:
            for row in self._sources((text,)):
                is_replica = hosting.is_replica(row.stream.record, row.partition.id)
                if not is_replica or not _is_here(row.partition):
                    yield row

    def _sources(self, filters: tuple[str, ...]) -> Iterable[Source]:
        seen: set[tuple[str, int]] = set()
        for text in filters:
            for stream in self._catalog.holders(text):
                for partition in _partitions(stream, text):
                    source = Source(stream, partition)
                    if source.key not in seen:
                        seen.add(source.key)
                        yield source

    def _gates(self, sources: tuple[Source, ...]) -> Gates | None:
        numbers = {source.key: number for number, source in enumerate(sources)}
        gates: Gates = {}
        for number, source in enumerate(sources):
            rows = []
            for move in source.stream.record.moves:
                after = [(numbers[key], end) for key, end in move.after if key in numbers]
                if after:
                    rows.append((move.end_of(source.partition.id), tuple(after)))
            if rows:
                gates[number] = tuple(rows)
        return gates or None


def _is_here(partition: PartitionHandle) -> bool:
    return not isinstance(partition.stopped, NotLeader)


def _partitions(stream: Stream, text: str) -> Sequence[PartitionHandle]:
    # In a stream made for one topic, a producer may have picked the partition. Elsewhere the hash
    # of an exact topic gives its partition, unless the number of partitions has grown since.
    if is_exact(text) and stream.record.fixed_topic is None and not stream.record.grown:
        return [stream.partition_of(text.encode())]
    return stream.partitions
