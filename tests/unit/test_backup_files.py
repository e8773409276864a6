"""Files in a store of backups: what is sent, what is used again, what damage is found."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from onelog.backup import repository as repository_module
from onelog.backup import sending
from onelog.backup.fetching import fetch
from onelog.backup.manifest import BackupManifest, FileRow, decode_manifest, encode_manifest, new_id
from onelog.backup.marks import mark_name
from onelog.backup.repository import GRACE_MS, now_ms
from onelog.backup.stores import FolderBackups, open_backup_store
from onelog.base import faults
from onelog.base.errors import Conflict, InvalidRequest, NotFound, StorageError, StorageFull
from onelog.cli.main import run
from tests.support.backups import (
    POINT_MS,
    flip,
    plan_of,
    quiet,
    repository_in,
    send,
    sent_files,
)

PIECE = 64 * 1024
LATER_MS = POINT_MS + 60_000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces so small that a test has many."""
    monkeypatch.setattr(sending, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(sending, "PACKED_BELOW", 4096)
    monkeypatch.setattr(sending, "PACK_BYTES", 16_384)
    yield
    faults.disarm()


@pytest.fixture
def root(tmp_path):
    """A folder with a large file, a middling one and many small ones."""
    folder = tmp_path / "data"
    (folder / "segment/s-1/0").mkdir(parents=True)
    (folder / "segment/s-1/0/0.log").write_bytes(os.urandom(3 * PIECE + 100))
    (folder / "segment/s-1/0/1.log").write_bytes(os.urandom(5000))
    for number in range(40):
        (folder / f"small{number}").write_bytes(os.urandom(100 * number))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_what_was_sent_is_fetched_byte_for_byte(root, tmp_path):
    manifest = send(root, tmp_path / "store")
    found = repository_in(tmp_path / "store").newest()
    assert found == manifest
    fetch(repository_in(tmp_path / "store"), found, tmp_path / "again", quiet, {})
    assert contents(tmp_path / "again") == contents(root)
    assert not repository_in(tmp_path / "store").verify([found]).problems


def test_small_files_share_objects(root, tmp_path):
    send(root, tmp_path / "store")
    objects = [name for name in sent_files(tmp_path / "store") if name.startswith("objects/")]
    assert len(objects) <= 4 + 1 + sum(100 * n for n in range(40)) // 16_384 + 1


def test_a_second_backup_sends_only_new_bytes(root, tmp_path):
    store = tmp_path / "store"
    send(root, store)
    before = sent_files(store)
    with (root / "segment/s-1/0/0.log").open("ab") as file:
        file.write(b"x" * 10)  # an active segment that has grown
    (root / "segment/s-1/0/2.log").write_bytes(b"y" * 5000)
    manifest = send(root, store, LATER_MS)
    new = {name: size for name, size in sent_files(store).items() if name not in before}
    bytes_new = sum(size for name, size in new.items() if name.startswith("objects/"))
    assert bytes_new == manifest.summary.new_bytes == 100 + 10 + 5000


def test_files_that_did_not_change_are_not_read_again(root, tmp_path):
    send(root, tmp_path / "store")
    reads = []
    faults.arm("backup.read", lambda: reads.append(1))
    manifest = send(root, tmp_path / "store", LATER_MS)
    assert not reads
    assert manifest.summary.new_bytes == 0
    (root / "small7").write_bytes(os.urandom(700))
    send(root, tmp_path / "store", LATER_MS + 1000)
    assert len(reads) == 1


def test_bytes_beyond_those_that_count_are_not_sent(tmp_path):
    root, store = tmp_path / "data", tmp_path / "store"
    root.mkdir()
    (root / "log").write_bytes(b"a" * 5000 + b"b" * 5000)
    plan = plan_of(root, str(store), log=5000)
    manifest = sending.Sending(plan, repository_in(store), lambda _: None).run()
    fetch(repository_in(store), manifest, tmp_path / "again", quiet, {})
    assert (tmp_path / "again/log").read_bytes() == b"a" * 5000


@pytest.mark.parametrize("kind", ["flipped", "short", "gone"])
def test_damage_in_any_file_is_found_and_nothing_of_it_is_restored(root, tmp_path, kind):
    store = tmp_path / "store"
    send(root, store)
    for name, size in sent_files(store).items():
        path = store / name
        whole = path.read_bytes()
        if kind == "flipped":
            flip(path, size // 2)
        elif kind == "short":
            path.write_bytes(whole[:-1])
        else:
            path.unlink()
        repository = repository_in(store)
        if name.startswith("backups/"):
            assert repository.newest() is None
            with pytest.raises((StorageError, NotFound)):
                repository.load(name.removeprefix("backups/"))
        else:
            manifest = repository.newest()
            assert manifest is not None
            (problem, *_) = repository.verify([manifest]).problems
            assert name in problem
            with pytest.raises(StorageError, match=name):
                fetch(repository, manifest, tmp_path / "again", quiet, {})
        path.write_bytes(whole)
    assert not repository.verify([repository.newest()]).problems


def test_an_object_that_is_lost_is_sent_again_by_the_next_backup(root, tmp_path):
    store = tmp_path / "store"
    first = send(root, store)
    for name in [row for row in sent_files(store) if row.startswith("objects/")][::2]:
        (store / name).unlink()
    second = send(root, store, LATER_MS)
    assert not repository_in(store).verify([second]).problems
    assert len(repository_in(store).ids()) == 2
    assert first.summary.id < second.summary.id


@pytest.mark.parametrize("point", ["backup.put", "backup.read", "backup.sent", "backup.flushed"])
@pytest.mark.parametrize("after", [0, 3])
def test_an_interrupted_backup_leaves_older_ones_whole_and_is_no_backup(
    root, tmp_path, point, after
):
    store = tmp_path / "store"
    first = send(root, store)
    with (root / "segment/s-1/0/0.log").open("ab") as file:
        file.write(os.urandom(4 * PIECE))
    (root / "segment/s-1/0/1.log").write_bytes(os.urandom(5000))
    hits = 0 if point in ("backup.sent", "backup.flushed") else after
    faults.arm(point, faults.fail_with(5, hits))
    with pytest.raises((StorageError, OSError)):
        send(root, store, LATER_MS)
    faults.disarm()
    repository = repository_in(store)
    assert repository.ids() == [first.summary.id]
    assert not repository.verify([first]).problems
    third = send(root, store, LATER_MS)
    assert not repository.verify([third]).problems
    # What the interrupted one sent is used: together they sent nothing twice.
    total = sum(size for name, size in sent_files(store).items() if name.startswith("objects/"))
    assert total <= first.summary.new_bytes + 4 * PIECE + 5000 + 16_384


def test_what_an_interrupted_backup_sent_is_compared_before_it_is_used(root, tmp_path):
    store = tmp_path / "store"
    faults.arm("backup.sent", faults.fail_with(5))
    with pytest.raises(OSError, match="Input"):
        send(root, store)
    faults.disarm()
    for name, size in sent_files(store).items():
        (store / name).write_bytes(bytes(size))  # as a power cut leaves it
    manifest = send(root, store)
    assert not repository_in(store).verify([manifest]).problems


def test_a_full_disk_says_what_to_do(root, tmp_path):
    faults.arm("backup.put", faults.fail_with(28, 2))
    with pytest.raises(StorageFull, match="onelog backup prune"):
        send(root, tmp_path / "store")
    assert not [name for name in sent_files(tmp_path / "store") if name.endswith(".tmp")]


def test_a_folder_that_may_not_be_written_says_what_to_do(root, tmp_path):
    faults.arm("backup.put", faults.fail_with(13))
    with pytest.raises(StorageError, match="give the user of this process"):
        send(root, tmp_path / "store")


def test_pieces_in_memory_are_bounded(root, tmp_path, monkeypatch):
    (root / "large").write_bytes(os.urandom(30 * PIECE))
    now, most, lock = 0, 0, threading.Lock()
    put = FolderBackups._put

    def counted(self, name, fill):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        put(self, name, fill)
        with lock:
            now -= 1

    monkeypatch.setattr(FolderBackups, "_put", counted)
    send(root, tmp_path / "store")
    assert most <= repository_module.THREADS


def test_pruning_keeps_what_the_rest_needs(root, tmp_path):
    store = tmp_path / "store"
    send(root, store)
    (root / "segment/s-1/0/1.log").write_bytes(os.urandom(5000))
    second = send(root, store, LATER_MS)
    repository = repository_in(store)
    pruned = repository.prune(1, None, now_ms())
    assert len(pruned.backups) == 1
    assert pruned.objects == 0  # too young
    assert pruned.kept_objects == 1
    pruned = repository.prune(1, None, now_ms() + 2 * GRACE_MS)
    assert (pruned.backups, pruned.objects, pruned.size_bytes) == ((), 1, 5000)
    assert not repository.verify([second]).problems
    assert repository.ids() == [second.summary.id]


def age(folder: Path, hours: int) -> None:
    """Let everything below a folder be so old."""
    then_s = now_ms() / 1000 - hours * 3600
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then_s, then_s))


