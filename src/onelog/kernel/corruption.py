"""The faults that a batch can have, as a table: both implementations report the same numbers.

Rules: a number never changes its meaning; `_native/format.pxd` repeats the numbers for C.
"""

from __future__ import annotations

from onelog.base.errors import CorruptBatch, InvalidRecords, UnsupportedMagic

SHORT_HEADER = 1
BAD_MAGIC = 2
BAD_LENGTH = 3
SHORT_BATCH = 4
BAD_BASE_OFFSET = 5
BAD_LAST_DELTA = 6
BAD_COUNT = 7
BAD_CRC = 8
BAD_ORDER = 9
BAD_VARINT = 10
BAD_RECORD_LENGTH = 11
BAD_OFFSET_DELTA = 12
BAD_TIMESTAMP = 13
BAD_KEY = 14
BAD_VALUE = 15
BAD_HEADERS = 16
RECORD_TAIL = 17
BATCH_TAIL = 18
BAD_INFLATED = 19
BAD_CHUNK = 20
NOT_DENSE = 21
SECOND_BATCH = 22
NO_KEY = 23
BAD_ROWS = 24

REASONS = {
    SHORT_HEADER: "the header is cut short",
    BAD_MAGIC: "the magic byte is not 2",
    BAD_LENGTH: "the length field is below a header or above the limit of a batch",
    SHORT_BATCH: "the batch runs past the end of the data",
    BAD_BASE_OFFSET: "the base offset is negative or too large",
    BAD_LAST_DELTA: "the last offset delta is negative",
    BAD_COUNT: "the record count is negative, too large or above the offsets the batch spans",
    BAD_CRC: "the CRC-32C does not match the bytes",
    BAD_ORDER: "the base offset does not come after the batch before it",
    BAD_VARINT: "a varint is cut short or too long",
    BAD_RECORD_LENGTH: "the record's length is impossible or runs past the batch",
    BAD_OFFSET_DELTA: "the offset delta does not ascend or passes the batch's last offset",
    BAD_TIMESTAMP: "the timestamp overflows",
    BAD_KEY: "the key's length is impossible or runs past the record",
    BAD_VALUE: "the value's length is impossible or runs past the record",
    BAD_HEADERS: "the headers' count or lengths are impossible or run past the record",
    RECORD_TAIL: "bytes are left at the end of the record",
    BATCH_TAIL: "bytes are left after the last record",
    BAD_INFLATED: "the inflated records are larger than the limit",
    BAD_CHUNK: "a topic index chunk is damaged",
    NOT_DENSE: "the last offset delta is not the record count less one",
    SECOND_BATCH: "bytes are left after the batch, and only one may be sent",
    NO_KEY: "the record has no key, and the log is compacted by key",
    BAD_ROWS: "the rows do not fit the frame of the batch",
}

KINDS: dict[int, type[CorruptBatch]] = {
    BAD_MAGIC: UnsupportedMagic,
    **dict.fromkeys(
        (
            BAD_BASE_OFFSET,
            BAD_LAST_DELTA,
            BAD_COUNT,
            *range(BAD_VARINT, BATCH_TAIL + 1),
            BAD_INFLATED,
            NOT_DENSE,
            SECOND_BATCH,
            NO_KEY,
        ),
        InvalidRecords,
    ),
}
"""Faults that only another content can avoid; every other fault is damage: CorruptBatch."""


def explain(code: int, position: int, record: int = -1) -> str:
    """The text for a fault and its position."""
    if record >= 0:
        return f"record {record} of the batch at byte {position}: {REASONS[code]}"
    return f"at byte {position}: {REASONS[code]}"


def corrupt(code: int, position: int, record: int = -1) -> CorruptBatch:
    """Build the error for `code`."""
    return KINDS.get(code, CorruptBatch)(explain(code, position, record))
