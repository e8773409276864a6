"""A piece: record batches of one partition in an object, and the index behind them.

Rules: sections lie in this order: log, postings, state, offsets, times, directory, aborted, footer.
From offsets on they are the *index part*, which one request fetches. Frames of a Parquet file have
the same form and the magic `OLF1`: the log's sections are then what `frames.py` says, and a file
section comes before the footer. Every length and every CRC is
checked before it is used: damaged bytes raise ColdDamaged, whatever they are, and no memory is
taken for a number that nobody checked. docs/formats/piece.md has it byte by byte;
`piece_building.py` makes pieces.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from onelog.base.errors import ColdDamaged, CorruptBatch, MessageTooLarge
from onelog.base.limits import INFLATED_BYTES_MAX
from onelog.kernel import REL_MAX, crc32c
from onelog.objects.postings import Buffer, TopicDirectory, TopicSpan
from onelog.objects.rows import FOOTER_BYTES, LOG_BYTES_MAX, Row
from onelog.record import compression

MAGIC: Final = b"OLP1"
FRAMES_MAGIC: Final = b"OLF1"
VERSION: Final = 1
INDEX_INTERVAL_BYTES: Final = 64 * 1024
"""A batch that begins so far behind the last one with an entry gets an entry."""
TOPICS_INDEXED: Final = 1
EVERY_HASH: Final = 2
"""The directory has every hash."""
STATE_PACKED: Final = 4
"""The state is compressed with zstd."""
POSITION_MASK: Final = 0xFFFF_FFFF
_FLAGS: Final = TOPICS_INDEXED | EVERY_HASH | STATE_PACKED
_FOOTER: Final = struct.Struct("<4sIHHIqqQQqq12II3I")
_COVERED: Final = 8
_TIME_BYTES: Final = 16
_I64_MAX: Final = (1 << 63) - 1
assert _FOOTER.size == FOOTER_BYTES


class AbortedSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An aborted transaction with records in a piece."""

    producer_id: int
    first: int
    last: int
    """The offset of its marker."""
    last_stable: int


_aborted: Final = msgspec.msgpack.Decoder(tuple[AbortedSpan, ...])
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


class PieceSection(NamedTuple):
    """Bytes of a piece, counted from the piece's beginning."""

    position: int
    size_bytes: int
    crc: int


class FrameSizes(NamedTuple):
    """Bytes of the sections that only frames have."""

    raw_bytes: int
    batches_bytes: int
    file_bytes: int


class Footer(NamedTuple):
    """The last 128 bytes of a piece, or of frames."""

    flags: int
    records: int
    base: int
    end: int
    log_bytes: int
    """Bytes of batches; of frames: of those that are rebuilt."""
    piece_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    log_crc: int
    """Of the batches that lie here."""
    frames: FrameSizes | None
    """None: it is a piece."""
    postings: PieceSection
    state: PieceSection
    offsets: PieceSection
    times: PieceSection
    directory: PieceSection
    aborted: PieceSection

    @property
    def index_bytes(self) -> int:
        """Bytes of the index part."""
        return self.piece_bytes - self.offsets.position

    @property
    def sections(self) -> tuple[PieceSection, ...]:
        """Postings to aborted, in their order."""
        return self.postings, self.state, self.offsets, self.times, self.directory, self.aborted


def encode_footer(footer: Footer) -> bytes:
    """The bytes of a footer."""
    lengths = [number for section in footer.sections for number in section[1:]]
    magic = MAGIC if footer.frames is None else FRAMES_MAGIC
    rest = _FOOTER.pack(
        magic,
        0,
        VERSION,
        footer.flags,
        footer.records,
        footer.base,
        footer.end,
        footer.log_bytes,
        footer.piece_bytes,
        footer.min_timestamp_ms,
        footer.max_timestamp_ms,
        *lengths,
        footer.log_crc,
        *(footer.frames or (0, 0, 0)),
    )[_COVERED:]
    return magic + struct.pack("<I", crc32c(rest)) + rest


