"""Sends frozen files to a store of backups: only pieces that are not there yet, then the manifest.

Rules:
- A file is sent in pieces of `PIECE_BYTES`. Small ones go together into one object, and SHA-256 of
  their bytes names them. A large one is an object, which is named by its file (path and inode),
  its place there and its CRC-32C: bytes of a log never change in place, and a file that replaces
  another is a new inode. So nobody can make two pieces pass for one, and no byte is hashed slowly.
- Names come from what is sent, so what an interrupted backup has sent is used by the next one.
- A sealed file that the newest backup knows by inode, time and size is not read again.
- An object that no manifest names is compared before it is used, and only while it is young:
  pruning takes the old ones.
- Only as many pieces are on their way as the store takes `at_once`. The manifest comes last, after
  a flush.
- A mark in the store says that the backup runs, so that nothing of it is pruned (`marks.py`).
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onelog.backup.disk import read_part
from onelog.backup.manifest import (
    BackupManifest,
    BackupPartition,
    BackupSummary,
    FileRow,
    PieceRow,
    encode_manifest,
    manifest_name,
    object_name,
)
from onelog.backup.marks import RunningMark
from onelog.backup.repository import GRACE_MS, PIECE_BYTES, Repository, now_ms
from onelog.base import faults
from onelog.base.errors import Conflict, StorageError
from onelog.kernel import crc32c

PACKED_BELOW: Final = 1024 * 1024
"""Pieces below this size share an object."""
PACK_BYTES: Final = 8 * 1024 * 1024


class BackupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup is to hold; written by the broker, read by the process that sends."""

    summary: BackupSummary
    url: str
    options: dict[str, str]
    root: str
    """The folder of the frozen files."""
    partitions: tuple[BackupPartition, ...]
    files: dict[str, int]
    """Names below the root, and how many bytes of each count."""
    bytes_per_s: int = 0
    """How fast files are read at most; 0: as fast as it goes."""


class SentCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How far a backup is."""

    files: int
    size_bytes: int
    done_bytes: int
    new_bytes: int


@dataclass(slots=True)
class _Open:
    """A file whose pieces are under way."""

    path: str
    size_bytes: int
    identity: tuple[int, int]
    pieces: list[PieceRow | None] = field(default_factory=list)


class _Packed(NamedTuple):
    """A small piece that waits for others."""

    row: _Open
    number: int
    name: bytes
    data: bytes


class _Part(NamedTuple):
    """Bytes of an open file."""

    file: int
    position: int
    size_bytes: int


def _bytes_of(data: bytearray | _Part) -> bytearray:
    return read_part(*data) if isinstance(data, _Part) else data


class Sending:
    """One backup on its way."""

    def __init__(
        self, plan: BackupPlan, repository: Repository, report: Callable[[SentCounts], None]
    ) -> None:
        self._plan = plan
        self._repository = repository
        self._report = report
        self._total = sum(plan.files.values())
        self._done = 0
        self._begun = 0
        """Bytes of the pieces that were begun."""
        self._new = 0
        self._lock = threading.Lock()
        self._known: dict[bytes, PieceRow] = {}
        """Pieces of the newest backup by name."""
        self._same: dict[tuple[str, int, tuple[int, int]], tuple[PieceRow, ...]] = {}
        """Files of the newest backup that need not be read, if they are the same."""
        self._there: set[str] = set()
        """Objects that a manifest names, or that were sent by this backup."""
        self._unsure: set[str] = set()
        """Objects that an interrupted backup sent: a power cut may have damaged them."""
        self._pack: list[_Packed] = []
        """Small pieces that wait."""
        self._pack_bytes = 0
        self._began_s = time.monotonic()
        self._mark = RunningMark(repository.store, plan.summary.id)

    def run(self) -> BackupManifest:
        """Send everything; the manifest of the backup, which then exists. Raises OnelogError."""
        with self._mark.standing():
            return self._run()

    def _run(self) -> BackupManifest:
        self._look()
        rows: list[_Open] = []
        at_once = self._repository.store.at_once
        with ThreadPoolExecutor(at_once) as threads:
            jobs: set[Future[None]] = set()
            try:
                for row, number, position, size in self._pieces(rows):
                    if len(jobs) >= at_once:
                        done, jobs = wait(jobs, return_when=FIRST_COMPLETED)
                        for job in done:
                            job.result()
                    jobs.add(threads.submit(self._send, row, number, position, size))
                for job in jobs:
                    job.result()
            except BaseException:
                threads.shutdown(wait=True, cancel_futures=True)
                raise
        self._send_pack(self._take_pack())
        faults.hit("backup.sent")
        return self._finish(rows)

    def _look(self) -> None:
        newest = self._repository.newest()
        if newest is not None:
            for row in newest.files:
                self._same[row.path, row.size_bytes, row.identity] = row.pieces
                self._known.update((piece.name, piece) for piece in row.pieces)
        named = {} if newest is None else newest.objects()
        young = now_ms() - GRACE_MS // 2
        lost = set(named)
        for found in self._repository.store.list("objects"):
            if found.size_bytes >= named.get(found.name, found.size_bytes + 1):
                lost.discard(found.name)
                self._there.add(found.name)
            elif found.modified_ms > young:
                self._unsure.add(found.name)
        if lost:  # they are sent again: the newest backup is whole again after this one
            self._known = {
                name: row
                for name, row in self._known.items()
                if object_name(row.object) not in lost
            }
            self._same = {
                key: pieces
                for key, pieces in self._same.items()
                if not any(object_name(row.object) in lost for row in pieces)
            }

    def _pieces(self, rows: list[_Open]) -> Iterator[tuple[_Open, int, int, int]]:
        """The pieces that are to be read: file, number, position, bytes."""
        for path, size_bytes in sorted(self._plan.files.items()):
            state = self._source(path).stat()
            row = _Open(path, size_bytes, (state.st_ino, state.st_mtime_ns))
            rows.append(row)
            same = self._same.get((path, size_bytes, row.identity))
            if same is not None:
                row.pieces = list(same)
                self._count(size_bytes, 0)
                continue
            row.pieces = [None] * -(-size_bytes // PIECE_BYTES)
            for number in range(len(row.pieces)):
                position = number * PIECE_BYTES
                yield row, number, position, min(PIECE_BYTES, size_bytes - position)

    def _source(self, path: str) -> Path:
        return Path(self._plan.root, path)

    def _send(self, row: _Open, number: int, position: int, size: int) -> None:
        """In a thread: send one piece, unless it is there."""
        self._pace(size)
        try:
            faults.hit("backup.read")
            with self._source(row.path).open("rb") as file:
                if size < PACKED_BELOW:
                    self._send_small(row, number, bytes(read_part(file.fileno(), position, size)))
                else:
                    self._send_large(row, number, file.fileno(), position, size)
        except OSError as error:
            raise StorageError(
                f"{self._source(row.path)} cannot be read ({error}): check the disk of the broker"
            ) from error

    def _send_large(self, row: _Open, number: int, file: int, position: int, size: int) -> None:
        if os.fstat(file).st_size < position + size:
            raise OSError(errno.EIO, f"the file is shorter than {position + size} bytes")
        with mmap.mmap(file, size, prot=mmap.PROT_READ, offset=position) as mapped:
            crc = crc32c(mapped)
        place = f"{row.path}\0{row.identity[0]}\0{position}\0{size}\0{crc}"
        name = hashlib.sha256(place.encode()).digest()
        if not self._use(row, number, name, size):
            self._put(name, size, _Part(file, position, size))
            row.pieces[number] = PieceRow(name, 0, size, crc, name)
            self._count(size, 0)

    def _use(self, row: _Open, number: int, name: bytes, size: int) -> bool:
        """Use a piece of the newest backup, if it is there."""
        known = self._known.get(name)
        if known is None:
            return False
        row.pieces[number] = known
        self._count(size, 0)
        return True

    def _send_small(self, row: _Open, number: int, data: bytes) -> None:
        name = hashlib.sha256(data).digest()
        if self._use(row, number, name, len(data)):
            return
        with self._lock:
            self._pack.append(_Packed(row, number, name, data))
            self._pack_bytes += len(data)
            full = self._take_pack() if self._pack_bytes >= PACK_BYTES else []
        self._send_pack(full)

    def _take_pack(self) -> list[_Packed]:
        taken, self._pack, self._pack_bytes = self._pack, [], 0
        return taken

    def _send_pack(self, pieces: list[_Packed]) -> None:
        if not pieces:
            return
        places: dict[bytes, int] = {}
        packed = bytearray()
        for piece in pieces:
            if piece.name not in places:
                places[piece.name] = len(packed)
                packed += piece.data
        name = hashlib.sha256(packed).digest()
        self._put(name, len(packed), packed)
        for row, number, own, data in pieces:
            row.pieces[number] = PieceRow(name, places[own], len(data), crc32c(data), own)
            self._count(len(data), 0)

    def _put(self, digest: bytes, size: int, data: bytearray | _Part) -> None:
        name = object_name(digest)
        if name in self._there:
            return
        store = self._repository.store
        if name in self._unsure and store.get(name) == _bytes_of(data):
            self._there.add(name)
            return
        if isinstance(data, _Part):
            store.put_part(name, *data)
        else:
            store.put(name, data)
        self._there.add(name)
        self._count(0, size)

    def _count(self, done: int, new: int) -> None:
        with self._lock:
            self._done += done
            self._new += new
            counts = SentCounts(
                files=len(self._plan.files),
                size_bytes=self._total,
                done_bytes=self._done,
                new_bytes=self._new,
            )
        self._report(counts)

    def _pace(self, size: int) -> None:
        """Wait until the pieces before this one may be done, whenever they are sent."""
        if self._plan.bytes_per_s:
            with self._lock:
                due_s = self._began_s + self._begun / self._plan.bytes_per_s
                self._begun += size
            time.sleep(max(0.0, due_s - time.monotonic()))

    def _finish(self, rows: list[_Open]) -> BackupManifest:
        files = []
        for row in rows:
            pieces = tuple(piece for piece in row.pieces if piece is not None)
            assert len(pieces) == len(row.pieces), f"a piece of {row.path} was not sent"
            files.append(FileRow(row.path, row.size_bytes, row.identity, pieces))
        summary = msgspec.structs.replace(
            self._plan.summary,
            done_ms=now_ms(),
            files=len(files),
            size_bytes=self._total,
            new_bytes=self._new,
        )
        manifest = BackupManifest(
            summary=summary, partitions=self._plan.partitions, files=tuple(files)
        )
        store = self._repository.store
        store.flush()
        faults.hit("backup.flushed")
        self._mark.check()
        store.put(manifest_name(summary.id), encode_manifest(manifest))
        try:
            self._mark.check()  # the machine may have slept at the manifest itself
        except Conflict:
            store.delete([manifest_name(summary.id)])
            raise
        store.flush()
        return manifest
