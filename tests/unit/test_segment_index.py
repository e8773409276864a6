"""Do the sparse index, the topic tail and the checkpoint files hold what they are given?"""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.base import faults
from onelog.base.errors import InvalidRequest
from onelog.kernel import check_topic_chunks, lookup_topic_chunks
from onelog.storage.segment.checkpoint import (
    Checkpoint,
    CheckpointFile,
    SegmentRow,
    empty_checkpoint,
)
from onelog.storage.segment.index import SparseIndex, time_floor
from onelog.storage.segment.state import load_state, save_state
from onelog.storage.segment.topics import CHUNK_ENTRIES, TopicTail


@given(st.lists(st.integers(-1, 50), min_size=1, max_size=60), st.integers(0, 60))
def test_no_batch_before_the_time_floor_reaches_the_time(stamps: list[int], wanted: int):
    index, highest, every = SparseIndex(), -1, 3
    for at, stamp in enumerate(stamps):
        highest = max(highest, stamp)
        if at * 10 >= index.next_at:
            index.add(at, at * 10, highest, every * 10)
    floor = time_floor(index.offsets, index.times, wanted) // 10
    found = next((at for at, stamp in enumerate(stamps) if stamp >= wanted), len(stamps))
    assert floor <= found
    assert found == len(stamps) or found - floor <= every


def test_an_index_comes_back_from_its_files_as_it_was(tmp_path: Path):
    index, stem = SparseIndex(), str(tmp_path / "x")
    for at in range(100):
        index.add(at * 7, at * 5000, 1000 + at, 4096)
        if at % 30 == 0:
            index.save(stem)
    index.save(stem)
    again = SparseIndex()
    files = [Path(stem + name).read_bytes() for name in (".index", ".timeindex")]
    again.restore(*files, 4096)
    assert (again.offsets, again.times) == (index.offsets, index.times)
    assert again.next_at == index.next_at
    assert again.sums() == index.sums()


def pairs(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<II", *entry) for entry in entries)


runs = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=6), st.booleans(), st.booleans()), max_size=12
)


@given(runs, st.integers(1, 300))
def test_a_topic_tail_finds_what_it_holds_whenever_it_is_asked_or_saved(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[int], bool, bool]], repeat: int
):
    stem = str(tmp_path_factory.mktemp("topics") / "x")
    tail, rel = TopicTail(), 0
    model: dict[int, list[int]] = {key: [] for key in range(4)}
    for keys, ask, save in steps:
        many = keys * (repeat if rel % 2 else 1)  # short runs and long ones
        tail.add([(pairs(*((key, at) for at, key in enumerate(many))), rel)])
        for at, key in enumerate(many):
            model[key].append(rel + at)
        rel += len(many)
        if ask:
            assert lookup(tail, stem, 1) == model[1]
        if save:
            tail.save(stem)
    for key, expected in model.items():
        assert lookup(tail, stem, key) == expected
        assert lookup(tail, stem, key, rel_min=5, limit=3) == [r for r in expected if r >= 5][:3]


def lookup(
    tail: TopicTail, stem: str, key: int, rel_min: int = 0, limit: int = 100_000
) -> list[int]:
    waiting = tail.lookup(key, rel_min, limit)
    saved = b""
    if tail.saved_bytes:
        saved = Path(stem + ".topics").read_bytes()[: tail.saved_bytes]
        assert check_topic_chunks(saved, len(saved)) == len(saved)
    found = lookup_topic_chunks(saved, len(saved), key, rel_min, limit)
    return sorted({*found, *waiting})[:limit]


def test_a_topic_tail_asks_to_be_saved_when_it_is_full():
    tail = TopicTail()
    run = [(pairs((1, 0)), 0)]
    assert not any(tail.add(run) for _ in range(CHUNK_ENTRIES - 1))
    assert tail.add(run)


def test_entries_that_wait_cost_their_bytes_and_not_an_object_each():
    """The active segment of every partition has up to a whole chunk of them waiting."""
    tail, count = TopicTail(), CHUNK_ENTRIES - 1
    tracemalloc.start()
    try:
        for rel in range(count):
            tail.add([(struct.pack("<II", rel % 7, 0), rel)])
        held_bytes, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 16 * count
    assert tail.lookup(3, 100, 4) == [101, 108, 115, 122]


def test_entries_that_cannot_be_written_stay_in_memory(tmp_path: Path):
    tail = TopicTail()
    tail.add([(pairs((1, 0), (2, 1)), 40)])
    with pytest.raises(OSError, match="No such file"):
        tail.save(str(tmp_path / "missing" / "x"))
    tail.add([(pairs((1, 0)), 50)])
    assert tail.lookup(1, 0, 10) == [40, 50]
    stem = str(tmp_path / "x")
    tail.save(stem)
    assert lookup(tail, stem, 1) == [40, 50]


def test_the_newest_intact_checkpoint_counts(tmp_path: Path):
    box = CheckpointFile(str(tmp_path))
    assert box.load() == (None, False)
    for end in range(5):
        row = SegmentRow(0, 100 * end, index_bytes=8)
        box.save(Checkpoint(1, 0, end, (row, row), row))
        found, damaged = CheckpointFile(str(tmp_path)).load()
        assert found is not None
        assert (found.end_offset, damaged) == (end, False)
        assert found.sealed == (row, row)


@pytest.mark.parametrize("at", [0, 5, 9, 13, 21, 30])
def test_a_damaged_checkpoint_leaves_the_one_before_it(tmp_path: Path, at: int):
    box = CheckpointFile(str(tmp_path))
    box.save(empty_checkpoint(1))
    box.save(empty_checkpoint(2))
    newest = tmp_path / "checkpoint.0"
    data = bytearray(newest.read_bytes())
    data[at] ^= 1
    newest.write_bytes(data)
    again = CheckpointFile(str(tmp_path))
    found, damaged = again.load()
    assert found == empty_checkpoint(1)
    assert not damaged
    again.save(empty_checkpoint(3))
    assert CheckpointFile(str(tmp_path)).load() == (empty_checkpoint(3), False)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    assert CheckpointFile(str(tmp_path)).load() == (None, True)


def test_a_checkpoint_that_was_not_written_does_not_count(tmp_path: Path):
    box = CheckpointFile(str(tmp_path))
    box.save(empty_checkpoint(1))
    faults.arm("segment.checkpoint", faults.fail_with(28))
    try:
        with pytest.raises(OSError, match="space"):
            box.save(empty_checkpoint(2))
    finally:
        faults.disarm()
    assert CheckpointFile(str(tmp_path)).load()[0] == empty_checkpoint(1)


def test_a_damaged_state_falls_back_to_the_one_before_it(tmp_path: Path):
    for offset in (1, 5, 9):
        save_state(str(tmp_path), "producers", offset, b"state %d" % offset)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"{5:020}.producers.state", f"{9:020}.producers.state"]
    assert load_state(str(tmp_path), "producers", 9) == (9, b"state 9")
    assert load_state(str(tmp_path), "producers", 8) == (5, b"state 5")
    newest = tmp_path / names[1]
    newest.write_bytes(newest.read_bytes()[:-1])
    assert load_state(str(tmp_path), "producers", 9) == (5, b"state 5")


@pytest.mark.parametrize("name", ["", "a/b", "A", "a.b", "x" * 65])
def test_a_state_name_that_cannot_be_a_file_name_is_refused(tmp_path: Path, name: str):
    with pytest.raises(InvalidRequest):
        save_state(str(tmp_path), name, 0, b"")
