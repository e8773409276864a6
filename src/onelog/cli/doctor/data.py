"""The data directory and the disk under it."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from onelog.cli.doctor.findings import Finding
from onelog.config import Config

FREE_SHARE_MIN: Final = 0.1
FREE_BYTES_MIN: Final = 256 * 1024 * 1024
SYNC_SLOW_S: Final = 0.02
_SYNCS: Final = 9
_FUTURE_S: Final = 300.0
_GB: Final = 1000**3
_IN_MEMORY: Final = {"tmpfs", "ramfs"}
_REMOTE: Final = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"}
_LAYERS: Final = {"overlay", "aufs"}


def look(config: Config) -> list[Finding]:
    """Whether the directory can be used, and the disk is large and quick enough."""
    data_dir = Path(config.data_dir)
    place = existing(data_dir)
    refused = judge_access(data_dir, place)
    if refused:
        return refused
    disk = os.statvfs(place)
    found = [
        *judge_file_system(data_dir, file_system_of(place, _mounts())),
        judge_room(
            disk.f_bavail * disk.f_frsize,
            disk.f_blocks * disk.f_frsize,
            config.main.retention_bytes,
        ),
        *judge_inodes(disk.f_favail, disk.f_files),
        *judge_times(data_dir, time.time()),
    ]
    with contextlib.suppress(OSError):  # a full disk was reported above
        found.append(judge_syncs(sync_seconds(place)))
    return found


def existing(path: Path) -> Path:
    """The directory itself, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def judge_access(data_dir: Path, place: Path) -> list[Finding]:
    """What keeps this user from using the directory; empty: nothing."""
    do = "choose another directory with --data DIR, or run the command as the broker's own user"
    if not place.is_dir():
        return [Finding("error", "data", f"{data_dir} cannot be made: {place} is a file", do)]
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return [Finding("error", "data", f"{data_dir}: this user may not write to {place}", do)]
    return []


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text()
    except OSError:
        return ""


def file_system_of(place: Path, mounts: str) -> str:
    """The kind of file system under a directory; empty: unknown."""
    best, kind = "", ""
    for line in mounts.splitlines():
        _device, point, found, *_rest = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)
        if place.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def judge_file_system(data_dir: Path, kind: str) -> list[Finding]:
    """File systems that lose data, or whose syncs do not mean what they say."""
    if kind in _IN_MEMORY:
        told = f"{data_dir} is in memory ({kind}): everything is gone after a restart"
        return [Finding("warning", "data", told, "put the data directory on a disk")]
    if kind in _REMOTE:
        told = f"{data_dir} is on {kind}: locks and syncs of remote file systems may not hold"
        return [Finding("warning", "data", told, "use a local disk, or a block device")]
    if kind in _LAYERS:
        told = f"{data_dir} is in the container itself ({kind}): it is gone with the container"
        return [Finding("warning", "data", told, "mount a volume there")]
    return [Finding("ok", "data", f"{data_dir}{f' on {kind}' if kind else ''}")]


def judge_room(free: int, size: int, retention_bytes: int) -> Finding:
    """Whether the disk has room now, and for what `main` may keep."""
    shown = f"{free / _GB:.1f} of {size / _GB:.1f} GB are free"
    do = "make room, or shorten the retention: onelog stream alter NAME --retention 1d"
    if free < FREE_BYTES_MIN:
        return Finding("error", "disk", f"{shown}: the broker is about to refuse writes", do)
    if free < size * FREE_SHARE_MIN:
        return Finding("warning", "disk", shown, do)
    if retention_bytes > size:
        told = f"{shown}, but main.retention_bytes allows {retention_bytes / _GB:.1f} GB"
        return Finding("warning", "disk", told, "lower it below the size of the disk")
    return Finding("ok", "disk", shown)


def judge_inodes(free: int, total: int) -> list[Finding]:
    """Each segment is some files; some file systems count none."""
    if total and free < total * 0.02:
        told = f"only {free:,} of {total:,} inodes are free: no file can be made without one"
        return [
            Finding("warning", "disk", told, "remove small files, or make a larger file system")
        ]
    return []


def judge_times(data_dir: Path, now_s: float) -> list[Finding]:
    """Data that is newer than now: the clock went back."""
    try:
        written_s = (data_dir / "metadata.db").stat().st_mtime
    except OSError:
        return []
    if written_s <= now_s + _FUTURE_S:
        return []
    ahead = f"{(written_s - now_s) / 3600:.1f} hours"
    told = f"{data_dir}/metadata.db was written {ahead} after now: the clock went back"
    return [Finding("error", "clock", told, "set the clock before the broker writes more records")]


def sync_seconds(place: Path) -> float:
    """How long the disk takes to keep 4 KiB: the median of some."""
    took = []
    with tempfile.TemporaryFile(dir=place) as file:
        for _ in range(_SYNCS):
            file.write(b"\0" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def judge_syncs(seconds: float) -> Finding:
    """A publisher of an `fsync` stream waits for at least one sync."""
    shown = f"a sync takes {seconds * 1000:.1f} ms"
    if seconds > SYNC_SLOW_S:
        told = f"{shown}: every acknowledged publish of durability fsync waits so long"
        do = "use a faster disk, or durability os for streams that need no promise about power loss"
        return Finding("warning", "disk", told, do)
    return Finding("ok", "disk", shown)


def holder_of(data_dir: Path) -> int | None:
    """The process that holds the lock of the data directory, without touching the lock."""
    try:
        node = (data_dir / "lock").stat().st_ino
        rows = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for row in rows:
        # 1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF
        cells = row.split()
        if cells[1] == "FLOCK" and cells[5].rpartition(":")[2] == str(node):
            return int(cells[4])
    return None
