"""Does a tiered partition move to the store and back without a reader who notices?"""

from __future__ import annotations

import errno
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from onelog.base import faults
from onelog.base.clock import ManualClock
from onelog.base.errors import (
    ColdDamaged,
    ColdUnavailable,
    Fenced,
    OffsetOutOfRange,
    PartitionCorrupt,
    StorageError,
    StorageFull,
)
from onelog.base.ids import Offset
from onelog.kernel import topic_hash
from onelog.objects import names
from onelog.objects.piece import AbortedSpan
from onelog.objects.store import ObjectStore
from onelog.objects.sweeping import sweep
from onelog.storage.cold import RowTable
from onelog.storage.engine import Cold, LogSettings, in_place
from onelog.storage.segment import SegmentEngine
from onelog.storage.tier import TierSettings
from onelog.storage.tiered import (
    TieredEngine,
    TieredLog,
    restore_partition,
    stored_partition,
    stored_partitions,
)
from onelog.storage.tiered.commits import KEPT
from tests.batches import append, fill, make_batch, read_all, spans
from tests.support.tiers import KEY, SMALL, Owner, memory_store, move_all, tiered, upload_all

HOUR_MS = 3_600_000


@pytest.fixture
def store() -> ObjectStore:
    return memory_store()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(tmp_path: Path, store: ObjectStore, clock: ManualClock):
    made = tiered(tmp_path / "data", store, clock)
    yield made
    made.close()


@pytest.fixture
def log(engine: TieredEngine) -> TieredLog:
    return engine.open(KEY, SMALL)


@pytest.fixture(autouse=True)
def disarm():
    yield
    faults.disarm()


def requests(store: ObjectStore) -> int:
    counts = store.counts
    return counts.put + counts.get + counts.list + counts.delete


def objects(store: ObjectStore, folder: str = "t/") -> list[str]:
    return [row.name for row in store.list(folder)]


def places(log: TieredLog) -> list[str]:
    return [row.place for row in log.segments()]


def check_union(log: TieredLog) -> None:
    """Every offset lies in one segment."""
    rows = log.segments()
    assert rows[0].base_offset <= log.start_offset
    for row, after in pairwise(rows):
        assert row.end_offset == after.base_offset
    assert rows[-1].end_offset == log.end_offset


# Moving.


def test_sealed_segments_become_pieces_and_then_leave_the_disk(log: TieredLog):
    fill(log, 120)
    log.sync()
    whole = read_all(log)
    sealed = [row for row in log.segments() if row.sealed]
    assert upload_all(log) == len(sealed) > 3
    assert places(log) == ["both"] * len(sealed) + ["local"]
    upto = sealed[2].end_offset
    assert log.tier.trim_local(upto) == upto == log.local_start_offset
    assert places(log) == ["cold"] * 3 + ["both"] * (len(sealed) - 3) + ["local"]
    assert log.start_offset == 0
    assert read_all(log) == whole
    assert log.size_bytes == len(whole) == sum(row.size_bytes for row in log.segments())
    check_union(log)


def test_the_local_window_moves_at_the_ends_of_pieces_only(log: TieredLog):
    fill(log, 60)
    log.sync()
    upload_all(log)
    first, second = log.segments()[:2]
    assert log.tier.trim_local(first.end_offset - 1) == 0
    assert log.tier.trim_local(second.end_offset - 1) == first.end_offset
    assert log.tier.trim_local(10**9) <= log.segments()[-1].base_offset


def test_only_what_is_stable_and_durable_is_copied(log: TieredLog):
    fill(log, 60)
    assert not log.tier.waiting(log.end_offset)
    assert upload_all(log) == 0, "nothing was synced"
    log.sync()
    second = log.segments()[1]
    assert [row.base_offset for row in log.tier.waiting(second.end_offset - 1)] == [0]
    assert upload_all(log, second.end_offset - 1) == 1
    assert log.tier.status().cold_end_offset == second.base_offset


