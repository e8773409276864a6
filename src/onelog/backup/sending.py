"""Sends frozen files to a store of backups: only pieces that are not there yet, then the manifest.

Rules:
- A file is sent in pieces of `PIECE_BYTES`, each an object that its SHA-256 names. Small pieces go
  together into one object. Names come from content, so what an interrupted backup has sent is used
  by the next one.
- A sealed file that the newest backup knows by inode, time and size is not read again.
- An object that no manifest names is compared before it is used, and only while it is young:
  pruning takes the old ones.
- At most `THREADS` pieces are in memory at once. The manifest comes last, after a flush.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from onelog.backup.manifest import (
    BackupPartition,
    BackupSummary,
    FileRow,
    Manifest,
    PieceRow,
    encode_manifest,
    manifest_name,
    object_name,
)
from onelog.backup.repository import GRACE_MS, PIECE_BYTES, THREADS, Repository, now_ms
from onelog.base import faults
from onelog.base.errors import StorageError

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
        self._new = 0
        self._lock = threading.Lock()
        self._known: dict[bytes, PieceRow] = {}
        """Pieces of the newest backup by digest."""
        self._same: dict[tuple[str, int, tuple[int, int]], tuple[PieceRow, ...]] = {}
        """Files of the newest backup that need not be read, if they are the same."""
        self._there: set[str] = set()
        """Objects that a manifest names, or that were sent by this backup."""
        self._unsure: set[str] = set()
        """Objects that an interrupted backup sent: a power cut may have damaged them."""
        self._pack: list[tuple[_Open, int, bytes, bytes]] = []
        """Small pieces that wait: file, number, digest, bytes."""
        self._pack_bytes = 0
        self._began_s = time.monotonic()

    def run(self) -> Manifest:
        """Send everything; the manifest of the backup, which then exists. Raises OnelogError."""
        self._look()
        rows: list[_Open] = []
        with ThreadPoolExecutor(THREADS) as threads:
            jobs: set[Future[None]] = set()
            try:
                for row, number, position, size in self._pieces(rows):
                    if len(jobs) >= THREADS:
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
                self._known.update((piece.digest, piece) for piece in row.pieces)
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
                digest: row
                for digest, row in self._known.items()
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
        self._pace()
        data = self._read(row, position, size)
        digest = hashlib.sha256(data).digest()
        known = self._known.get(digest)
        if known is not None:
            row.pieces[number] = known
            self._count(size, 0)
            return
        if size < PACKED_BELOW:
            self._add_to_pack(row, number, digest, data)
            return
        self._put(digest, data)
        row.pieces[number] = PieceRow(digest, 0, size, digest)
        self._count(size, 0)

    def _read(self, row: _Open, position: int, size: int) -> bytes:
        try:
            faults.hit("backup.read")
            with self._source(row.path).open("rb") as file:
                data = os.pread(file.fileno(), size, position)
                while len(data) < size:
                    more = os.pread(file.fileno(), size - len(data), position + len(data))
                    if not more:
                        break
                    data += more
        except OSError as error:
            raise StorageError(
                f"{self._source(row.path)} cannot be read ({error}): check the disk of the broker"
            ) from error
        if len(data) < size:
            raise StorageError(
                f"{self._source(row.path)} ends at byte {position + len(data)}, and"
                f" {row.size_bytes} belong to it: check the disk of the broker"
            )
        return data

    def _add_to_pack(self, row: _Open, number: int, digest: bytes, data: bytes) -> None:
        with self._lock:
            self._pack.append((row, number, digest, data))
            self._pack_bytes += len(data)
            full = self._take_pack() if self._pack_bytes >= PACK_BYTES else []
        self._send_pack(full)

    def _take_pack(self) -> list[tuple[_Open, int, bytes, bytes]]:
        taken, self._pack, self._pack_bytes = self._pack, [], 0
        return taken

    def _send_pack(self, pieces: list[tuple[_Open, int, bytes, bytes]]) -> None:
        if not pieces:
            return
        places: dict[bytes, int] = {}
        packed = bytearray()
        for _, _, digest, data in pieces:
            if digest not in places:
                places[digest] = len(packed)
                packed += data
        name = hashlib.sha256(packed).digest()
        self._put(name, packed)
        for row, number, digest, data in pieces:
            row.pieces[number] = PieceRow(name, places[digest], len(data), digest)
            self._count(len(data), 0)

    def _put(self, digest: bytes, data: bytes | bytearray) -> None:
        name = object_name(digest)
        if name in self._there:
            return
        store = self._repository.store
        if name in self._unsure and store.get(name) == data:
            self._there.add(name)
            return
        store.put(name, data)
        self._there.add(name)
        self._count(0, len(data))

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

    def _pace(self) -> None:
        if self._plan.bytes_per_s:
            due_s = self._began_s + self._done / self._plan.bytes_per_s
            time.sleep(max(0.0, due_s - time.monotonic()))

    def _finish(self, rows: list[_Open]) -> Manifest:
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
        manifest = Manifest(summary=summary, partitions=self._plan.partitions, files=tuple(files))
        store = self._repository.store
        store.flush()
        faults.hit("backup.flushed")
        store.put(manifest_name(summary.id), encode_manifest(manifest))
        store.flush()
        return manifest
