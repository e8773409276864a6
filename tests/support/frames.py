"""Batches of every kind, Parquet files and frames of them, and what they are rebuilt to."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from hypothesis import strategies as st

from onelog.kernel import (
    ATTR_LOG_APPEND_TIME,
    ATTR_TRANSACTIONAL,
    BatchBuilder,
    crc32c,
    keep_records,
    scan_batches,
)
from onelog.lake.framing import Framing, rebuild_group
from onelog.lake.log_rows import RowMaker
from onelog.lake.log_table import LOG_COLUMNS
from onelog.objects.frames import FramedFile, FrameTable, decode_file
from onelog.objects.piece import AbortedSpan, IndexPart
from onelog.objects.piece_building import BuiltPiece
from onelog.objects.rows import Row
from onelog.record.batch import Marker, build_batch, build_marker

small = st.binary(max_size=30)
names = st.one_of(st.just(b"~t"), st.just(b""), st.text(max_size=6).map(str.encode))
odd_names = st.one_of(names, small)
times = st.one_of(st.integers(1_600_000_000_000, 1_700_000_000_000), st.integers(-1, (1 << 62) - 1))
CODECS = (1, 2, 3, 4)
PRODUCER = 77


def messages(header_names=names):
    """Rows for the builder."""
    return st.lists(
        st.tuples(
            st.none() | st.sampled_from([b"a", b"a/b", b"plant/7"]),
            st.none() | small,
            st.none() | small | st.binary(max_size=400),
            st.lists(st.tuples(header_names, st.none() | small), max_size=3),
            times,
        ),
        min_size=1,
        max_size=8,
    )


def patched(batch: bytes, position: int, data: bytes) -> bytes:
    """A batch with other bytes somewhere, and a CRC that holds."""
    out = bytearray(batch)
    out[position : position + len(data)] = data
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return bytes(out)


@st.composite
def batches(draw, base: int):
    """(kind, bytes) of a batch that begins at `base`."""
    kind = draw(
        st.sampled_from(
            ["plain", "compacted", "horizon", "packed", "stamped", "stamped packed", "control",
             "transaction", "aborted", "empty", "odd names", "attributes"]
        )
    )  # fmt: skip
    rows = draw(messages(odd_names if kind == "odd names" else names))
    fields = {"base_offset": base}
    if kind == "control":
        marker = build_marker(Marker.COMMIT, PRODUCER, 0, 1000)
        return kind, struct.pack(">q", base) + marker[8:]
    if kind in ("packed", "stamped packed"):
        return kind, build_batch(
            rows, base_offset=base, codec=draw(st.sampled_from(CODECS)), tag_topics=True,
            attributes=ATTR_LOG_APPEND_TIME if kind == "stamped packed" else 0,
        )  # fmt: skip
    builder = BatchBuilder(True)
    builder.extend(rows)
    attributes = draw(st.sampled_from([0, 0, 1 << 9]))
    producer = draw(st.sampled_from([-1, 5, (1 << 63) - 1]))
    if kind == "stamped":
        attributes = ATTR_LOG_APPEND_TIME
    if kind in ("transaction", "aborted"):
        attributes, producer = ATTR_TRANSACTIONAL, PRODUCER + (kind == "aborted")
    made = builder.seal(
        **fields, leader_epoch=draw(st.integers(-1, 9)), attributes=attributes,
        producer_id=producer, producer_epoch=draw(st.integers(-1, 3)),
        base_sequence=draw(st.integers(-1, 1 << 30)),
    )  # fmt: skip
    if kind in ("compacted", "horizon", "empty"):
        keep = [kind != "empty" and draw(st.booleans()) for _ in rows]
        made = keep_records(made, 0, keep, None, 1000 if kind == "horizon" else -1)
    if kind == "attributes":
        size = 1  # of the length, which has one or two bytes
        while made[60 + size] & 0x80:
            size += 1
        made = patched(made, 61 + size, b"\x01")
    return kind, made


@st.composite
def runs(draw):
    """(base, end, [(kind, batch)], aborted): neighbouring batches of a partition."""
    base = draw(st.integers(0, 1 << 40))
    at, found, aborted = base, [], []
    for _ in range(draw(st.integers(0, 10))):
        at += draw(st.sampled_from([0, 0, 0, 1, 50]))
        kind, made = draw(batches(at))
        last = scan_batches(made)[0].last_offset
        if kind == "aborted":
            aborted.append(AbortedSpan(PRODUCER + 1, at, last, at))
        found.append((kind, made))
        at = last + 1
    return base, at + draw(st.integers(1, 4)), found, aborted


def framed(
    folder: Path,
    base: int,
    end: int,
    data: Sequence[bytes],
    aborted: Iterable[AbortedSpan] = (),
    *,
    topic: str | None = "orders",
) -> tuple[Path, BuiltPiece]:
    """The file and the frames of some batches."""
    path = folder / "rows.parquet"
    maker = RowMaker(LOG_COLUMNS, 3, topic=topic)
    framing = Framing(base, path, maker, index_topics=True, aborted=tuple(aborted))
    for batch in data:
        framing.add(memoryview(batch), scan_batches(batch))
    made = framing.finish(end, "data/rows.parquet", state=b"state")
    return path, made.frames


def opened(built: BuiltPiece) -> tuple[IndexPart, FramedFile, FrameTable, memoryview]:
    """What a reader finds in frames."""
    data = b"".join(built.parts)
    row = row_of(built)
    index = data[-row.index_bytes :]
    part = IndexPart(index, row.object, row)
    sizes = part.footer.frames
    assert sizes is not None
    table = FrameTable.decode(
        data[sizes.raw_bytes : sizes.raw_bytes + sizes.batches_bytes], row.object
    )
    file = decode_file(index, part.footer, row.object)
    return part, file, table, memoryview(data)[: sizes.raw_bytes]


def row_of(built: BuiltPiece) -> Row:
    """The row of frames."""
    return built.row("f/frames", created_ms=1, leader_epoch=0, file="data/rows.parquet")


def rebuilt(path: Path, built: BuiltPiece) -> bytes:
    """All batches, from the file and the frames."""
    _part, file, table, raw = opened(built)
    with pq.ParquetFile(path) as parquet:
        return b"".join(
            rebuild_group(
                parquet, table, file, number,
                raw[group.raw_position : group.raw_position + group.raw_bytes],
            )
            for number, group in enumerate(file.groups)
        )  # fmt: skip