@pytest.mark.parametrize("point", ["backup.sent", "backup.flushed"])
def test_nothing_is_pruned_while_a_backup_runs_however_long(root, tmp_path, point):
    store = tmp_path / "store"
    refused = []

    def prune() -> None:
        age(store / "objects", 48)  # it sent them two days ago
        with pytest.raises(Conflict, match=r"under way \(process \d+ on .+backup cancel"):
            repository_in(store).prune(1, None, now_ms())
        refused.append(True)

    faults.arm(point, prune)
    manifest = send(root, store)
    faults.disarm()
    assert refused
    repository = repository_in(store)
    assert not repository.verify([manifest]).problems
    assert repository.prune(1, None, now_ms()) == ((), 0, 0, 0)
    assert not [name for name in sent_files(store) if name.startswith("running/")]


def test_a_backup_that_was_killed_does_not_hold_pruning_up_for_ever(root, tmp_path):
    store = tmp_path / "store"
    first = send(root, store)
    mark = store / mark_name(new_id(LATER_MS))
    mark.write_bytes(b"{}")  # and its process was killed
    repository = repository_in(store)
    with pytest.raises(Conflict, match="10 minutes after its last sign"):
        repository.prune(1, None, now_ms())
    assert repository.prune(1, None, now_ms(), dry_run=True).backups == ()
    age(store / "running", 1)
    assert repository.prune(1, None, now_ms()).backups == ()
    assert not mark.exists()
    assert not repository.verify([first]).problems


