"""A look through a view: the batches of one partition that show its filter, from an offset on.

Rules:
- Only decided records are looked at: below the last stable offset, without aborted ones (V7).
- A look is cut into steps, each with one read and one kernel call; between steps it can stop and go
  on, also in another thread. It stops when it has enough, when everything is looked at, or when it
  has looked at as much as it may. Compressed batches are opened only where that does not hold the
  loop.
- One exact topic goes from match to match by the topic index (V9).
- Stored bytes are checked (CRC) before they are used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onelog.base.errors import CorruptBatch
from onelog.base.ids import Offset
from onelog.broker import Cold
from onelog.kernel import (
    TopicFilter,
    fit_batches,
    scan_batches,
    topic_hash,
    view_batches,
)
from onelog.protocols.kafka.views.cache import Finding, FindingCache
from onelog.protocols.kafka.views.places import ShownPartition
from onelog.record.batch import inflated_records

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

RUN_BYTES: Final = 256 * 1024
"""Bytes that one step reads; at gigabytes per second it holds nobody."""
RUN_COST_BYTES: Final = 16 * 1024
"""The cost of a step at least, however little it reads."""
HITS: Final = 256
"""Index entries that are asked for at once."""
INDEX_SPAN: Final = 64
"""An index answer denser than one record in this many offsets is read step by step."""
NEAR_OFFSETS: Final = 20_000
"""Records further from the end may be cold, and are not read on the loop."""

_NO_END: Final = 2**63 - 1


class Glass:
    """What all looks of one view into one partition share."""

    __slots__ = ("cache", "place", "topic", "wanted")

    def __init__(self, place: ShownPartition, wanted: TopicFilter, cache: FindingCache) -> None:
        self.place = place
        self.wanted = wanted
        self.cache = cache
        self.topic = topic_hash(wanted.filter) if wanted.exact else None
        """The topic's hash, when it is one exact topic."""

    def fixed_until(self) -> int:
        """The offset below which records do not carry their topic; 0 when all do."""
        record, number = self.place.stream.record, self.place.log.id
        if record.fixed_topic is None:
            return 0
        if record.fixed_until is None:
            return _NO_END
        return record.fixed_until[number] if number < len(record.fixed_until) else 0

    def hits(self, start: int, upto: int, limit: int, *, wait: bool = True) -> list[Offset] | None:
        """The offsets of this topic in the topic index; None: there is no index. Raises Cold,
        unless it may wait."""
        if self.topic is None or start < self.fixed_until():
            return None
        log = self.place.log
        first, end = Offset(start), Offset(upto)
        return log.stored_topic_offsets(self.topic, first, end, limit, wait=wait)


