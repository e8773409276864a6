"""What does the segment engine do with torn tails, flipped bits and missing files? (I4, I9)"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import PartitionCorrupt, PartitionStopped
from onelog.kernel import topic_hash
from onelog.storage.engine import LogSettings, PartitionKey, in_place
from onelog.storage.segment import SegmentEngine, SegmentLog
from tests.batches import append, fill, make_batch, read_all, spans

KEY = PartitionKey("s-1", 0)
SETTINGS = LogSettings(segment_bytes=2_000, index_interval_bytes=256)
ONE = LogSettings(index_interval_bytes=256)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def directory(root: Path) -> Path:
    return root / "s-1" / "0"


def crash(root: Path, to: Path) -> Path:
    """The files as a kill would leave them: the engine stays open, its directory is copied."""
    shutil.copytree(root, to)
    return to


def reopen(root: Path, settings: LogSettings = SETTINGS) -> SegmentLog:
    return SegmentEngine(root).open(KEY, settings)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def firsts(log: SegmentLog) -> list[int]:
    return [first for first, _ in spans(read_all(log))]


# The tail.


def test_a_tail_torn_at_any_byte_is_cut_and_told(root: Path, tmp_path: Path):
    """I4: what was synced is there; the torn batch is not; the next append goes on cleanly."""
    log = reopen(root, ONE)
    fill(log, 3)
    log.sync()
    size = log.size_bytes
    last = make_batch(3, 2)
    append(log, last)
    for kept in range(len(last)):
        copy = crash(root, tmp_path / f"copy{kept}")
        path = directory(copy) / f"{0:020}.log"
        torn = path.read_bytes()[: size + kept]
        path.write_bytes(torn + bytes(100) if kept % 2 else torn)
        again = reopen(copy, ONE)
        assert again.end_offset == again.durable_offset == 3
        cut = len(torn[size:].rstrip(b"\0"))
        assert again.torn == ((cut, 0, 3) if cut else None)
        assert path.stat().st_size == size
        fill(again, 1)
        assert firsts(again) == [0, 1, 2, 3]
        shutil.rmtree(copy)


def test_a_flipped_bit_in_the_tail_cuts_from_its_batch(root: Path, tmp_path: Path):
    log = reopen(root, ONE)
    fill(log, 3)
    log.sync()
    size = log.size_bytes
    batches = [make_batch(3), make_batch(4), make_batch(5)]
    append(log, *batches)
    second = size + len(batches[0])
    for at in range(second, second + len(batches[1]), 3):
        if at - second in (*range(8), *range(12, 16)):
            continue  # base offset and leader epoch are not covered by the CRC
        copy = crash(root, tmp_path / f"copy{at}")
        flip(directory(copy) / f"{0:020}.log", at)
        again = reopen(copy, ONE)
        assert again.end_offset == 4, at
        torn = len((batches[1] + batches[2]).rstrip(b"\0"))  # zeros are taken for reserved space
        assert again.recovery.bytes_cut == torn
        assert not again.recovery.clean


def test_only_what_lies_behind_the_recovery_point_is_scanned(root: Path, tmp_path: Path):
    log = reopen(root, ONE)
    fill(log, 500, size=200)
    log.sync()
    before = log.size_bytes
    fill(log, 3)
    again = reopen(crash(root, tmp_path / "copy"), ONE)
    assert again.end_offset == 503
    assert again.recovery.bytes_scanned == log.size_bytes - before
    assert again.recovery.bytes_cut == 0


def test_the_tail_may_span_segments(root: Path, tmp_path: Path):
    log = reopen(root)
    fill(log, 5, size=100)
    log.sync()
    for offset in range(5, 80):
        append(log, make_batch(offset, topic=b"t/%d" % (offset % 3), size=60))
    again = reopen(crash(root, tmp_path / "copy"))
    assert firsts(again) == list(range(80))
    expected = list(range(6, 80, 3))
    assert again.offsets_of_topic(topic_hash(b"t/0"), 0, 80, 100) == expected
    assert len(again.segments()) > 3


def test_a_bad_batch_in_an_unsynced_segment_removes_the_later_ones(root: Path, tmp_path: Path):
    log = reopen(root)
    fill(log, 5, size=100)
    log.sync()
    fill(log, 75, size=100)
    copy = crash(root, tmp_path / "copy")
    victim = log.segments()[2]
    flip(directory(copy) / f"{victim.base_offset:020}.log", 70)
    again = reopen(copy)
    assert again.end_offset == victim.base_offset
    assert again.recovery.segments_removed >= 2
    assert firsts(again) == list(range(victim.base_offset))
    left = sorted(int(path.stem) for path in directory(copy).glob("*.log"))
    assert all(base < victim.base_offset for base in left)
    fill(again, 5)
    assert firsts(again) == list(range(victim.base_offset + 5))


def test_a_log_that_was_never_synced_is_recovered_as_far_as_it_is_good(root: Path, tmp_path: Path):
    log = reopen(root)
    fill(log, 40, size=100)
    again = reopen(crash(root, tmp_path / "copy"))
    assert firsts(again) == list(range(40))


def test_recovery_twice_finds_nothing_more_to_do(root: Path, tmp_path: Path):
    log = reopen(root)
    fill(log, 40, size=100)
    copy = crash(root, tmp_path / "copy")
    assert not reopen(copy).recovery.clean
    assert reopen(copy).recovery.clean
    assert firsts(reopen(copy)) == list(range(40))


def test_states_beyond_the_recovered_end_are_gone(root: Path, tmp_path: Path):
    log = reopen(root, ONE)
    fill(log, 3)
    log.sync()
    log.save_state("producers", 2, b"two")
    fill(log, 3)
    log.save_state("producers", 6, b"six")
    copy = crash(root, tmp_path / "copy")
    path = directory(copy) / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[: log.size_bytes - 5])
    again = reopen(copy, ONE)
    assert again.load_state("producers") == (2, b"two")
    fill(again, 9)
    assert again.load_state("producers") == (2, b"two")


# Before the recovery point.


def three_segments(root: Path) -> SegmentLog:
    log = reopen(root)
    fill(log, 50, size=60)
    log.sync()
    assert len(log.segments()) >= 3
    return log


def test_damage_in_the_last_durable_batch_stops_the_open(root: Path, tmp_path: Path):
    """I9: it is not cut, for it was acknowledged."""
    log = reopen(root, ONE)
    fill(log, 5)
    log.sync()
    copy = crash(root, tmp_path / "copy")
    flip(directory(copy) / f"{0:020}.log", log.size_bytes - 3)
    with pytest.raises(PartitionCorrupt, match=r"\.log, byte \d+: damage before the recovery"):
        reopen(copy, ONE)
    assert len((directory(copy) / f"{0:020}.log").read_bytes()) >= log.size_bytes


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("harm", [Path.unlink, cut_short], ids=["missing", "short"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_or_short_segment_stops_the_open(
    root: Path, tmp_path: Path, number: int, harm: Callable[[Path], None], clean: bool
):
    engine = SegmentEngine(root)
    log = engine.open(KEY, SETTINGS)
    fill(log, 50, size=60)
    log.sync()
    rows = log.segments()
    if clean:
        engine.close()
    copy = crash(root, tmp_path / "copy")
    path = directory(copy) / f"{rows[number].base_offset:020}.log"
    harm(path)
    with pytest.raises(PartitionCorrupt, match=f"{path.name}.*(missing|bytes).*restore"):
        reopen(copy)


def test_a_log_shorter_than_the_recovery_point_stops_the_open(root: Path, tmp_path: Path):
    log = reopen(root, ONE)
    fill(log, 5)
    log.sync()
    copy = crash(root, tmp_path / "copy")
    path = directory(copy) / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[: log.size_bytes - 1])
    with pytest.raises(PartitionCorrupt, match="were durable"):
        reopen(copy, ONE)


@pytest.mark.parametrize("at", [8, 16, 57])
def test_damage_that_is_read_stops_the_partition(root: Path, at: int):
    """I9: a bad header before the recovery point is an error, never a shorter log."""
    log = three_segments(root)
    log.close()
    flip(directory(root) / f"{0:020}.log", len(make_batch(0, size=60)) + at)
    again = reopen(root)
    assert again.end_offset == 50
    with pytest.raises(PartitionCorrupt, match="restore"):
        read_all(again)
    with pytest.raises(PartitionCorrupt):
        append(again, make_batch(50))
    with pytest.raises(PartitionStopped):
        again.sync()
    with pytest.raises(PartitionCorrupt):
        again.read(0, 100, 50)


# What can be rebuilt.


def damage_nothing(path: Path) -> None:
    assert path.exists()


def damage_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def damage_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("extension", ["index", "timeindex", "topics"])
@pytest.mark.parametrize(
    "harm", [damage_nothing, Path.unlink, damage_middle, damage_short, damage_empty]
)
@pytest.mark.parametrize("clean", [True, False])
def test_missing_and_damaged_index_files_are_rebuilt(
    root: Path, tmp_path: Path, extension: str, harm: Callable[[Path], None], clean: bool
):
    engine = SegmentEngine(root)
    log = engine.open(KEY, SETTINGS)
    for offset in range(60):
        topic = b"t/%d" % (offset % 4)
        append(log, make_batch(offset, topic=topic, size=60, timestamp_ms=1000 + offset))
    log.sync()
    if clean:
        engine.close()
    copy = crash(root, tmp_path / "copy")
    harmed = sorted(directory(copy).glob(f"*.{extension}"))
    assert len(harmed) >= 3
    for path in harmed:
        harm(path)
    again = reopen(copy)
    for offset in (0, 1, 17, 33, 59):
        assert spans(in_place(again, partial(again.read, offset, 1, 60))) == [(offset, offset)]
        assert in_place(again, partial(again.offset_for_time, 1000 + offset)) == offset
    expected = list(range(1, 60, 4))
    look = partial(again.offsets_of_topic, topic_hash(b"t/1"), 0, 60, 100)
    assert in_place(again, look) == expected
    fill(again, 3)
    again.close()
    assert firsts(reopen(copy)) == list(range(63))


def test_a_rebuilt_index_is_written_down(root: Path):
    log = three_segments(root)
    log.close()
    path = directory(root) / f"{0:020}.index"
    intact = path.read_bytes()
    flip(path, 9)
    again = reopen(root)
    assert spans(in_place(again, partial(again.read, 3, 1, 50))) == [(3, 3)]
    assert path.read_bytes() == intact


def test_an_index_entry_that_lies_is_found_out(root: Path):
    """An index is checked against the log even where its file's CRC was never looked at again."""
    log = reopen(root, ONE)
    fill(log, 50, size=60)
    live = log._held.active.indexes.live
    assert live is not None
    assert len(live.offsets) > 5
    live.offsets[3] += 1 << 32
    for offset in range(50):
        assert spans(in_place(log, partial(log.read, offset, 1, 50))) == [(offset, offset)]


