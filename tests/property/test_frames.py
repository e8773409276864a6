"""Whatever batches a partition has, Parquet rows and frames give them back (I6)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.base.errors import ColdDamaged, CorruptBatch
from onelog.kernel import (
    ATTR_CODEC_MASK,
    FRAME,
    HEADER_BYTES,
    PLACE_BOTH,
    PLACE_RAW,
    PLACE_ROWS,
    pure,
    scan_batches,
)
from onelog.lake.arrow import MILLIS_MAX
from onelog.lake.framing import ALL
from onelog.record.batch import decode, inflated_records
from tests.support.frames import framed, messages, opened, rebuilt, runs

native = pytest.importorskip("onelog.kernel._native", exc_type=ImportError)
RAW = {"control", "aborted", "empty"}
IDENTICAL = {"plain", "compacted", "horizon", "transaction", *RAW, "odd names", "attributes"}


def records(data: bytes):
    return [decode(data, info).records() for info in scan_batches(data)]


def is_late(batch: bytes) -> bool:
    """Whether a table cannot hold the times of the batch."""
    return any(abs(record[1]) > MILLIS_MAX for record in records(batch)[0])


@settings(max_examples=150, deadline=None)
@given(runs())
def test_rows_and_frames_give_every_batch_back(made):
    base, end, found, aborted = made
    data = [batch for _, batch in found]
    with tempfile.TemporaryDirectory() as folder:
        path, built = framed(Path(folder), base, end, data, aborted)
        again = rebuilt(path, built)
    infos = scan_batches(again)
    assert len(infos) == len(found)
    for (kind, batch), info in zip(found, infos, strict=True):
        part = again[info.position : info.position + info.size_bytes]
        if kind in IDENTICAL:
            assert part == batch
        elif kind == "packed" and not is_late(batch):
            assert part[HEADER_BYTES:] == inflated_records(batch, scan_batches(batch)[0])
        assert records(part) == records(batch)
        before = scan_batches(batch)[0]
        assert (
            info._replace(position=0, size_bytes=0)
            == before._replace(
                position=0, size_bytes=0, attributes=before.attributes & ~ATTR_CODEC_MASK
            )
            or part == batch
        )


@settings(max_examples=100, deadline=None)
@given(runs())
def test_the_table_shows_each_committed_record_once(made):
    base, end, found, aborted = made
    with tempfile.TemporaryDirectory() as folder:
        path, built = framed(Path(folder), base, end, [batch for _, batch in found], aborted)
        rows = pq.read_table(path)
    expected = [
        (record[0], record[2], record[3])
        for kind, batch in found
        if kind not in RAW
        for record in records(batch)[0]
    ]
    told = zip(*(rows.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True)
    assert list(told) == expected
    assert built.footer.log_bytes == sum(group.log_bytes for group in opened(built)[1].groups)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_frames_say_where_each_batch_is(made):
    base, end, found, aborted = made
    with tempfile.TemporaryDirectory() as folder:
        _path, built = framed(Path(folder), base, end, [batch for _, batch in found], aborted)
    part, file, table, _raw = opened(built)
    assert (part.footer.base, part.footer.end) == (base, end)
    assert [table.base(at) for at in range(len(table))] == [
        scan_batches(batch)[0].base_offset for _, batch in found
    ]
    for at, (kind, batch) in enumerate(found):
        place = table[at].place
        assert table.number_at(table.base(at)) == at
        if kind in RAW:
            assert place == PLACE_RAW
        elif kind == "attributes":
            assert place == PLACE_BOTH
        elif kind != "odd names" and table[at].count:
            assert place == (PLACE_BOTH if is_late(batch) else PLACE_ROWS)
    assert file.rows == sum(table[at].rows for at in range(len(table)))


@settings(max_examples=100, deadline=None)
@given(messages(), st.data())
def test_frames_of_damaged_bytes_are_refused(rows, draws):
    builder = pure.BatchBuilder(True)
    builder.extend(rows)
    batch = builder.seal(5)
    with tempfile.TemporaryDirectory() as folder:
        path, built = framed(Path(folder), 5, 100, [batch])
        data = bytearray(b"".join(built.parts))
        at = draws.draw(st.integers(0, len(data) - 1))
        data[at] ^= 1 << draws.draw(st.integers(0, 7))
        damaged = built._replace(parts=[bytes(data)])
        postings = built.footer.postings.position
        if postings <= at < built.footer.offsets.position:
            return  # postings and state have checks of their own, when they are read
        with pytest.raises((ColdDamaged, CorruptBatch)):
            rebuilt(path, damaged)


@settings(max_examples=200, deadline=None)
@given(messages(st.binary(max_size=8)), st.integers(0, 1 << 50), st.booleans())
def test_both_kernels_rebuild_the_same_bytes(rows, base, wrong):
    builder = native.BatchBuilder(True)
    builder.extend(rows)
    batch = builder.seal(base, 7, 0, 99, 2, 5)
    info = scan_batches(batch)[0]
    crc = int.from_bytes(batch[17:21], "big") ^ wrong
    frame = FRAME.pack(
        base, info.base_timestamp_ms, info.max_timestamp_ms, 99, len(rows) - 1, len(rows), 7, 5,
        crc, 3, 0, 2, PLACE_ROWS,
    )  # fmt: skip
    for module in (native, pure):
        columns = module.decode_columns([(batch, 0, None)], 0, 1 << 60, ALL)
        if wrong:
            with pytest.raises(CorruptBatch, match="CRC"):
                module.rebuild_batches(frame, columns, 3, b"", True)
        else:
            assert module.rebuild_batches(frame, columns, 3, b"", True) == batch
        with pytest.raises(CorruptBatch, match="rows do not fit"):
            module.rebuild_batches(frame, columns, 4, b"", True)
        with pytest.raises(CorruptBatch, match="rows do not fit"):
            module.rebuild_batches(frame, columns, 3, b"x", False)


def test_times_and_names_that_a_table_cannot_hold_are_shown_as_well_as_they_can_be(tmp_path):
    builder = pure.BatchBuilder(False)
    builder.add(None, b"k", b"v", [(b"\xff\xfe", b"x"), (b"ok", None)], (1 << 61))
    batch = builder.seal(0)
    path, built = framed(tmp_path, 0, 1, [batch])
    rows = pq.read_table(path).to_pylist()
    assert rows[0]["timestamp"] is None
    assert rows[0]["headers"] == [
        {"key": "\ufffd\ufffd", "value": b"x"},
        {"key": "ok", "value": None},
    ]
    assert rebuilt(path, built) == batch
    assert pa.types.is_timestamp(pq.read_schema(path).field("timestamp").type)
