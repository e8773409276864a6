"""How do the files of a partition leave: deleted, or set aside as damaged?"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.base import faults
from onelog.base.clock import ManualClock
from onelog.base.errors import StorageFull
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.segment import SegmentEngine
from onelog.storage.segment.leaving import ASIDE_MAX
from tests.logs import KEY

OTHER = PartitionKey(KEY.stream_id, 7)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(tmp_path: Path, clock: ManualClock) -> Iterator[SegmentEngine]:
    yield SegmentEngine(tmp_path, clock)
    faults.disarm()


def lose(engine: SegmentEngine, key: PartitionKey = KEY) -> None:
    engine.open(key, LogSettings()).close()
    engine.set_aside(key)


def kept(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("*/*.damaged"))


def test_the_newest_damaged_files_of_a_partition_are_kept(
    engine: SegmentEngine, tmp_path: Path, clock: ManualClock
) -> None:
    lose(engine, OTHER)
    others = kept(tmp_path)
    for _ in range(ASIDE_MAX + 2):
        lose(engine)  # at one moment: each has a name of its own
    begun = clock.now_ms()
    assert kept(tmp_path) == sorted([*others, f"0.{begun + 2}.damaged", f"0.{begun + 3}.damaged"])


def test_damaged_files_go_with_their_partition(engine: SegmentEngine, tmp_path: Path) -> None:
    lose(engine)
    engine.delete(KEY)
    assert not list(tmp_path.glob("*/*"))


def test_nothing_opens_damaged_files_after_a_restart(engine: SegmentEngine, tmp_path: Path) -> None:
    lose(engine)
    engine.close()
    again = SegmentEngine(tmp_path, ManualClock())
    assert again.partitions() == []
    assert len(kept(tmp_path)) == 1


def test_damaged_files_make_room_when_the_disk_is_full(
    engine: SegmentEngine, tmp_path: Path, clock: ManualClock
) -> None:
    lose(engine)
    clock.advance(1000)
    lose(engine, OTHER)
    (newer,) = (name for name in kept(tmp_path) if name.startswith("7."))
    faults.arm("segment.allocate", full_times(1))
    engine.check_room()
    assert kept(tmp_path) == [newer]
    faults.arm("segment.allocate", full_times(5))
    with pytest.raises(StorageFull):
        engine.check_room()
    assert kept(tmp_path) == []


def test_what_others_put_beside_a_partition_stays(engine: SegmentEngine, tmp_path: Path) -> None:
    lose(engine)
    (ours,) = kept(tmp_path)
    folder = tmp_path / KEY.stream_id
    (folder / "0.keep.damaged").mkdir()
    (folder / "x.1.damaged").mkdir()
    for name in ("why.damaged", "0.1.damaged", "why.deleted"):
        (folder / name).write_text("a note")
    faults.arm("segment.allocate", full_times(1))
    engine.check_room()
    others = ["0.1.damaged", "0.keep.damaged", "why.damaged", "x.1.damaged"]
    assert ours not in others
    assert kept(tmp_path) == others
    faults.arm("segment.allocate", full_times(1))
    with pytest.raises(StorageFull):
        engine.check_room()
    engine.close()
    SegmentEngine(tmp_path, ManualClock()).close()
    assert kept(tmp_path) == others
    assert (folder / "why.deleted").exists()


def test_the_folder_of_a_stream_stays_while_a_partition_is_made_in_it(
    engine: SegmentEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del tmp_path
    engine.open(OTHER, LogSettings()).close()
    make, deleted = os.mkdir, threading.Event()

    def slow(path: str, *args: int) -> None:
        if Path(path).name == str(KEY.partition):
            deleting.start()
            deleted.wait(0.5)  # the folder of the stream lies there, and is empty soon
        make(path, *args)

    def delete() -> None:
        engine.delete(OTHER)
        deleted.set()

    deleting = threading.Thread(target=delete)
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", slow)
        log = engine.open(KEY, LogSettings())
    deleting.join()
    log.close()
    assert engine.partitions() == [KEY]


def test_a_partition_without_files_is_deleted_while_the_folder_of_its_stream_goes(
    engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.open(OTHER, LogSettings()).close()
    scan = os.scandir

    def late(path: Path) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", scan)
            engine.delete(OTHER)
        return scan(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", late)
        engine.delete(KEY)
    assert engine.partitions() == []


def full_times(count: int) -> Callable[[], None]:
    """A disk that has no room so many times."""
    left = [errno.ENOSPC] * count

    def act() -> None:
        if left:
            faults.fail_with(left.pop())()

    return act