@pytest.mark.parametrize("which", ["older", "newer", "both", "missing"])
def test_a_damaged_checkpoint_loses_no_records(root: Path, tmp_path: Path, which: str):
    log = three_segments(root)
    fill(log, 20, size=60)
    log.sync()
    copy = crash(root, tmp_path / "copy")
    files = sorted(directory(copy).glob("checkpoint.*"), key=lambda path: path.read_bytes()[12])
    assert len(files) == 2
    for path in {"older": files[:1], "newer": files[1:]}.get(which, files):
        if which == "missing":
            path.unlink()
        else:
            flip(path, 30)
    again = reopen(copy)
    assert firsts(again) == list(range(70))
    fill(again, 1)
    again.close()
    assert firsts(reopen(copy)) == list(range(71))


def test_damage_and_no_checkpoint_stops_the_open(root: Path, tmp_path: Path):
    """I9: without a recovery point a bad batch in an old segment cannot be called a torn tail."""
    log = three_segments(root)
    copy = crash(root, tmp_path / "copy")
    for path in directory(copy).glob("checkpoint.*"):
        flip(path, 30)
    flip(directory(copy) / f"{0:020}.log", 100)
    with pytest.raises(PartitionCorrupt, match="checkpoint"):
        reopen(copy)
    assert (directory(copy) / f"{log.segments()[1].base_offset:020}.log").exists()


def test_a_clock_that_goes_backwards_neither_rolls_wildly_nor_crashes(root: Path):
    clock = ManualClock()
    settings = LogSettings(segment_age_ms=60_000)
    log = SegmentEngine(root, clock).open(KEY, settings)
    now = clock.now_ms()
    for jump in (0, -10_000_000, -9_000_000_000, -9_000_000_001, -9_000_000_000):
        clock.set_wall_ms(now + jump)
        fill(log, 2)
    assert len(log.segments()) == 1
    clock.set_wall_ms(now)
    fill(log, 2)
    assert len(log.segments()) == 2
    fill(log, 20)
    assert len(log.segments()) == 2
    assert firsts(log) == list(range(32))
