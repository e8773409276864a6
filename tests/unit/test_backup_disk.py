"""Files of a backup are filled step by step, and synced once for all."""

from __future__ import annotations

import errno
import os

import pytest

from onelog.backup import disk, stores
from onelog.backup.disk import STEP_BYTES, copy_part, write_all
from onelog.backup.stores import FolderBackups
from onelog.base.errors import StorageError

DATA = os.urandom(2 * STEP_BYTES + 12_345)


@pytest.fixture
def target(tmp_path):
    descriptor = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def written(target: int) -> bytes:
    return os.pread(target, 10 * len(DATA), 0)


@pytest.fixture
def asked(monkeypatch):
    """What the disk was asked, in order, and how many bytes the file had then."""
    found: list[tuple[int, int, int, int]] = []
    real = disk._ask_disk

    def note(what: int, file: int, position: int, size_bytes: int) -> None:
        found.append((what, position, size_bytes, os.fstat(file).st_size))
        real(what, file, position, size_bytes)

    monkeypatch.setattr(disk, "_ask_disk", note)
    return found


BEGIN, FINISH = disk._BEGIN, disk._FINISH
IN_STEPS = [
    (BEGIN, 0, STEP_BYTES, STEP_BYTES),
    (BEGIN, STEP_BYTES, STEP_BYTES, 2 * STEP_BYTES),
    (FINISH, 0, STEP_BYTES, 2 * STEP_BYTES),
    (BEGIN, 2 * STEP_BYTES, 12_345, len(DATA)),
    (FINISH, STEP_BYTES, STEP_BYTES, len(DATA)),
    (FINISH, 2 * STEP_BYTES, 12_345, len(DATA)),
]
"""The disk has the first step before the third begins."""


def test_a_file_is_written_in_steps_of_which_the_disk_has_two_at_most(target, asked):
    write_all(DATA, target)
    assert written(target) == DATA
    assert asked == IN_STEPS


def test_a_part_of_a_file_is_copied_in_steps(target, tmp_path, asked):
    (tmp_path / "source").write_bytes(b"head" + DATA + b"tail")
    with (tmp_path / "source").open("rb") as source:
        copy_part(source.fileno(), 4, len(DATA), target)
    assert written(target) == DATA
    assert asked == IN_STEPS


@pytest.mark.parametrize("size", [0, 1, STEP_BYTES, STEP_BYTES + 1])
def test_nothing_is_left_with_the_disk(target, asked, size):
    write_all(DATA[:size], target)
    assert written(target) == DATA[:size]
    begun = [entry[1:3] for entry in asked if entry[0] == BEGIN]
    assert begun == [entry[1:3] for entry in asked if entry[0] == FINISH]
    assert sum(part for _, part in begun) == size


def test_without_ranges_each_step_is_synced(target, monkeypatch):
    synced = []
    monkeypatch.setattr(disk, "_range_sync", None)
    monkeypatch.setattr(os, "fsync", synced.append)
    write_all(DATA, target)
    assert synced == [target] * 3


def test_where_the_system_cannot_copy_bytes_are_read_and_written(target, tmp_path, monkeypatch):
    def refuse(*_args: object) -> int:
        raise OSError(errno.EXDEV, "two file systems")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    (tmp_path / "source").write_bytes(DATA)
    with (tmp_path / "source").open("rb") as source:
        copy_part(source.fileno(), 0, len(DATA), target)
    assert written(target) == DATA


def test_a_disk_that_cannot_write_a_step_ends_the_backup(tmp_path, monkeypatch):
    def fail(*_args: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(disk, "_ask_disk", fail)
    with pytest.raises(StorageError, match="cannot be written"):
        FolderBackups(tmp_path).put("objects/a", DATA)
    assert not any(path.is_file() for path in tmp_path.rglob("*")), "nothing is left half written"


def test_a_flush_syncs_every_file_and_its_folders_once(tmp_path, monkeypatch):
    synced: list[str] = []
    monkeypatch.setattr(stores, "_sync", lambda path: synced.append(path.name))
    store = FolderBackups(tmp_path / "store")
    for name in ("objects/aa/1", "objects/aa/2", "objects/aa/3"):
        store.put(name, DATA)
    store.delete(["objects/aa/3"])
    assert synced == [], "puts leave it to the flush"
    store.flush()
    assert sorted(synced[:2]) == ["1", "2"], "files before the folders that name them"
    assert {"aa", "objects", "store"} <= set(synced[2:])
    store.flush()
    assert len(synced) == len(set(synced)), "nothing is synced twice"