def decode_footer(data: Buffer, name: str) -> Footer:
    """A footer whose checksum holds and whose numbers fit each other. Raises ColdDamaged."""
    if len(data) != FOOTER_BYTES:
        raise damaged(name, f"its footer has {len(data)} bytes")
    magic, crc, version, flags, records, base, end, log_bytes, piece_bytes, *rest = _FOOTER.unpack(
        data
    )
    if magic not in (MAGIC, FRAMES_MAGIC) or crc32c(memoryview(data)[_COVERED:]) != crc:
        raise damaged(name, "the checksum of its footer does not hold")
    if version != VERSION:
        raise ColdDamaged(
            f"the piece {name} has format {version}, this program reads {VERSION}: use the version"
            " of OneLog that wrote it"
        )
    lowest, highest, *lengths, log_crc, raw, batches, file = rest
    frames = FrameSizes(raw, batches, file) if magic == FRAMES_MAGIC else None
    sections, position = [], log_bytes if frames is None else raw + batches
    for size, section_crc in zip(lengths[::2], lengths[1::2], strict=True):
        sections.append(PieceSection(position, size, section_crc))
        position += size
    found = Footer(
        flags, records, base, end, log_bytes, piece_bytes, lowest, highest, log_crc, frames,
        *sections,
    )  # fmt: skip
    if (
        flags & ~_FLAGS
        or (frames is None and any((raw, batches, file)))
        or not 0 <= base < end <= base + REL_MAX + 1 <= _I64_MAX
        or log_bytes > LOG_BYTES_MAX
        or records > end - base
        or piece_bytes != position + file + FOOTER_BYTES
    ):
        raise damaged(name, "the numbers of its footer do not fit each other")
    return found


def damaged(name: str, why: str) -> ColdDamaged:
    """The error of a piece whose bytes are not what was written."""
    return ColdDamaged(
        f"the piece {name} is damaged: {why}; restore the object from a copy of the bucket, or let"
        " retention pass its offsets"
    )