def test_a_backup_whose_mark_was_taken_for_dead_is_no_backup(root, tmp_path):
    store = tmp_path / "store"
    first = send(root, store)
    (root / "segment/s-1/0/1.log").write_bytes(os.urandom(5000))

    def sleep() -> None:  # the machine slept, and somebody pruned
        age(store, 48)
        assert repository_in(store).prune(1, None, now_ms()).objects > 0

    faults.arm("backup.flushed", sleep)
    with pytest.raises(Conflict, match="begin again"):
        send(root, store, LATER_MS)
    faults.disarm()
    assert repository_in(store).ids() == [first.summary.id]
    second = send(root, store, LATER_MS)
    assert not repository_in(store).verify([first, second]).problems


def test_a_mark_that_cannot_be_deleted_says_that_its_backup_ended(root, tmp_path, monkeypatch):
    def refuse(_self, _names):
        raise StorageError("no right to delete")

    with monkeypatch.context() as patched:
        patched.setattr(FolderBackups, "delete", refuse)
        send(root, tmp_path / "store")
    assert repository_in(tmp_path / "store").prune(1, None, now_ms()).backups == ()
    assert not list((tmp_path / "store/running").iterdir())


def test_pruning_by_age_keeps_younger_backups_and_a_dry_run_deletes_nothing(root, tmp_path):
    store = tmp_path / "store"
    for hours in range(4):
        send(root, store, POINT_MS + hours * 3_600_000)
    repository = repository_in(store)
    before_ms = POINT_MS + 2 * 3_600_000
    assert len(repository.prune(1, before_ms, now_ms(), dry_run=True).backups) == 2
    assert len(repository.ids()) == 4
    assert len(repository.prune(1, before_ms, now_ms()).backups) == 2
    assert len(repository.ids()) == 2
    with pytest.raises(InvalidRequest, match="at least one"):
        repository.prune(0, None, now_ms())


def test_nothing_is_pruned_beside_a_manifest_that_cannot_be_read(root, tmp_path):
    store = tmp_path / "store"
    first = send(root, store)
    send(root, store, LATER_MS)
    (store / "backups" / first.summary.id).write_bytes(b"OLB1 nonsense")
    with pytest.raises(StorageError, match="nothing is deleted"):
        repository_in(store).prune(1, None, now_ms() + 2 * GRACE_MS)
    assert len(repository_in(store).ids()) == 2


def test_the_newest_of_two_backups_in_one_second_is_the_later_one(root, tmp_path):
    for _ in range(8):
        store = tmp_path / f"store{_}"
        send(root, store, POINT_MS)
        second = send(root, store, POINT_MS + 1)
        assert repository_in(store).newest() == second
        assert repository_in(store).choose("", None) == second


def test_the_backup_for_a_moment_is_the_first_one_after_it(root, tmp_path):
    store = tmp_path / "store"
    ids = [send(root, store, POINT_MS + hours * 3_600_000).summary.id for hours in range(3)]
    choose = repository_in(store).choose
    assert choose("", None).summary.id == ids[2]
    assert choose("", POINT_MS + 1).summary.id == ids[1]
    assert choose(ids[0], None).summary.id == ids[0]
    with pytest.raises(NotFound, match="older than that"):
        choose("", POINT_MS + 3 * 3_600_000)
    with pytest.raises(NotFound, match="no backup"):
        repository_in(tmp_path / "empty").choose("", None)