def test_small_neighbours_are_joined_up_to_a_segment(engine: TieredEngine):
    log = engine.open(KEY, msgspec.structs.replace(SMALL, segment_bytes=1 << 20))
    for _ in range(10):
        fill(log, 3)
        log.roll()
    log.sync()
    row = log.tier.upload(log.end_offset, Owner())
    assert row is not None
    assert (row.base, row.end, row.records) == (0, 30, 30)
    assert log.tier.upload(log.end_offset, Owner()) is None
    check_union(log)


def test_a_stream_that_does_not_copy_moves_nothing_and_reads_what_it_moved(log: TieredLog):
    fill(log, 60)
    whole = read_all(log)
    move_all(log)
    log.reconfigure(msgspec.structs.replace(SMALL, tier=TierSettings(copy=False)))
    fill(log, 60)
    log.sync()
    assert upload_all(log) == 0
    assert read_all(log).startswith(whole)
    log.reconfigure(msgspec.structs.replace(SMALL, tier=None))
    assert upload_all(log) == 0


def test_a_piece_knows_state_aborted_transactions_and_the_stream(
    log: TieredLog, store: ObjectStore
):
    fill(log, 60)
    log.sync()
    span = AbortedSpan(7, 2, 5, 1)
    upload_all(log, owner=Owner([span]))
    found = stored_partition(store, KEY)
    assert found.stream == Owner.stream
    assert found.manifest.leader_epoch == Owner.leader_epoch
    log.tier.trim_local(log.end_offset)
    assert in_place(log, partial(log.aborted, 0, 10)) == [span]
    assert in_place(log, partial(log.aborted, 6, 40)) == []
    assert list(log.aborted(log.local_start_offset, log.end_offset)) == []


def test_reads_below_the_local_start_are_remote_and_others_are_not(log: TieredLog):
    fill(log, 60)
    move_all(log)
    fill(log, 60)
    with pytest.raises(Cold) as cold:
        log.read(0, 1000, log.end_offset)
    assert cold.value.remote
    assert spans(log.read(60, 1, log.end_offset)) == [(60, 60)]
    with pytest.raises(OffsetOutOfRange):
        log.read(log.end_offset + 1, 1, log.end_offset)


def test_times_and_topics_are_found_across_places(log: TieredLog):
    for at in range(80):
        topic = b"t/%d" % (at % 3)
        append(log, make_batch(at, topic=topic, timestamp_ms=1000 + at))
    everything = [
        [log.offsets_of_topic(topic_hash(b"t/%d" % n), 5, 77, 100) for n in range(4)],
        [log.offset_for_time(at) for at in range(990, 1090, 3)],
    ]
    log.sync()
    upload_all(log)
    for upto in [row.end_offset for row in log.segments()]:
        log.tier.trim_local(upto)
        topics = [
            in_place(log, partial(log.offsets_of_topic, topic_hash(b"t/%d" % n), 5, 77, 100))
            for n in range(4)
        ]
        times = [in_place(log, partial(log.offset_for_time, at)) for at in range(990, 1090, 3)]
        assert [topics, times] == everything
        limited = in_place(log, partial(log.offsets_of_topic, topic_hash(b"t/1"), 0, 80, 4))
        assert limited == [1, 4, 7, 10]


def test_pieces_have_topics_also_if_the_segments_index_is_damaged(log: TieredLog, tmp_path: Path):
    for at in range(60):
        append(log, make_batch(at, topic=b"t/%d" % (at % 2)))
    log.sync()
    for path in (tmp_path / "data").rglob("*.topics"):
        path.write_bytes(b"damage" * 100)
    upload_all(log)
    log.tier.trim_local(log.end_offset)
    end = log.local_start_offset
    found = in_place(log, partial(log.offsets_of_topic, topic_hash(b"t/1"), 0, end, 100))
    assert found == list(range(1, end, 2))


def test_a_cut_segment_is_moved_without_entries_of_what_was_cut(log: TieredLog):
    for at in range(10):
        append(log, make_batch(at, topic=b"t"))
    log.truncate(6)
    for at in range(6, 9):
        append(log, make_batch(at, topic=b"u"))
    move_all(log)
    for topic, offsets in ((b"t", [0, 1, 2, 3, 4, 5]), (b"u", [6, 7, 8])):
        found = in_place(log, partial(log.offsets_of_topic, topic_hash(topic), 0, 9, 100))
        assert found == offsets


