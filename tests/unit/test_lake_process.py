"""The lake process: segments become rows of a real table, and rows become the same batches."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException

from onelog.base.errors import ColdDamaged, Conflict, NotFound, Unavailable
from onelog.kernel import scan_batches
from onelog.lake import process_link
from onelog.lake.jobs import AddedFile, JoinJob, PingJob, UpkeepJob
from onelog.lake.log_tables import LogTable
from onelog.lake.process_link import LakeLost
from onelog.lake.storage import Storage
from onelog.objects.piece import AbortedSpan
from onelog.record.batch import build_batch
from tests.batches import make_batch
from tests.support.lake_jobs import PATIENCE_S, STREAM, LakeClient, lake_process, place_of


@pytest.fixture(params=["iceberg", "delta"])
def client(request, tmp_path):
    process = lake_process(tmp_path)
    yield LakeClient(process, place_of(tmp_path, request.param), tmp_path)
    process.close()


def batches(first: int, count: int, *, size: int = 100, each: int = 10) -> bytes:
    return b"".join(make_batch(first + at * each, each, size=size) for at in range(count))


def table_rows(client: LakeClient) -> pa.Table:
    """The table as its own library reads it."""
    place = client.place
    if place.format == "delta":
        return pa.table(deltalake.DeltaTable(place.table).to_pyarrow_table())
    catalog = load_catalog("onelog", type="sql", uri=place.catalog, warehouse=place.warehouse)
    return catalog.load_table(place.table).scan().to_arrow()


def offsets(client: LakeClient) -> list[int]:
    return sorted(table_rows(client).column("offset").to_pylist())


def test_segments_become_rows_and_rows_the_same_batches(client):
    data = batches(5, 300, size=2000)
    row = client.convert(data)
    client.commit(row)
    assert offsets(client) == list(range(5, 3005))
    assert (row.base, row.end, row.log_bytes, row.kind) == (5, 3005, len(data), "parquet")
    offset, found = row.base, b""
    while offset < row.end:
        first, end, part = client.bring(row, offset, 1 << 20)
        assert first <= offset < end
        found += part
        offset = end
    assert found == data


def test_a_run_begins_with_the_group_that_holds_the_offset(client):
    data = batches(0, 600, size=2000)
    row = client.convert(data)
    first, end, part = client.bring(row, 3000, 1)
    infos = scan_batches(part)
    assert first == infos[0].base_offset <= 3000 < end == infos[-1].last_offset + 1
    assert len(part) < len(data) / 2


def test_the_process_writes_nothing_of_its_own_to_the_terminal(client, capfd):
    client.commit(client.convert(batches(0, 3)))
    client.process.close()
    assert capfd.readouterr() == ("", "")


def test_rows_have_the_columns_of_the_record(client):
    data = build_batch(
        [(b"a/b", b"k", b'{"x": 1}', [(b"h", b"1"), (b"n", None)], 1_700_000_000_123)],
        base_offset=9, tag_topics=True,
    )  # fmt: skip
    client.commit(client.convert(data, partition=3, topic=None), partition=3)
    (row,) = table_rows(client).to_pylist()
    assert (row["topic"], row["partition"], row["offset"]) == ("a/b", 3, 9)
    assert (row["key"], row["value"], row["timestamp_type"]) == (b"k", b'{"x": 1}', 0)
    assert row["timestamp"].timestamp() * 1000 == 1_700_000_000_123
    assert [(one["key"], one["value"]) for one in row["headers"]] == [
        ("~t", b"a/b"), ("h", b"1"), ("n", None),
    ]  # fmt: skip


def test_a_commit_that_is_asked_for_again_adds_nothing(client):
    row = client.convert(batches(0, 3))
    client.commit(row)
    client.commit(row)
    assert offsets(client) == list(range(30))
    assert client.recover(30) == ((), 30)


def test_rows_of_a_commit_that_the_manifest_missed_are_found_again(client):
    first, second = client.convert(batches(0, 3)), client.convert(batches(30, 2))
    client.convert(batches(30, 2))  # its upload was given up: no table names it
    client.commit(first)
    client.commit(second, before=30)
    assert client.recover(0) == ((first, second), 50)
    assert client.recover(30) == ((second,), 50)


def test_a_commit_behind_another_mark_is_refused(client):
    client.commit(client.convert(batches(0, 3)))
    other = client.convert(batches(30, 1))
    with pytest.raises(Conflict, match="up to offset 30, and its manifest says 20"):
        client.commit(other, before=20)
    assert offsets(client) == list(range(30))


def test_a_table_that_somebody_rewrote_takes_no_commit_and_is_still_read(client):
    data = batches(0, 3)
    row = client.convert(data)
    client.commit(row)
    if client.place.format == "delta":
        deltalake.DeltaTable(client.place.table).delete("offset < 5")
    else:
        catalog = load_catalog(
            "onelog", type="sql", uri=client.place.catalog, warehouse=client.place.warehouse
        )
        catalog.load_table(client.place.table).delete("offset < 5")
    other = client.convert(batches(30, 1))
    with pytest.raises(Conflict, match="somebody rewrote or deleted rows"):
        client.commit(other, before=30, known=(row.file,))
    assert client.bring(row, 0)[2] == data


def test_aborted_records_are_read_and_not_shown(client):
    aborted = build_batch(
        [(None, b"k", b"gone", (), 5)], base_offset=0, attributes=16, producer=(9, 0, 0)
    )
    kept = build_batch(
        [(None, b"k", b"here", (), 5)], base_offset=1, attributes=16, producer=(8, 0, 0)
    )
    row = client.convert(aborted + kept, aborted=(AbortedSpan(9, 0, 0, 0),))
    client.commit(row)
    assert [one["value"] for one in table_rows(client).to_pylist()] == [b"here"]
    assert client.bring(row, 0)[2] == aborted + kept


def test_neighbouring_files_are_joined_and_hold_the_same_batches(client):
    parts = [batches(at * 30, 3) for at in range(4)]
    rows, before = [], -1
    for part in parts:
        rows.append(client.convert(part))
        client.commit(rows[-1], before=before)
        before = rows[-1].end
    (joined,) = client.process.ask(
        JoinJob(
            place=client.place, stream_id=STREAM, partition=0, topic="orders", index_topics=False,
            rows=tuple(rows),
        ),
        PATIENCE_S,
    ).rows  # fmt: skip
    assert (joined.base, joined.end, joined.created_ms) == (0, 120, 7)
    assert client.bring(joined, 0)[2] == b"".join(parts)
    assert offsets(client) == list(range(120))
    next_row = client.convert(batches(120, 1))
    client.commit(next_row, before=120, known=(joined.file,))
    assert offsets(client) == list(range(130))


def test_what_retention_took_leaves_the_table(client):
    first, second = client.convert(batches(0, 3)), client.convert(batches(30, 2))
    client.commit(first, second)
    done = client.process.ask(
        UpkeepJob(
            place=client.place, stream_id=STREAM, starts={0: 40}, table_age_ms=-2,
            snapshot_age_ms=-1, now_ms=1,
        ),
        PATIENCE_S,
    )  # fmt: skip
    assert done.numbers[0] == 1
    assert offsets(client) == list(range(30, 50))
    assert client.recover(50)[1] == 50


def upkeep(client: LakeClient, *, snapshot_age_ms: int, start: int = 0) -> tuple[int, ...]:
    """Files that left the table, and files that were deleted."""
    job = UpkeepJob(
        place=client.place, stream_id=STREAM, starts={0: start}, table_age_ms=-2,
        snapshot_age_ms=snapshot_age_ms, now_ms=1,
    )  # fmt: skip
    return client.process.ask(job, PATIENCE_S).numbers


def age_table(client: LakeClient, days: int) -> None:
    """Let all that lies in the store have been written, and removed, days ago."""
    moved_s = days * 86_400
    for path in (client.folder / "store").rglob("*"):
        if not path.is_file():
            continue
        if "checkpoint" in path.name:  # it says the same as the rows of the log
            path.unlink()
            continue
        if path.parent.name == "_delta_log" and path.suffix == ".json":
            text = path.read_text()
            path.write_text(
                re.sub(
                    r'(?<="deletionTimestamp":)\d+',
                    lambda told: str(int(told[0]) - moved_s * 1000),
                    text,
                )
            )
        os.utime(path, (time.time() - moved_s,) * 2)


def snapshots(client: LakeClient) -> int:
    """States of an Iceberg table that may be asked for."""
    place = client.place
    catalog = load_catalog("onelog", type="sql", uri=place.catalog, warehouse=place.warehouse)
    return len(catalog.load_table(place.table).metadata.snapshots)


def test_snapshots_expire_and_files_that_only_they_named_are_deleted(client):
    """And so are files that a crash left before any commit named them."""
    is_iceberg = client.place.format == "iceberg"
    rows, before = [], -1
    for at in range(3):
        rows.append(client.convert(batches(at * 30, 3)))
        client.commit(rows[-1], before=before)
        before = rows[-1].end
    orphan = client.convert(batches(90, 3)).file
    files = [Path(path.removeprefix("file://")) for path in (*(r.file for r in rows), orphan)]
    assert upkeep(client, snapshot_age_ms=-1, start=30) == (1, 0)
    assert [path.exists() for path in files] == [True] * 4
    assert upkeep(client, snapshot_age_ms=86_400_000, start=30) == (0, 0), "all of it is young"
    if is_iceberg:
        assert snapshots(client) > 3
    age_table(client, 3)
    removed, deleted = upkeep(client, snapshot_age_ms=0, start=30)
    assert removed == 0
    assert deleted >= 2
    assert [path.exists() for path in files] == [False, True, True, False]
    if is_iceberg:
        assert snapshots(client) == 1
    assert offsets(client) == list(range(30, 90))
    assert client.bring(rows[1], 30)[2] == batches(30, 3)
    client.commit(client.convert(batches(90, 3)), before=90, known=(rows[1].file, rows[2].file))
    assert offsets(client) == list(range(30, 120))


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_typed_columns_stand_beside_the_value(tmp_path, table_format):
    process = lake_process(tmp_path)
    place = place_of(tmp_path, table_format, columns="json: temp double, n bigint, at timestamp")
    client = LakeClient(process, place, tmp_path)
    values = [b'{"temp": 1.5, "n": 7, "at": "2026-01-02T03:04:05Z"}', b'{"temp": "x"}', b"no", None]
    data = build_batch([(None, None, value, (), 1) for value in values])
    try:
        row = client.convert(data)
        client.commit(row)
        rows = table_rows(client)
        assert client.bring(row, 0)[2] == data
    finally:
        process.close()
    assert rows.column("temp").to_pylist() == [1.5, None, None, None]
    assert rows.column("n").to_pylist() == [7, None, None, None]
    at = rows.column("at").to_pylist()
    assert (at[0].isoformat(), at[1:]) == ("2026-01-02T03:04:05+00:00", [None] * 3)
    assert rows.column("value").to_pylist() == values


def test_a_file_that_is_gone_or_damaged_is_told_with_its_name(client):
    row = client.convert(batches(0, 50, size=1000))
    path = Path(row.file.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ColdDamaged, match="parquet"):
        client.bring(row, 0)
    path.unlink()
    with pytest.raises(NotFound, match="parquet"):
        client.bring(row, 0)


def test_a_process_that_dies_is_started_again_and_its_jobs_say_so(tmp_path):
    process = lake_process(tmp_path)
    process.ask(PingJob(), PATIENCE_S)
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            process.ask(PingJob(), PATIENCE_S)
        except LakeLost:
            assert time.monotonic() < ends
            time.sleep(0.05)
            continue
        if process.pid != pid:
            break
    assert process.starts == 2
    process.close()


@pytest.mark.parametrize("point", ["lake.file", "lake.commit", "lake.commit.after"])
@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_kill_at_any_step_leaves_each_record_once(tmp_path, point, table_format):
    data = batches(0, 3)
    place = place_of(tmp_path, table_format)
    process = lake_process(tmp_path, faults=f"{point}=exit")
    client = LakeClient(process, place, tmp_path)
    with pytest.raises(LakeLost):
        client.commit(client.convert(data))
    process.close()
    process = lake_process(tmp_path)
    client = LakeClient(process, place, tmp_path)
    try:
        rows, mark = client.recover(0)
        assert mark == (30 if point == "lake.commit.after" else -1)
        assert [row.end for row in rows] == ([30] if mark == 30 else [])
        if mark < 0:
            rows = (client.convert(data),)
            client.commit(*rows)
        assert offsets(client) == list(range(30))
        assert client.bring(rows[0], 0)[2] == data
    finally:
        process.close()


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_process_that_hangs_is_ended_and_one_that_is_only_slow_is_not(
    tmp_path, monkeypatch, is_slow
):
    monkeypatch.setattr(process_link, "PING_S", PATIENCE_S if is_slow else 0.5)
    process = lake_process(tmp_path)
    process.ask(PingJob(), PATIENCE_S)
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LakeLost, match="in time"):
        process.ask(PingJob(), 0.2)
    if is_slow:
        os.kill(pid, signal.SIGCONT)
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            process.ask(PingJob(), PATIENCE_S)
            break
        except LakeLost:
            assert time.monotonic() < ends
            time.sleep(0.05)
    assert (process.pid == pid, process.starts) == ((True, 1) if is_slow else (False, 2))
    process.close()


@pytest.mark.parametrize(
    "lost", [requests.exceptions.ConnectionError, requests.exceptions.ReadTimeout,
             CommitStateUnknownException]
)  # fmt: skip
def test_a_catalog_whose_answer_is_lost_gets_each_row_once(tmp_path, monkeypatch, lost):
    process = lake_process(tmp_path)
    place = place_of(tmp_path, "iceberg")
    client = LakeClient(process, place, tmp_path)
    try:
        row = client.convert(batches(0, 3))
    finally:
        process.close()
    commit_table = SqlCatalog.commit_table

    def commit(*words):
        commit_table(*words)
        monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
        raise lost("the answer did not come")

    table = LogTable(place, Storage())
    added = [AddedFile(0, row.base, row.end, row.file)]
    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    with pytest.raises(Unavailable, match="did not answer"):
        table.add(STREAM, added, {0: -1}, ())
    assert offsets(client) == list(range(30)), "it was done"
    snapshots_before = snapshots(client)
    table.add(STREAM, added, {0: -1}, ())
    assert offsets(client) == list(range(30))
    assert snapshots(client) == snapshots_before
