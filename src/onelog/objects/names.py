"""The names of all objects in a store, below the store's prefix.

Rules: a name is made here and taken apart here, nowhere else. What two writers may make at the same
moment has a random tag or is written create-only. `~x` is 2^64 - 1 - x in 16 hex digits: the newest
name comes first in a list. The two hex digits in front of a partition's names spread them over key
ranges of the store; they are the low byte of the CRC-32C of `<stream id>/<partition>`.
"""

from __future__ import annotations

import re
import secrets
from typing import Final, NamedTuple

from onelog.kernel import crc32c

PIECES: Final = "t/"
MANIFESTS: Final = "m/"
CHAINS: Final = "n/"
DATA: Final = "d/"
FRAMES: Final = "f/"
_U64_MAX: Final = (1 << 64) - 1
_RANGED: Final = re.compile(
    r"([tf])/([0-9a-f]{2})/([^/]+)/(0|[1-9]\d*)/(\d{20})-(\d{20})-([0-9a-f]{16})\.([pf])"
)
_MANIFEST: Final = re.compile(r"m/([0-9a-f]{2})/([^/]+)/(0|[1-9]\d*)/([0-9a-f]{16})")
_CHAIN: Final = re.compile(r"n/([^/]+)/([0-9a-f]{16})/(open|base|([wc])/([0-9a-f]{16}))")
_DATA: Final = re.compile(r"d/([0-9a-f]{2})/([0-9a-f]{32})")


class RangedName(NamedTuple):
    """The name of a tiered piece (`kind` t) or of the frames of a Parquet file (`kind` f)."""

    kind: str
    stream_id: str
    partition: int
    base: int
    end: int
    tag: str


class ManifestName(NamedTuple):
    """The name of a tier's manifest."""

    stream_id: str
    partition: int
    seq: int


class ChainName(NamedTuple):
    """The name of an object of a chain: `kind` is open, base, w or c; `seq` is 0 for the first
    two."""

    node: str
    epoch: int
    kind: str
    seq: int


class DataName(NamedTuple):
    """The name of an object with pieces of the object engine."""

    tag: str


ObjectName = RangedName | ManifestName | ChainName | DataName


def new_tag(size_bytes: int = 8) -> str:
    """A tag that no other try has: 16 hex digits, or 32 for 16 bytes."""
    return secrets.token_hex(size_bytes)


def falling(number: int) -> str:
    """A number as 16 hex digits that sort the other way round."""
    assert 0 <= number <= _U64_MAX
    return f"{_U64_MAX - number:016x}"


def _risen(text: str) -> int:
    return _U64_MAX - int(text, 16)


def spread(stream_id: str, partition: int) -> str:
    """The two hex digits of a partition."""
    return f"{crc32c(f'{stream_id}/{partition}'.encode()) & 0xFF:02x}"


def _folder(stream_id: str, partition: int) -> str:
    return f"{spread(stream_id, partition)}/{stream_id}/{partition}/"


def pieces_of(stream_id: str, partition: int) -> str:
    """The beginning of the names of a partition's tiered pieces."""
    return PIECES + _folder(stream_id, partition)


def tier_piece(stream_id: str, partition: int, base: int, end: int, tag: str) -> str:
    """The name of a tiered piece."""
    return f"{pieces_of(stream_id, partition)}{base:020}-{end:020}-{tag}.p"


def manifests_of(stream_id: str, partition: int) -> str:
    """The beginning of the names of a partition's manifests; the newest comes first."""
    return MANIFESTS + _folder(stream_id, partition)


def tier_manifest(stream_id: str, partition: int, seq: int) -> str:
    """The name of a tier's manifest."""
    return manifests_of(stream_id, partition) + falling(seq)


def frames_of(stream_id: str, partition: int) -> str:
    """The beginning of the names of a partition's frames."""
    return FRAMES + _folder(stream_id, partition)


def frames(stream_id: str, partition: int, base: int, end: int, tag: str) -> str:
    """The name of the frames of a Parquet file."""
    return f"{frames_of(stream_id, partition)}{base:020}-{end:020}-{tag}.f"


def data_object(tag: str) -> str:
    """The name of an object with pieces of the object engine; the tag has 32 hex digits."""
    assert len(tag) == 32
    return f"{DATA}{tag[:2]}/{tag}"


def chains_of(node: str | int) -> str:
    """The beginning of the names of a node's chains; the newest epoch comes first."""
    return f"{CHAINS}{node}/"


def chain(node: str | int, epoch: int) -> str:
    """The beginning of the names of a chain."""
    return f"{CHAINS}{node}/{falling(epoch)}/"


def chain_open(node: str | int, epoch: int) -> str:
    """The name of the object that opens an epoch."""
    return chain(node, epoch) + "open"


def chain_base(node: str | int, epoch: int) -> str:
    """The name of the checkpoint that an epoch begins with."""
    return chain(node, epoch) + "base"


def chain_wals(node: str | int, epoch: int) -> str:
    """The beginning of the names of a chain's WAL objects; the newest comes first."""
    return chain(node, epoch) + "w/"


def chain_wal(node: str | int, epoch: int, seq: int) -> str:
    """The name of a WAL object."""
    return chain_wals(node, epoch) + falling(seq)


def chain_checkpoints(node: str | int, epoch: int) -> str:
    """The beginning of the names of a chain's checkpoints; the newest comes first."""
    return chain(node, epoch) + "c/"


def chain_checkpoint(node: str | int, epoch: int, seq: int) -> str:
    """The name of a checkpoint."""
    return chain_checkpoints(node, epoch) + falling(seq)


def parse_ranged(name: str) -> RangedName | None:
    """What the name of a tiered piece or of frames says; None: it is no such name."""
    found = _RANGED.fullmatch(name)
    if found is None:
        return None
    kind, digits, stream_id, number, base, end, tag, ending = found.groups()
    partition = int(number)
    if ending != {"t": "p", "f": "f"}[kind] or digits != spread(stream_id, partition):
        return None
    return RangedName(kind, stream_id, partition, int(base), int(end), tag)


def parse_manifest(name: str) -> ManifestName | None:
    """What the name of a tier's manifest says; None: it is no such name."""
    found = _MANIFEST.fullmatch(name)
    if found is None or found[1] != spread(found[2], int(found[3])):
        return None
    return ManifestName(found[2], int(found[3]), _risen(found[4]))


def parse_chain(name: str) -> ChainName | None:
    """What the name of an object of a chain says; None: it is no such name."""
    found = _CHAIN.fullmatch(name)
    if found is None:
        return None
    node, epoch, whole, kind, seq = found.groups()
    return ChainName(node, _risen(epoch), kind or whole, _risen(seq) if seq else 0)


def parse_data(name: str) -> DataName | None:
    """What the name of a data object says; None: it is no such name."""
    found = _DATA.fullmatch(name)
    return DataName(found[2]) if found is not None and found[2].startswith(found[1]) else None


def is_data(name: str) -> bool:
    """Whether a name is that of a data object. Their pieces do not list aborted transactions."""
    return name.startswith(DATA)


def parse(name: str) -> ObjectName | None:
    """What any name says; None: OneLog made no such name."""
    return parse_ranged(name) or parse_manifest(name) or parse_chain(name) or parse_data(name)