# Retention.


def test_a_trim_needs_no_store_and_survives_a_restart(
    tmp_path: Path, store: ObjectStore, log: TieredLog, engine: TieredEngine
):
    fill(log, 60)
    move_all(log)
    before = requests(store)
    log.trim(33)
    assert requests(store) == before
    assert (log.start_offset, log.local_start_offset) == (33, 60)
    with pytest.raises(OffsetOutOfRange):
        log.read(32, 1, 60)
    engine.close()
    again = tiered(tmp_path / "data", store)
    log = again.open(KEY, SMALL)
    assert (log.start_offset, log.local_start_offset, log.end_offset) == (33, 60, 60)
    assert requests(store) == before, "a start asks the store nothing"
    assert spans(read_all(log))[0] == (33, 33)
    check_union(log)
    again.close()


def test_what_left_is_doomed_then_deleted_after_the_grace_then_forgotten(
    log: TieredLog, store: ObjectStore, clock: ManualClock
):
    fill(log, 60)
    move_all(log)
    count, cut = len(objects(store)), log.segments()[2].base_offset
    log.trim(cut)
    assert log.tier.settle(clock.now_ms(), HOUR_MS) == 0
    manifest = stored_partition(store, KEY).manifest
    assert (len(manifest.doomed), manifest.start) == (2, cut)
    assert len(objects(store)) == count
    clock.advance(3599)
    assert log.tier.settle(clock.now_ms(), HOUR_MS) == 0
    clock.advance(2)
    assert log.tier.settle(clock.now_ms(), HOUR_MS) == 2
    assert len(objects(store)) == count - 2
    assert stored_partition(store, KEY).manifest.doomed == ()
    assert log.tier.status().doomed == 0


def test_a_lease_holds_doomed_objects_back(log: TieredLog, store: ObjectStore, clock: ManualClock):
    fill(log, 60)
    move_all(log)
    count = len(objects(store))
    log.tier.hold_doomed(clock.now_ms() + HOUR_MS)
    log.trim(60)
    assert log.tier.settle(clock.now_ms(), 0) == 0
    assert len(objects(store)) == count
    clock.advance(3601)
    assert log.tier.settle(clock.now_ms(), 0) == count
    assert objects(store) == []


def test_a_lease_holds_doomed_objects_back_after_a_restart_too(
    log: TieredLog, engine: TieredEngine, store: ObjectStore, tmp_path: Path, clock: ManualClock
):
    fill(log, 60)
    move_all(log)
    count = len(objects(store))
    log.tier.hold_doomed(clock.now_ms() + HOUR_MS)
    log.trim(60)
    log.tier.settle(clock.now_ms(), 0)
    engine.close()
    clock.advance(3000)
    again = tiered(tmp_path / "data", store, clock)
    log = again.open(KEY, SMALL)
    assert log.tier.settle(clock.now_ms(), 0) == 0
    assert len(objects(store)) == count, "a plan lost its objects by a restart"
    clock.advance(601 + 300)
    assert log.tier.settle(clock.now_ms(), 0) == count
    again.close()
    later = tiered(tmp_path / "data", store, clock)
    log = later.open(KEY, SMALL)
    fill(log, 60)
    move_all(log)
    log.trim(120)
    assert log.tier.settle(clock.now_ms(), 0) > 0, "an old lease holds for ever"
    later.close()


@pytest.mark.parametrize("text", [b"", b"x", b"9" * 19, b"9" * 100])
def test_a_damaged_note_of_leases_holds_nothing_for_long(
    engine: TieredEngine, store: ObjectStore, tmp_path: Path, clock: ManualClock, text: bytes
):
    engine.close()
    (tmp_path / "data-tier" / "tiers" / "plans").write_bytes(text)
    again = tiered(tmp_path / "data", store, clock)
    log = again.open(KEY, SMALL)
    fill(log, 60)
    move_all(log)
    log.trim(60)
    clock.advance(2 * 3600 + 1)
    assert log.tier.settle(clock.now_ms(), 0) > 0
    again.close()


