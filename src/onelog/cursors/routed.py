"""The routed queue cursor: which records were routed to a queue and are not settled yet.

Rules:
- The router routes every visible record and notes it in the queues that take it. The cursor
  remembers only places, i.e. partition and offset (I1, I3). So the number of messages is known, and
  a binding that changes later does not change it.
- Offsets are kept per partition in chunks of 65 536, each a bitmap. A checkpoint writes the chunks
  that changed since the last one, and beside them how far the routing had come: after a crash
  everything from there on is routed again, by the bindings of that time.
- The kernel notes messages that went straight to a consumer as runs (`FlightCursor`). Whoever asks
  for places folds what is left of these into the bitmaps first.
- The lowest place that is not settled pins retention, per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from pyroaring import BitMap

from onelog.cursors.cursor import CursorKind, CursorState, Position, ignore_change
from onelog.cursors.offsets import OffsetSet
from onelog.kernel import FlightCursor
from onelog.log.needs import CHUNK_BITS, LOW, NeededOffsets, split

Key = tuple[str, int]
"""A partition: stream id and number."""


class _Kept(msgspec.Struct, array_like=True):
    stream_id: str
    partition: int
    routed_to: int
    counts: list[tuple[int, int]]
    out: bytes = b""


class _Body(msgspec.Struct, array_like=True):
    sources: list[_Kept]
    settings: bytes


def is_routed(state: CursorState) -> bool:
    """Whether a kept queue holds places that were routed to it: its filters are only a name."""
    if state.kind is not CursorKind.QUEUE:
        return False
    try:
        msgspec.msgpack.decode(state.body, type=_Body)
    except msgspec.MsgspecError:
        return False
    return True


class _Places:
    """The places in one partition."""

    __slots__ = ("chunks", "counts", "dirty", "out", "routed_to")

    def __init__(self, routed_to: int) -> None:
        self.chunks: dict[int, BitMap] = {}
        self.out = OffsetSet()
        """Offsets that were handed out."""
        self.counts: dict[int, int] = {}
        """Offset → how often it was handed out, if more than once."""
        self.dirty: set[int] = set()
        self.routed_to = routed_to

    def add(self, first: int, count: int) -> None:
        """Offsets that follow each other are not settled."""
        for chunk, low, high in split(first, count):
            bits = self.chunks.get(chunk)
            if bits is None:
                bits = self.chunks[chunk] = BitMap()
            bits.add_range(low, high)
            self.dirty.add(chunk)

    def lowest(self) -> int | None:
        """The first offset that is not settled."""
        if not self.chunks:
            return None
        chunk = min(self.chunks)
        return (chunk << CHUNK_BITS) + int(self.chunks[chunk].min())

    def offsets(self) -> Iterator[int]:
        """Every offset that is not settled, ascending."""
        for chunk in sorted(self.chunks):
            base = chunk << CHUNK_BITS
            for low in self.chunks[chunk]:
                yield base + low


class RoutedCursor(FlightCursor):
    """The places of one queue."""

    __slots__ = (
        "_places",
        "_settings",
        "filters",
        "name",
        "position_of",
        "settle_up",
    )

    kind = CursorKind.QUEUE

    def __init__(self, name: str, filters: tuple[str, ...], settings: bytes = b"") -> None:
        self.name = name
        self.filters = filters
        self.on_change = ignore_change
        self.count = 0
        self.is_marked = False
        self.flight_key = None
        self.position_of: Callable[[Key], int | None] = lambda _key: None
        """How far the routing of a partition has come by now, if the owner of the cursor knows
        better."""
        self.settle_up: Callable[[], None] = ignore_change
        """Called before the state is kept: the owner notes places that it has not noted yet."""
        self._places: dict[Key, _Places] = {}
        self._settings = settings

    @classmethod
    def restore(cls, state: CursorState, parts: Mapping[str, bytes]) -> RoutedCursor:
        """The cursor of a kept state."""
        body = msgspec.msgpack.decode(state.body, type=_Body)
        cursor = cls(state.name, state.filters, body.settings)
        for row in body.sources:
            places = _Places(row.routed_to)
            if row.out:
                places.out = OffsetSet.deserialize(row.out)
            for offset, count in row.counts:
                places.out.add(offset)
                if count > 1:
                    places.counts[offset] = count
            cursor._places[row.stream_id, row.partition] = places
        for name, blob in parts.items():
            stream_id, number, chunk = name.rsplit("/", 2)
            found = cursor._places.get((stream_id, int(number)))
            if found is not None:
                bits = found.chunks[int(chunk)] = BitMap.deserialize(blob)
                cursor.count += len(bits)
        return cursor

    # -- places

    def _find(self, key: Key) -> _Places | None:
        """The places in a partition, all of them."""
        if self.in_flight:
            self._fold()
        return self._places.get(key)

    def _every(self) -> dict[Key, _Places]:
        """The places in all partitions."""
        if self.in_flight:
            self._fold()
        return self._places

    def _fold(self) -> None:
        """Note messages in flight as all others; they are counted already."""
        assert self.flight_key is not None
        places = self._places[self.flight_key]
        for first, count in self.take_flight():
            places.add(first, count)
            places.out.add_range(first, first + count)

    def note(self, key: Key, offset: int) -> None:
        """The queue takes the record at this place."""
        places = self._find(key)
        if places is None:
            places = self._places[key] = _Places(offset)
        chunk = offset >> CHUNK_BITS
        bits = places.chunks.get(chunk)
        if bits is None:
            bits = places.chunks[chunk] = BitMap()
        bits.add(offset & LOW)
        places.dirty.add(chunk)
        self.count += 1
        self._changed()

    def _changed(self) -> None:
        if not self.is_marked:
            self.is_marked = True
            self.on_change()

    def note_range(self, key: Key, first: int, count: int) -> None:
        """The queue takes records that follow each other."""
        places = self._find(key)
        if places is None:
            places = self._places[key] = _Places(first)
        self.count += count
        places.add(first, count)
        self._changed()

    def note_handed_out(self, key: Key, first: int, count: int) -> None:
        """The queue takes records that follow each other, and has handed them out already."""
        self.note_range(key, first, count)
        self._places[key].out.add_range(first, first + count)
        self.flight_key = key  # those that follow may go the short way

    def settle(self, key: Key, offset: int) -> bool:
        """Settle the record. Returns False when it was settled before."""
        return self.settle_range(key, offset, 1) == 1

    def settle_range(self, key: Key, first: int, count: int) -> int:
        """Settle records that follow each other. Returns how many of them were not settled
        before."""
        places = self._find(key)
        if places is None:
            return 0
        settled = 0
        for chunk, low, high in split(first, count):
            bits = places.chunks.get(chunk)
            here = 0 if bits is None else bits.range_cardinality(low, high)
            if bits is None or not here:
                continue
            settled += here
            bits.remove_range(low, high)
            if not bits:
                del places.chunks[chunk]
            places.dirty.add(chunk)
        if settled:
            places.out.remove_range(first, first + count)
            if places.counts:
                for offset in range(first, first + count):
                    places.counts.pop(offset, None)
            self.count -= settled
            self._changed()
        return settled

    def holds(self, key: Key, offset: int) -> bool:
        """Whether the record was taken and is not settled."""
        places = self._find(key)
        bits = None if places is None else places.chunks.get(offset >> CHUNK_BITS)
        return bits is not None and (offset & LOW) in bits

    def handed_out(self, key: Key, offset: int) -> int:
        """Count one more hand-out of a record. Returns how many there were before."""
        places = self._every()[key]
        before = self.times_handed_out(key, offset)
        if before:
            places.counts[offset] = before + 1
        else:
            places.out.add(offset)
        return before

    def are_fresh(self, key: Key, first: int, count: int) -> bool:
        """Whether none of the records that follow each other was ever handed out."""
        out = self._every()[key].out
        return not out or not out.range_cardinality(first, first + count)

    def hand_out_range(self, key: Key, first: int, count: int) -> None:
        """Fresh records that follow each other are handed out."""
        self._every()[key].out.add_range(first, first + count)

    def times_handed_out(self, key: Key, offset: int) -> int:
        """How often a record was handed out."""
        places = self._find(key)
        if places is None or offset not in places.out:
            return 0
        return places.counts.get(offset, 1)

    def places(self) -> Iterator[tuple[Key, int]]:
        """Every place that is not settled, partition by partition, ascending."""
        for key, places in self._every().items():
            for offset in places.offsets():
                yield key, offset

    def partitions(self) -> list[Key]:
        """The partitions with a place that is not settled."""
        return [key for key, places in self._every().items() if places.chunks]

    def offsets(self, key: Key) -> Iterator[int]:
        """The places in one partition, ascending."""
        places = self._find(key)
        return iter(()) if places is None else places.offsets()

    @property
    def settings(self) -> bytes:
        """The bytes that its owner keeps beside it."""
        return self._settings

    def keep(self, settings: bytes) -> None:
        """Keep these bytes of its owner beside it."""
        self._settings = settings

    def routed_to(self, key: Key) -> int | None:
        """How far the routing of a partition had come; None: it never began."""
        places = self._places.get(key)
        return None if places is None else places.routed_to

    def set_routed_to(self, key: Key, offset: int) -> None:
        """Note that the routing of a partition has come this far."""
        places = self._places.get(key)
        if places is None:
            places = self._places[key] = _Places(offset)
        places.routed_to = offset

    def forget(self, key: Key) -> int:
        """A partition is gone. Returns how many places went with it."""
        self._every()
        if key == self.flight_key:
            self.flight_key = None
        places = self._places.pop(key, None)
        if places is None:
            return 0
        gone = sum(map(len, places.chunks.values()))
        self.count -= gone
        return gone

    def forget_from(self, key: Key, end: int) -> None:
        """A power cut took the end of a log: its offsets from `end` on will be other records."""
        places = self._find(key)
        if places is None or not places.chunks:
            return
        last = max(places.chunks)
        above = (last << CHUNK_BITS) + int(places.chunks[last].max()) + 1
        if end < above:
            self.settle_range(key, end, above - end)

    # -- state

    def state(self) -> CursorState:
        """The state to keep, beside its parts."""
        self.settle_up()
        for key, places in self._every().items():
            places.routed_to = max(places.routed_to, self.position_of(key) or 0)
        rows = [
            _Kept(
                *key,
                places.routed_to,
                list(places.counts.items()),
                places.out.serialize() if places.out else b"",
            )
            for key, places in self._places.items()
        ]
        body = msgspec.msgpack.encode(_Body(rows, self._settings))
        return CursorState(self.name, self.kind, self.filters, self.positions(), body)

    def take_parts(self) -> dict[str, bytes | None]:
        """The chunks that changed since the last call; None for one that is empty now."""
        self.settle_up()
        self.is_marked = False
        found: dict[str, bytes | None] = {}
        for (stream_id, number), places in self._every().items():
            for chunk in places.dirty:
                bits = places.chunks.get(chunk)
                if bits is not None:
                    bits.run_optimize()  # places mostly follow each other
                blob = None if bits is None else bits.serialize()
                found[f"{stream_id}/{number}/{chunk}"] = blob
            places.dirty.clear()
        return found

    def put_back(self, parts: Iterable[str]) -> None:
        """The parts could not be written: they count as changed again."""
        for name in parts:
            stream_id, number, chunk = name.rsplit("/", 2)
            places = self._places.get((stream_id, int(number)))
            if places is not None:
                places.dirty.add(int(chunk))

    def positions(self) -> list[Position]:
        """The lowest offset that is still needed, per partition."""
        found = []
        for key, places in self._every().items():
            lowest = places.lowest()
            found.append(Position(*key, places.routed_to if lowest is None else lowest))
        return found

    def tell_needs(self, key: Key, needs: NeededOffsets) -> None:
        """Add every record of a partition that it still needs to `needs`."""
        self.settle_up()
        places = self._find(key)
        if places is not None:
            needs.add_from(max(places.routed_to, self.position_of(key) or 0))
            needs.add(places.chunks)

    def pending(self) -> int:
        """Records handed out at least once and not settled."""
        return sum(len(places.out) for places in self._every().values())

    def lag(self) -> int:
        """Records that are not settled."""
        return self.count

    def close(self) -> None:
        """Nothing to close."""
