"""The image: what the chain says of all partitions after one of its objects.

Rules: the image moves from object to object, live as in recovery, by the same code. It holds no
batches: those that are in no row yet are known by the WAL objects in which they lie. An object is
*doomed* when the last row that names it goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from onelog.base.errors import ColdDamaged
from onelog.objects.checkpoint import ChainPlace
from onelog.objects.rows import Row, check_rows
from onelog.objects.wal import Wal, WalEntry
from onelog.storage.cold import RowTable
from onelog.storage.object.notes import (
    CutNote,
    DropNote,
    EngineNote,
    ForgetNote,
    HighNote,
    RowsNote,
    StartNote,
    StateNote,
    decode_notes,
)

STATES_KEPT: Final = 2
"""Derived states of one name that are kept."""
PartitionName = tuple[str, int]


class WalRef(NamedTuple):
    """Batches in [base, end) of a partition that lie in a WAL object."""

    epoch: int
    seq: int
    base: int
    end: int
    created_ms: int

    @property
    def place(self) -> ChainPlace:
        """The object."""
        return ChainPlace(self.epoch, self.seq)


class StateRow(NamedTuple):
    """A derived state."""

    kind: str
    offset: int
    blob: bytes


class _SavedPartition(msgspec.Struct, frozen=True, array_like=True):
    stream_id: str
    partition: int
    start: int
    end: int
    high: int
    rows: tuple[Row, ...]
    states: tuple[StateRow, ...]
    wal: tuple[WalRef, ...]


class _SavedImage(msgspec.Struct, frozen=True, array_like=True):
    partitions: tuple[_SavedPartition, ...]
    doomed: dict[str, int]


_decoder: Final = msgspec.msgpack.Decoder(_SavedImage)
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


def kept_states(states: Iterable[StateRow], fresh: StateRow) -> list[StateRow]:
    """The states with a new one: the newest of each kind stay."""
    others = [row for row in states if (row.kind, row.offset) != (fresh.kind, fresh.offset)]
    same = sorted(row for row in (*others, fresh) if row.kind == fresh.kind)
    return [row for row in others if row.kind != fresh.kind] + same[-STATES_KEPT:]


class PartitionImage:
    """One partition."""

    __slots__ = ("end", "high", "rows", "start", "states", "wal")

    def __init__(self) -> None:
        self.start = self.end = self.high = 0
        self.rows = RowTable()
        self.states: list[StateRow] = []
        self.wal: list[WalRef] = []


class LogImage:
    """All partitions; a `ChainState`."""

    def __init__(self) -> None:
        self.partitions: dict[PartitionName, PartitionImage] = {}
        self.doomed: dict[str, int] = {}
        """Objects that no row names any more, and since when."""
        self.data: dict[ChainPlace, Wal] = {}
        """Recovery only: the objects whose batches are in no row."""
        self.uses: Counter[str] = Counter()
        """How many rows name an object."""
        self._places: Counter[ChainPlace] = Counter()

    # As a ChainState.

    def load(self, state: bytes) -> None:
        """Take over the state of a checkpoint. Raises ColdDamaged."""
        try:
            saved = _decoder.decode(state)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ColdDamaged(f"a checkpoint's state cannot be read: {error}") from None
        self.doomed = dict(saved.doomed)
        for row in saved.partitions:
            check_rows(row.rows, f"partition {row.stream_id}/{row.partition}")
            image = self.partitions[row.stream_id, row.partition] = PartitionImage()
            image.start, image.end, image.high = row.start, row.end, row.high
            image.rows = RowTable(row.rows)
            image.states = list(row.states)
            image.wal = list(row.wal)
            self.uses.update(held.object for held in row.rows)
            self._places.update(ref.place for ref in row.wal)

    def wanted(self) -> Sequence[ChainPlace]:
        """The WAL objects whose batches are in no row."""
        return sorted(self._places)

    def supply(self, wal: Wal) -> None:
        """Take the data of an object that is wanted."""
        self.data[ChainPlace(wal.header.epoch, wal.header.seq)] = wal

    def apply(self, wal: Wal) -> None:
        """Add the next object."""
        place = ChainPlace(wal.header.epoch, wal.header.seq)
        notes = decode_notes(wal.notes, f"WAL object {place.epoch}/{place.seq}")
        self.data[place] = wal
        self.advance(place, wal.header.written_ms, notes, wal.entries)
        if not self._places[place]:
            del self.data[place], self._places[place]

    def save(self) -> bytes:
        """The state for a checkpoint."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """What encodes the state of now; the call itself may come later, by another thread."""
        held = [
            (name, (image.start, image.end, image.high), image.rows, tuple(image.states),
             tuple(image.wal))
            for name, image in sorted(self.partitions.items())
        ]  # fmt: skip
        doomed = dict(self.doomed)

        def encode() -> bytes:
            partitions = tuple(
                _SavedPartition(*name, *ends, tuple(rows), states, wal)
                for name, ends, rows, states, wal in held
            )
            return msgspec.msgpack.encode(_SavedImage(partitions, doomed))

        return encode

    # Moving.

    def advance(
        self,
        place: ChainPlace,
        written_ms: int,
        notes: Iterable[EngineNote],
        entries: Iterable[WalEntry],
    ) -> None:
        """An object of the chain: its notes, then its data."""
        for note in notes:
            if isinstance(note, ForgetNote):
                for name in note.objects:
                    self.doomed.pop(name, None)
            elif isinstance(note, DropNote):
                self._drop(note.name, written_ms)
            else:
                self._note(self._partition(note.name), note, written_ms)
        for entry in entries:
            image = self._partition((entry.stream_id, entry.partition))
            image.end = entry.end
            if entry.end <= image.start:
                continue  # trimmed before it left
            image.wal.append(WalRef(*place, entry.base, entry.end, written_ms))
            self._places[place] += 1

    def _partition(self, name: PartitionName) -> PartitionImage:
        found = self.partitions.get(name)
        if found is None:
            found = self.partitions[name] = PartitionImage()
        return found

    def _note(
        self,
        image: PartitionImage,
        note: StateNote | StartNote | CutNote | HighNote | RowsNote,
        now_ms: int,
    ) -> None:
        match note:
            case StateNote():
                fresh = StateRow(note.kind, note.offset, note.blob)
                image.states = kept_states(image.states, fresh)
            case HighNote():
                image.high = note.offset
            case RowsNote():
                self._replace(image, note.base, note.end, note.rows, now_ms)
            case StartNote():
                image.start = max(image.start, note.offset)
                gone = image.rows.number_at(image.start)
                self._splice(image, 0, gone, (), now_ms)
                self._take_out(image, 0, image.start, whole=True)
            case CutNote():
                image.end = note.offset
                image.start = min(image.start, image.end)
                image.high = min(image.high, image.end)
                image.states = [row for row in image.states if row.offset <= image.end]
                self._replace(image, note.offset, 1 << 62, (), now_ms)

    def _replace(
        self, image: PartitionImage, base: int, end: int, rows: Sequence[Row], now_ms: int
    ) -> None:
        table = image.rows
        first = last = table.number_at(base)
        while last < len(table) and table.base(last) < end:
            last += 1
        needed = [row for row in rows if row.end > image.start]
        self._splice(image, first, last, needed, now_ms)
        for row in rows:
            if not self.uses[row.object]:  # the log's start passed it meanwhile
                self.doomed[row.object] = now_ms
        self._take_out(image, base, end)

    def _splice(
        self, image: PartitionImage, first: int, last: int, rows: Sequence[Row], now_ms: int
    ) -> None:
        gone = image.rows[first:last]
        if not gone and not rows:
            return
        image.rows = image.rows.spliced(first, last, rows)
        for row in rows:
            self.uses[row.object] += 1
            self.doomed.pop(row.object, None)
        for row in gone:
            self.uses[row.object] -= 1
            if not self.uses[row.object]:
                del self.uses[row.object]
                self.doomed[row.object] = now_ms

    def _take_out(self, image: PartitionImage, base: int, end: int, *, whole: bool = False) -> None:
        """Batches in [base, end) no longer lie in WAL objects; `whole`: of those that end there."""
        kept: list[WalRef] = []
        for ref in image.wal:
            if ref.end <= base or ref.base >= end or (whole and ref.end > end):
                kept.append(ref)
                continue
            parts = [ref._replace(end=min(ref.end, base)), ref._replace(base=max(ref.base, end))]
            parts = [part for part in parts if max(part.base, image.start) < part.end]
            kept += parts
            self._places[ref.place] += len(parts) - 1
            if not self._places[ref.place]:
                del self._places[ref.place]
                self.data.pop(ref.place, None)
        image.wal = kept

    def _drop(self, name: PartitionName, now_ms: int) -> None:
        image = self.partitions.get(name)
        if image is not None:
            self._splice(image, 0, len(image.rows), (), now_ms)
            self._take_out(image, 0, 1 << 62)
            del self.partitions[name]