def test_three_manifests_stay(log: TieredLog, store: ObjectStore):
    fill(log, 200)
    move_all(log)
    rows = [names.parse_manifest(name) for name in objects(store, "m/")]
    seq = log.tier.status().seq
    assert seq > 5
    assert [row.seq for row in rows if row] == [seq, seq - 1, seq - 2]


def test_a_trim_beside_a_moving_local_window_does_not_move_the_window_back(log: TieredLog):
    fill(log, 120)
    log.sync()
    whole = read_all(log)
    upload_all(log)
    first, second, third = log.segments()[:3]
    # Readers go to the store from here on, and the local bytes are about to leave.
    faults.arm("tier.trim", lambda: log.trim(Offset(first.end_offset)))
    assert log.tier.trim_local(third.end_offset) == third.end_offset
    faults.disarm()
    assert log.start_offset == first.end_offset
    assert log.tier.status().local_start_offset == log.local_start_offset == third.end_offset
    left = read_all(log, int(second.base_offset))
    assert spans(left) == [(at, at) for at in range(second.base_offset, 120)]
    assert whole.endswith(left)
    check_union(log)


# Turning it off.


def test_what_is_brought_back_is_local_again_and_survives(
    log: TieredLog, engine: TieredEngine, store: ObjectStore, tmp_path: Path, clock: ManualClock
):
    fill(log, 60)
    log.trim(7)
    move_all(log)
    fill(log, 10)
    whole = read_all(log)
    while log.tier.bring_back():
        check_union(log)
    assert set(places(log)[:-1]) == {"both"}
    assert log.local_start_offset == log.start_offset == 7
    log.tier.delete_cold()
    assert set(places(log)) == {"local"}
    log.tier.settle(clock.now_ms(), 0)
    assert objects(store) == []
    assert read_all(log) == whole
    engine.close()
    plain = SegmentEngine(tmp_path / "data", clock)
    assert read_all(plain.open(KEY, SMALL)) == whole
    plain.close()


def test_cold_data_that_is_deleted_leaves_the_local_part(log: TieredLog, store: ObjectStore):
    fill(log, 60)
    move_all(log)
    fill(log, 10)
    log.tier.delete_cold()
    assert (log.start_offset, log.local_start_offset, log.end_offset) == (60, 60, 70)
    assert stored_partition(store, KEY).manifest.rows == ()


def test_a_deleted_partition_takes_its_objects_with_it(
    log: TieredLog, engine: TieredEngine, store: ObjectStore, clock: ManualClock
):
    fill(log, 60)
    move_all(log)
    log.close()
    before = requests(store)
    engine.delete(KEY)
    assert requests(store) == before, "a deletion waits for no store"
    assert engine.deleted.bury(clock.now_ms(), HOUR_MS) == 0
    assert objects(store)
    clock.advance(3601)
    assert engine.deleted.bury(clock.now_ms(), HOUR_MS) > 0
    assert objects(store) == objects(store, "m/") == []
    assert engine.deleted.keys() == []


# The first contact.


def test_a_store_that_was_emptied_is_refused_and_both_numbers_are_named(
    log: TieredLog, engine: TieredEngine, store: ObjectStore, tmp_path: Path
):
    fill(log, 60)
    move_all(log)
    seq = log.tier.status().seq
    engine.close()
    store.delete(objects(store, ""))
    again = tiered(tmp_path / "data", store)
    log = again.open(KEY, SMALL)
    fill(log, 60)
    log.sync()
    with pytest.raises(StorageError, match=f"no manifest, ours is {seq}"):
        upload_all(log)
    assert "no manifest" in log.tier.status().halted
    assert objects(store, "") == [], "nothing was moved there"
    with pytest.raises(ColdDamaged, match="is gone"):
        read_all(log)
    assert len(read_all(log, 60)) > 0, "the local part is read"
    again.close()