class IndexPart:
    """The index of a piece: where batches, times and topics are, and what was aborted."""

    __slots__ = ("_directory", "_offsets", "_times", "aborted", "footer", "name")

    def __init__(self, data: Buffer, name: str, row: Row | None = None) -> None:
        """Take over an index part, and the row that names it. Raises ColdDamaged."""
        view = memoryview(data).cast("B")
        if row is not None and (len(view) != row.index_bytes or crc32c(view) != row.index_crc):
            raise damaged(name, "its index part is not the one that the manifest names")
        self.name = name
        self.footer = footer = decode_footer(view[-FOOTER_BYTES:], name)
        if len(view) != footer.index_bytes:
            raise damaged(name, f"its index part has {len(view)} bytes, not {footer.index_bytes}")
        if row is not None and (
            (row.base, row.end, row.log_bytes, row.piece_bytes)
            != (footer.base, footer.end, footer.log_bytes, footer.piece_bytes)
        ):
            raise damaged(name, "its footer and the manifest differ")
        parts = [self._part(view, section) for section in footer.sections[2:]]
        self._offsets = self._offset_entries(parts[0])
        self._times = self._time_entries(parts[1])
        try:
            self._directory = TopicDirectory(
                parts[2], footer.postings.size_bytes, is_full=bool(footer.flags & EVERY_HASH)
            )
        except ColdDamaged as error:
            raise damaged(name, str(error)) from None
        self.aborted = self._aborted_spans(parts[3])

    def _part(self, view: memoryview, section: PieceSection) -> memoryview:
        at = section.position - self.footer.offsets.position
        part = view[at : at + section.size_bytes]
        if crc32c(part) != section.crc:
            raise damaged(self.name, f"the section at {section.position} has another checksum")
        return part

    def _offset_entries(self, part: memoryview) -> memoryview:
        footer = self.footer
        if len(part) % 8 or bool(len(part)) != bool(footer.log_bytes):
            raise damaged(self.name, f"offsets of {len(part)} bytes are impossible")
        entries = part.cast("Q")
        position = rel = -1
        for entry in entries:
            if entry & POSITION_MASK <= position or entry >> 32 <= rel:
                raise damaged(self.name, "its offsets do not ascend")
            position, rel = entry & POSITION_MASK, entry >> 32
        if rel >= footer.end - footer.base or (len(entries) and position >= footer.log_bytes):
            raise damaged(self.name, "its offsets lie behind its end")
        if len(entries) and entries[0] & POSITION_MASK:
            raise damaged(self.name, "its first batch has no entry")
        return entries

    def _time_entries(self, part: memoryview) -> memoryview:
        if len(part) % _TIME_BYTES or bool(len(part)) != bool(len(self._offsets)):
            raise damaged(self.name, f"times of {len(part)} bytes are impossible")
        entries = part.cast("q")
        last, rel = -(1 << 63) - 1, -1
        for at in range(0, len(entries), 2):
            if entries[at] <= last or entries[at + 1] <= rel:
                raise damaged(self.name, "its times do not ascend")
            last, rel = entries[at], entries[at + 1]
        if rel >= self.footer.end - self.footer.base:
            raise damaged(self.name, "its times lie behind its end")
        return entries

    def _aborted_spans(self, part: memoryview) -> tuple[AbortedSpan, ...]:
        try:
            return _aborted.decode(part)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise damaged(self.name, f"its aborted transactions: {error}") from None

    @property
    def has_topics(self) -> bool:
        """Whether records can be found by topic."""
        return bool(self.footer.flags & TOPICS_INDEXED)

    # Positions are those of batches in the log, which begins the piece.

    def entries(self) -> Sequence[int]:
        """Batch positions with an entry, ascending."""
        return [entry & POSITION_MASK for entry in self._offsets]

    def position_of(self, offset: int) -> int:
        """Position of the last batch with an entry that begins at or before `offset`."""
        rel = offset - self.footer.base
        at = bisect_right(self._offsets, rel, key=lambda entry: entry >> 32)
        return self._offsets[at - 1] & POSITION_MASK if at else 0

    def run_end(self, position: int, size_bytes: int) -> int:
        """Where a run of at least `size_bytes` from `position` ends: at an entry, or at the log's
        end."""
        wanted = position + max(size_bytes, 1)
        at = bisect_left(self._offsets, wanted, key=lambda entry: entry & POSITION_MASK)
        if at == len(self._offsets):
            return self.footer.log_bytes
        return self._offsets[at] & POSITION_MASK

    def base_at(self, position: int) -> int:
        """The base offset of the batch at an entry's position, as the index has it."""
        at = bisect_left(self._offsets, position, key=lambda entry: entry & POSITION_MASK)
        assert self._offsets[at] & POSITION_MASK == position, "no batch with an entry begins here"
        return self.footer.base + (self._offsets[at] >> 32)

    def position_for_time(self, timestamp_ms: int) -> int:
        """Position of a batch with an entry such that no batch before it reaches
        `timestamp_ms`."""
        times = self._times
        found = bisect_left(range(len(times) // 2), timestamp_ms, key=lambda i: times[2 * i])
        # The batch lies at or before entry `found`, and behind the entry before it.
        entry = len(self._offsets)
        if 2 * found < len(times):
            entry = bisect_left(self._offsets, times[2 * found + 1] << 32)
        return self._offsets[entry - 1] & POSITION_MASK if entry else 0

    def topic_span(self, topic_hash: int) -> TopicSpan | None:
        """Where a hash's posting lies in the postings; None: no record here has this hash."""
        return self._directory.find(topic_hash)

    def aborted_between(self, start: int, end: int) -> list[AbortedSpan]:
        """Aborted transactions with offsets in [start, end)."""
        return [span for span in self.aborted if span.first < end and span.last >= start]


def decode_state(data: Buffer, footer: Footer, name: str) -> bytes:
    """The derived state of the partition as of the piece's end. Raises ColdDamaged."""
    if len(data) != footer.state.size_bytes or crc32c(data) != footer.state.crc:
        raise damaged(name, "the checksum of its state does not hold")
    if not footer.flags & STATE_PACKED:
        return bytes(data)
    try:
        return compression.inflate(compression.ZSTD, data, INFLATED_BYTES_MAX)
    except (CorruptBatch, MessageTooLarge) as error:
        raise damaged(name, f"its state: {error}") from None
