"""The manifest of a backup: which files it holds, of which pieces, and where each piece lies.

Rules: a backup exists when its manifest does; the manifest is written last and never changed. Its
own checksum covers all of it. Layout: `OLB1`, u32 length of the summary (little endian), the
summary as JSON, the body as MessagePack, SHA-256 of all before.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
import time
from typing import Final

import msgspec

from onelog.base.errors import InvalidRequest, StorageError

VERSION: Final = 1
SUMMARY_BYTES_MAX: Final = 64 * 1024
"""So many bytes of a manifest hold its summary."""
_MAGIC: Final = b"OLB1"
_HEAD: Final = struct.Struct("<4sI")
_DIGEST_BYTES: Final = 32
_ID: Final = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{6}")
LEFT_OUT_MAX: Final = 100
"""Partitions that a summary names as left out."""


class BackupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What people want to know of a backup."""

    id: str
    version: int = VERSION
    onelog: str = ""
    """The version of the broker."""
    point_ms: int
    """Everything that was acknowledged before it is in the backup."""
    done_ms: int = 0
    streams: int = 0
    partitions: int = 0
    files: int = 0
    size_bytes: int = 0
    new_bytes: int = 0
    """Bytes that were sent for it; the rest was there already."""
    left_out: tuple[str, ...] = ()
    """Partitions that are not in it, and why."""


class BackupPartition(msgspec.Struct, array_like=True, frozen=True):
    """A partition in a backup."""

    stream: str
    stream_id: str
    partition: int
    engine: str
    internal: bool
    start: int
    end: int


class PieceRow(msgspec.Struct, array_like=True, frozen=True):
    """Bytes of a file, and where they lie."""

    object: bytes
    """The name of the object, 32 bytes."""
    position: int
    size_bytes: int
    crc: int
    """CRC-32C of the bytes."""
    name: bytes
    """By which a later backup knows the piece again (`sending.py`)."""


class FileRow(msgspec.Struct, array_like=True, frozen=True):
    """A file in a backup."""

    path: str
    size_bytes: int
    identity: tuple[int, int]
    """Inode and time of the last change: a sealed file with the same is not read again."""
    pieces: tuple[PieceRow, ...]


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A backup."""

    summary: BackupSummary
    partitions: tuple[BackupPartition, ...]
    files: tuple[FileRow, ...]

    def objects(self) -> dict[str, int]:
        """The names of the objects that it needs, and how many bytes each must have."""
        found: dict[bytes, int] = {}
        for row in self.files:
            for piece in row.pieces:
                end = piece.position + piece.size_bytes
                found[piece.object] = max(end, found.get(piece.object, 0))
        return {object_name(name): size for name, size in found.items()}


class _Body(msgspec.Struct, array_like=True, frozen=True):
    partitions: tuple[BackupPartition, ...]
    files: tuple[FileRow, ...]


_body: Final = msgspec.msgpack.Decoder(_Body)
_summary: Final = msgspec.json.Decoder(BackupSummary)


def new_id(point_ms: int) -> str:
    """The name of a backup: names sort by time."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(point_ms // 1000))
    return f"{stamp}{point_ms % 1000:03}Z-{secrets.token_hex(3)}"


def is_id(text: str) -> bool:
    """Whether a text can be the name of a backup."""
    return _ID.fullmatch(text) is not None


def check_id(text: str) -> str:
    """Refuse what is not the name of a backup."""
    if not is_id(text):
        raise InvalidRequest(
            f"{text!r} is not the id of a backup; `onelog backup list URL` shows the ids"
        )
    return text


def object_name(name: bytes) -> str:
    """Where an object lies."""
    text = name.hex()
    return f"objects/{text[:2]}/{text}"


def manifest_name(backup_id: str) -> str:
    """Where a manifest lies."""
    return f"backups/{backup_id}"


def encode_manifest(manifest: BackupManifest) -> bytes:
    """The bytes of a manifest."""
    summary = msgspec.json.encode(manifest.summary)
    body = msgspec.msgpack.encode(_Body(manifest.partitions, manifest.files))
    data = _HEAD.pack(_MAGIC, len(summary)) + summary + body
    return data + hashlib.sha256(data).digest()


def decode_summary(name: str, data: bytes) -> BackupSummary:
    """The summary at the beginning of a manifest. Raises StorageError."""
    try:
        magic, size = _HEAD.unpack_from(data)
        if magic == _MAGIC:
            summary = _summary.decode(data[_HEAD.size : _HEAD.size + size])
            if summary.version == VERSION:
                return summary
            raise StorageError(
                f"the backup {name} has format {summary.version}, this program reads {VERSION}:"
                " use the version of OneLog that wrote it"
            )
    except (struct.error, msgspec.MsgspecError):
        pass
    raise StorageError(f"the manifest of the backup {name} is damaged: use another backup")


def decode_manifest(name: str, data: bytes) -> BackupManifest:
    """A manifest whose checksum holds. Raises StorageError."""
    if hashlib.sha256(data[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
        raise StorageError(f"the manifest of the backup {name} is damaged: use another backup")
    summary = decode_summary(name, data)
    size = _HEAD.unpack_from(data)[1]
    body = _body.decode(data[_HEAD.size + size : -_DIGEST_BYTES])
    return BackupManifest(summary=summary, partitions=body.partitions, files=body.files)