def test_an_older_store_is_refused(
    log: TieredLog, engine: TieredEngine, store: ObjectStore, tmp_path: Path
):
    fill(log, 100)
    move_all(log)
    seq = log.tier.status().seq
    engine.close()
    store.delete([names.tier_manifest(*KEY, seq)])
    again = tiered(tmp_path / "data", store)
    log = again.open(KEY, SMALL)
    fill(log, 60)
    log.sync()
    with pytest.raises(StorageError, match=f"number {seq - 1}, ours is {seq}"):
        upload_all(log)
    again.close()


def test_two_writers_of_one_partition_are_fenced(tmp_path: Path, store: ObjectStore):
    first, second = (tiered(tmp_path / name, store) for name in ("a", "b"))
    logs = [engine.open(KEY, SMALL) for engine in (first, second)]
    for log in logs:
        fill(log, 60)
        log.sync()
        log.tier.waiting(60)
    assert logs[0].tier.upload(60, Owner()) is not None
    assert logs[1].tier.upload(60, Owner()) is not None, "it took over: its log is the same"
    with pytest.raises(Fenced, match="Another broker"):
        logs[0].tier.upload(60, Owner())
    assert "fenced" in logs[0].tier.status().halted
    fill(logs[0], 5)
    assert len(read_all(logs[0])) > 0, "its log goes on"
    logs[0].trim(50)
    with pytest.raises(Fenced):
        logs[0].tier.settle(0, 0)
    for engine in (first, second):
        engine.close()