class Look:
    """One look: make it on the loop, then call `go_on` there or in a thread, one at a time."""

    __slots__ = (
        "_aborted",
        "_aborted_from",
        "_fixed",
        "_glass",
        "_hits",
        "_max_bytes",
        "_upto",
        "is_full",
        "pieces",
        "reached",
        "size_bytes",
    )

    def __init__(self, glass: Glass, offset: int, max_bytes: int) -> None:
        log = glass.place.log
        self._glass = glass
        self._max_bytes = max_bytes
        self._upto = int(log.last_stable_offset)
        # Values that threads must not touch are read here, on the loop.
        self._aborted = [
            (txn.producer_id, txn.first_offset, txn.last_offset)
            for txn in log.aborted_between(max(offset, log.aborted_from), self._upto)
        ]
        self._aborted_from = log.aborted_from
        self._fixed = glass.fixed_until()
        self._hits: list[Offset] | None = None
        self.pieces: list[Buffer] = []
        self.size_bytes = 0
        self.reached = offset
        """Everything below it was looked at, and is in `pieces` if it matched."""
        self.is_full = False

    @property
    def is_over(self) -> bool:
        """Whether there is no reason to go on."""
        return self.is_full or self.reached >= self._upto

    def go_on(self, scan_bytes: int, *, on_loop: bool = False) -> None:
        """Look on until it is over or so many bytes were looked at."""
        while not self.is_over and scan_bytes > 0:
            dense = self._pass_other_topic() or self._to_next_hit()
            if self.is_over or (on_loop and self._upto - self.reached > NEAR_OFFSETS):
                break
            run, cost = self._run(RUN_BYTES if dense else 1, on_loop=on_loop)
            if run is None:
                break
            self._take(*run)
            scan_bytes -= max(cost, RUN_COST_BYTES)

    def narrow(self, max_bytes: int) -> None:
        """Ask for fewer bytes from now on."""
        self._max_bytes = min(self._max_bytes, max_bytes)
        self.is_full = self.is_full or self.size_bytes >= self._max_bytes

    def _pass_other_topic(self) -> bool:
        """Skip records that all have one topic, if it is not asked for. Returns whether it is."""
        topic = self._glass.place.stream.record.fixed_topic
        if topic is None or self.reached >= self._fixed:
            return False
        if self._glass.wanted.matches(topic.encode()):
            return True
        self.reached = min(self._fixed, self._upto)
        return False

    # -- the topic index

    def _to_next_hit(self) -> bool:
        """Step to the next record that may match, if an index knows. Returns whether many
        follow."""
        if self.is_over:
            return False
        hits = self._hits
        if hits:
            hits = hits[bisect_left(hits, self.reached) :]
        if not hits:
            hits = self._glass.hits(self.reached, self._upto, HITS)
            if hits is None:
                return True
            if not hits:
                self.reached = self._upto
                return False
        self._hits = hits
        self.reached = int(hits[0])
        return hits[-1] - hits[0] < len(hits) * INDEX_SPAN and len(hits) > 1

    # -- steps

    def _run(
        self, read_bytes: int, *, on_loop: bool
    ) -> tuple[tuple[Sequence[tuple[int, Buffer]], int] | None, int]:
        """The result of the next step, where it ends, and the bytes it read.

        None if a compressed batch has to be opened, or if bytes are cold: neither is done on the
        loop.
        """
        glass = self._glass
        stream, log = glass.place
        key = (stream.record.id, int(log.id), glass.wanted.filter, self.reached)
        kept = glass.cache.get(key)
        if kept is not None:
            return (kept.pieces, kept.reached), 0
        below, default = self._upto, None
        if self.reached < self._fixed:
            assert stream.record.fixed_topic is not None
            below, default = min(below, self._fixed), stream.record.fixed_topic.encode()
        try:
            data = log.read_stored(
                Offset(self.reached), read_bytes, Offset(below), wait=not on_loop
            )
        except Cold:
            return None, 0
        if not data:
            return ((), below), 0
        try:
            aborted = self._aborted
            if self.reached < self._aborted_from:
                aborted = self._asked(data, on_loop=on_loop)
            run = self._see(data, default, aborted, on_loop=on_loop)
        except Cold:
            return None, 0
        except CorruptBatch as error:
            raise Damaged(self.reached, error) from error
        if run is not None and all(isinstance(batch, bytes) for _base, batch in run[0]):
            pieces = tuple((base, bytes(batch)) for base, batch in run[0])
            glass.cache.put(key, Finding(pieces, run[1]))
        return run, len(data)

    def _asked(self, data: memoryview, *, on_loop: bool) -> list[tuple[int, int, int]]:
        """The aborted transactions of batches that only the object store knows."""
        log, reached = self._glass.place.log, Offset(self.reached)
        upto = Offset(scan_batches(data, 0, False)[-1].last_offset + 1)
        found = log.stored_aborts(reached, upto, wait=not on_loop)
        return [(row.producer_id, row.first_offset, row.last_offset) for row in found] + (
            self._aborted
        )

    def _see(
        self,
        data: memoryview,
        default: bytes | None,
        aborted: list[tuple[int, int, int]],
        *,
        on_loop: bool,
    ) -> tuple[list[tuple[int, Buffer]], int] | None:
        wanted, start = self._glass.wanted, self.reached
        found: list[tuple[int, Buffer]] = []
        position, reached, records = 0, start, None
        while True:
            rows, reached, position = view_batches(
                data, position, wanted, start, aborted, default, records
            )
            for base, first, last, made in rows:
                found.append((base, data[first:last] if made is None else made))
            if position == len(data):
                return found, reached
            if records is None:  # it stopped before a compressed batch
                if on_loop:
                    return (found, reached) if position else None
                records = inflated_records(data, scan_batches(data, position, True, 1)[0])
            else:
                records = None

    def _take(self, pieces: Sequence[tuple[int, Buffer]], reached: int) -> None:
        """Add the result of a step, as far as there is room for it."""
        for base, piece in pieces:
            room = self._max_bytes - self.size_bytes
            size = len(piece)
            if size <= room:
                self.pieces.append(piece)
                self.size_bytes += size
                continue
            self.is_full = True
            size = fit_batches(piece, 0, size, room, _NO_END)
            if size > room and self.pieces:
                self.reached = max(self.reached, base)
                return
            # One batch goes out however large it is.
            view = memoryview(piece)
            self.pieces.append(view[:size])
            self.size_bytes += size
            if size < len(piece):
                self.reached = scan_batches(view[size:], 0, False, 1)[0].base_offset
                return
        self.reached = max(self.reached, reached)
        self.is_full = self.is_full or self.size_bytes >= self._max_bytes


class Damaged(Exception):
    """Stored bytes are damaged. The partition is stopped on the loop."""

    def __init__(self, offset: int, error: CorruptBatch) -> None:
        super().__init__(str(error))
        self.offset = offset
        self.error = error