@pytest.mark.parametrize("left", [b"", b"OLB1", b"x" * 100])
def test_a_backup_that_cannot_be_read_is_not_passed_over_in_silence(root, tmp_path, left):
    store, hour_ms = tmp_path / "store", 3_600_000
    ids = [send(root, store, POINT_MS + hours * hour_ms).summary.id for hours in range(4)]
    choose = repository_in(store).choose
    (store / "backups/README").write_text("a stranger's file")
    (store / "backups" / ids[1]).write_bytes(left)
    assert choose("", None).summary.id == ids[3]
    assert choose("", POINT_MS).summary.id == ids[0]
    assert choose("", POINT_MS + 3 * hour_ms).summary.id == ids[3]
    with pytest.raises(StorageError, match=f"{ids[1]} is damaged.*--id {ids[2]}"):
        choose("", POINT_MS + 1)
    (store / "backups" / ids[3]).write_bytes(left)
    with pytest.raises(StorageError, match=f"{ids[3]} is damaged.*--id {ids[2]}"):
        choose("", None)
    with pytest.raises(NotFound, match=f"older than that .*{ids[3]} is damaged"):
        choose("", POINT_MS + 3 * hour_ms)
    assert choose(ids[2], None).summary.id == ids[2]


def test_what_a_crash_left_half_written_goes_when_it_is_a_day_old(root, tmp_path):
    store = tmp_path / "store"
    backup = send(root, store).summary.id
    half = [store / f"backups/{backup}.0a0b0c0d.tmp", store / "objects/ab/ab.0a0b0c0d.tmp"]
    for path in half:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    assert repository_in(store).ids() == [backup]
    assert repository_in(store).prune(1, None, now_ms()).kept_objects == 2
    assert all(path.exists() for path in half)
    pruned = repository_in(store).prune(1, None, now_ms() + 2 * GRACE_MS)
    assert (pruned.objects, pruned.size_bytes) == (2, 8)
    assert not any(path.exists() for path in half)
    assert not repository_in(store).verify([repository_in(store).load(backup)]).problems


def test_files_that_go_while_they_are_listed_are_no_error(tmp_path):
    folder = tmp_path / "objects/ab"
    folder.mkdir(parents=True)
    for name in ("ab1", "ab2", "ab3.0a0b0c0d.tmp"):
        (folder / name).write_bytes(b"x")
    rows = FolderBackups(tmp_path).list("objects")
    next(rows)
    for path in folder.iterdir():  # pruning, and a backup that gives a file its name
        path.unlink()
    assert list(rows) == []


def test_a_manifest_that_names_files_outside_of_the_data_is_refused(root, tmp_path):
    manifest = send(root, tmp_path / "store")
    for name in ("../out", "/etc/out", "a/../../out"):
        row = FileRow(name, 0, (0, 0), ())
        bad = BackupManifest(summary=manifest.summary, partitions=(), files=(row,))
        assert decode_manifest("x", encode_manifest(bad)) == bad
        with pytest.raises(StorageError, match="outside"):
            fetch(repository_in(tmp_path / "store"), bad, tmp_path / "again", quiet, {})


@pytest.mark.parametrize(
    ("url", "options"),
    [("relative/path", {}), ("/folder", {"aws_region": "x"}), ("", {}), ("/a\0b", {})],
)
def test_a_url_that_can_never_work_is_refused(url, options):
    with pytest.raises(InvalidRequest):
        open_backup_store(url, options)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3:/bucket/x", "write s3://bucket/x"),
        ("s3:bucket", "write s3://bucket"),
        ("S3://bucket/x", "write s3://bucket/x"),
        ("file:/srv/x", "write file:///srv/x"),
        ("file://srv/x", "write file:///srv/x"),
        ("s4://bucket/x", "s4: is no store.*write s3://BUCKET/PREFIX"),
        ("memory://x", "memory: is no store"),
        ("C:\\backups", "whole path"),
    ],
)
def test_a_url_with_a_typo_is_no_folder(monkeypatch, tmp_path, capsys, url, told):
    with pytest.raises(InvalidRequest, match=told):
        open_backup_store(url, {})
    monkeypatch.chdir(tmp_path)  # where the command would have it as a folder
    assert run(["backup", "list", url], None) != 0
    assert re.search(told, " ".join(capsys.readouterr().err.split()))


@pytest.mark.parametrize("url", ["/srv/s3:/x", "file:///srv/x"])
def test_a_folder_may_have_a_colon_in_its_name(url):
    assert isinstance(open_backup_store(url, {}), FolderBackups)


def test_the_rate_is_kept(root, tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(sending.time, "sleep", slept.append)
    monkeypatch.setattr(sending.time, "monotonic", lambda: 100.0)
    plan = plan_of(root, str(tmp_path / "store"))
    plan = type(plan)(**{name: getattr(plan, name) for name in plan.__struct_fields__}
                      | {"bytes_per_s": 1000})  # fmt: skip
    sending.Sending(plan, repository_in(tmp_path / "store"), lambda _: None).run()
    assert max(slept) >= sum(plan.files.values()) / 1000 * 0.5