def test_a_cut_after_a_commit_whose_answer_was_lost_takes_its_rows_too(
    log: TieredLog, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    fill(log, 20)
    move_all(log)
    fill(log, 20)
    log.roll()
    log.sync()
    create = store.create

    def answer_lost(name: str, parts: list[bytes]) -> None:
        create(name, parts)
        raise ColdUnavailable("the answer was lost")

    monkeypatch.setattr(store, "create", answer_lost)
    with pytest.raises(ColdUnavailable):
        upload_all(log)
    monkeypatch.setattr(store, "create", create)
    log.truncate(Offset(25))
    for _ in range(20):
        append(log, make_batch(log.end_offset, size=33))
    whole = read_all(log)
    move_all(log)
    assert log.local_start_offset == log.end_offset == 45
    assert read_all(log) == whole, "the store answers with records that were cut"
    check_union(log)


def test_another_log_under_our_name_is_refused(tmp_path: Path, store: ObjectStore):
    first, second = (tiered(tmp_path / name, store) for name in ("a", "b"))
    log = first.open(KEY, SMALL)
    fill(log, 60)
    move_all(log)
    other = second.open(KEY, SMALL)
    fill(other, 60, size=19)
    other.sync()
    with pytest.raises(StorageError, match="other records"):
        upload_all(other)
    short = tiered(tmp_path / "c", store)
    small = short.open(KEY, SMALL)
    fill(small, 30)
    small.sync()
    with pytest.raises(StorageError, match="up to offset 60"):
        upload_all(small)
    for engine in (first, second, short):
        engine.close()


def test_damaged_copies_are_read_from_the_store_and_never_hide_history(
    log: TieredLog, engine: TieredEngine, store: ObjectStore, tmp_path: Path
):
    fill(log, 60)
    whole = read_all(log)
    move_all(log)
    engine.close()
    for path in (tmp_path / "data").rglob("cold.?"):
        path.write_bytes(b"\0" * 100)
    again = tiered(tmp_path / "data", store)
    log = again.open(KEY, SMALL)
    assert log.start_offset == 0
    faults.arm("store.get", faults.fail_with(errno.EIO))
    with pytest.raises(ColdUnavailable):
        read_all(log)
    faults.disarm()
    assert read_all(log) == whole
    check_union(log)
    again.close()


def test_a_disk_that_lost_records_which_the_store_has_stops_the_partition(
    log: TieredLog, engine: TieredEngine, store: ObjectStore, tmp_path: Path
):
    fill(log, 60)
    log.roll()
    log.sync()
    upload_all(log)
    engine.close()
    for path in (tmp_path / "data" / "s-1" / "0").iterdir():
        if not path.name.startswith("cold"):
            path.unlink()
    again = tiered(tmp_path / "data", store)
    with pytest.raises(PartitionCorrupt, match="this disk lost records"):
        again.open(KEY, SMALL)
    again.close()


# Restoring, sweeping, truncating.


def test_a_bucket_alone_restores_a_partition(
    log: TieredLog, store: ObjectStore, tmp_path: Path, clock: ManualClock
):
    fill(log, 60)
    log.trim(5)
    move_all(log)
    whole = read_all(log)
    (found,) = stored_partitions(store)
    assert (found.key, found.stream) == (KEY, Owner.stream)
    inner = SegmentEngine(tmp_path / "new", clock)
    assert restore_partition(store, inner, found, "partition") == 60
    inner.close()
    fresh = tiered(tmp_path / "new", store, clock)
    log = fresh.open(KEY, SMALL)
    assert (log.start_offset, log.local_start_offset, log.end_offset) == (5, 60, 60)
    assert log.load_state("partition") == (60, b"state as of 60")
    fill(log, 60)
    assert read_all(log).startswith(whole)
    move_all(log)
    check_union(log)
    fresh.close()


def test_a_sweep_takes_what_a_failed_upload_left_and_nothing_else(
    log: TieredLog, engine: TieredEngine, store: ObjectStore
):
    fill(log, 60)
    log.sync()
    faults.arm("tier.manifest", faults.fail_with(errno.EIO))
    with pytest.raises(ColdUnavailable):
        upload_all(log)
    faults.disarm()
    (orphan,) = objects(store)
    upload_all(log)
    log.trim(30)
    others = [names.tier_piece("other", 0, 0, 5, names.new_tag())]
    store.put(others[0], [b"of a stream that is not here"])
    needed = set(objects(store)) - {orphan}
    swept = sweep(store, engine.keepers(), age_ms=-10_000)
    assert (swept.deleted, swept.names) == (1, (orphan,))
    assert set(objects(store)) == needed


def test_a_sweep_takes_manifests_that_a_commit_could_not_delete_and_keeps_the_last(
    log: TieredLog, engine: TieredEngine, store: ObjectStore
):
    for _ in range(KEPT + 1):
        fill(log, 60)
        log.sync()
        upload_all(log)
    newest = log.tier.status().seq
    assert newest > KEPT
    left = names.tier_manifest(*KEY, newest - KEPT)
    store.put(left, [b"its deletion failed"])
    unknown = names.tier_manifest("other", 0, 1)
    store.put(unknown, [b"of a stream that is not here"])
    kept = {row.name for row in store.list(names.MANIFESTS)} - {left}
    swept = sweep(store, engine.keepers(), age_ms=-10_000)
    assert swept.names == (left,)
    assert {row.name for row in store.list(names.MANIFESTS)} == kept


def test_a_truncated_log_forgets_rows_and_writes_those_offsets_anew(
    log: TieredLog, engine: TieredEngine, store: ObjectStore, tmp_path: Path, clock: ManualClock
):
    fill(log, 60)
    whole = read_all(log)
    move_all(log)
    log.truncate(37)
    assert (log.start_offset, log.end_offset) == (0, 37)
    assert whole.startswith(read_all(log))
    engine.close()
    again = tiered(tmp_path / "data", store, clock)
    log = again.open(KEY, SMALL)
    assert log.end_offset == 37
    fill(log, 40, size=11)
    whole = read_all(log)
    move_all(log)
    assert read_all(log) == whole
    log.tier.settle(clock.now_ms(), 0)
    named = {row.object for row in log.cold_rows(0, 100)}
    assert set(objects(store)) == named
    again.close()


# Failures on the way.


@pytest.mark.parametrize("point", ["store.put", "store.put.after", "tier.manifest", "tier.local"])
def test_an_upload_that_fails_anywhere_is_done_by_the_next_one(
    log: TieredLog, store: ObjectStore, point: str
):
    fill(log, 300)
    log.sync()
    whole = read_all(log)
    for after in range(3):
        faults.arm(point, faults.fail_with(errno.EIO, after))
        with pytest.raises(StorageError):
            upload_all(log)
        faults.disarm()
    upload_all(log)
    log.tier.trim_local(log.end_offset)
    assert read_all(log) == whole
    check_union(log)
    rows = log.cold_rows(0, log.end_offset)
    assert [row.object for row in rows] == [
        row.object for row in stored_partition(store, KEY).manifest.rows
    ]


def test_a_full_disk_is_said_and_nothing_is_lost(log: TieredLog):
    fill(log, 120)
    log.sync()
    faults.arm("tier.local", faults.fail_with(errno.ENOSPC))
    with pytest.raises(StorageFull, match="free some space"):
        upload_all(log)
    faults.disarm()
    assert upload_all(log) > 0


def test_a_failed_local_trim_is_made_up_for(log: TieredLog):
    fill(log, 60)
    log.sync()
    whole = read_all(log)
    upload_all(log)
    faults.arm("tier.trim", faults.fail_with(errno.EIO))
    with pytest.raises(StorageError):
        log.tier.trim_local(log.end_offset)
    assert read_all(log) == whole
    faults.disarm()
    assert log.tier.trim_local(log.end_offset) == log.segments()[-1].base_offset
    assert read_all(log) == whole


def test_a_partition_without_a_tier_has_no_file_of_one(
    engine: TieredEngine, store: ObjectStore, tmp_path: Path
):
    log = engine.open(KEY, LogSettings(segment_bytes=2000))
    fill(log, 60)
    log.sync()
    log.trim(20)
    assert upload_all(log) == 0
    assert requests(store) == 0
    assert not list((tmp_path / "data").rglob("cold.?"))


def test_a_manifest_that_is_damaged_in_the_store_is_refused_by_its_name(
    log: TieredLog, engine: TieredEngine, store: ObjectStore, tmp_path: Path
):
    fill(log, 60)
    log.sync()
    upload_all(log)
    seq = log.tier.status().seq
    engine.close()
    store.put(names.tier_manifest(*KEY, seq + 1), [b"OLM1 and nothing"])
    again = tiered(tmp_path / "data", store)
    log = again.open(KEY, SMALL)
    fill(log, 60)
    log.sync()
    with pytest.raises(ColdDamaged, match="damaged"):
        upload_all(log)
    again.close()


def test_the_copy_is_a_manifest_as_the_store_has_it(log: TieredLog, store: ObjectStore):
    fill(log, 60)
    log.sync()
    upload_all(log)
    found = stored_partition(store, KEY)
    data = store.get(names.tier_manifest(*KEY, found.manifest.seq))
    assert found.manifest.encode() == data, "rows that were packed before are the same"
    assert [row.end for row in found.manifest.rows] == [
        row.end for row in log.cold_rows(0, log.end_offset)
    ]


def test_a_table_of_rows_comes_back_from_its_bytes_and_damage_is_seen(log: TieredLog):
    fill(log, 200)
    log.sync()
    upload_all(log)
    rows = log.cold_rows(0, log.end_offset)
    data = RowTable(rows).to_bytes()
    again = RowTable.from_bytes(data, "it")
    assert list(again) == list(rows)
    assert (again.start, again.end, again.size_bytes) == (
        rows[0].base,
        rows[-1].end,
        sum(row.log_bytes for row in rows),
    )
    assert list(RowTable.from_bytes(RowTable().to_bytes(), "it")) == []
    swapped = data[:16] + data[24:32] + data[16:24] + data[32:]
    for damaged in (data[:-1], data[:10], b"", swapped):
        with pytest.raises(ColdDamaged):
            RowTable.from_bytes(damaged, "it")


def test_a_damaged_batch_is_not_moved(log: TieredLog, tmp_path: Path):
    fill(log, 60)
    log.sync()
    path = min((tmp_path / "data").rglob("*.log"))
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(PartitionCorrupt, match="cannot be moved"):
        upload_all(log)
    assert log.tier.status().rows == 0
