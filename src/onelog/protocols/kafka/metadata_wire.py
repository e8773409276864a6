"""The answer to Metadata as bytes: one packed row per partition, for thousands of partitions.

Rules: the same bytes as the general codec would write, at every version; a test compares them.
Where a node is on its own, all rows of an answer have one size and one form; in a cluster, each row
has the size that its replicas need.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from onelog.kernel import encode_uvarint
from onelog.protocols.kafka.nodes import NodeRow

PartitionRow = tuple[int, int, int]
"""(error code, partition, leader epoch), on a node on its own."""
PlacedRow = tuple[int, int, int, int, Sequence[int], Sequence[int], Sequence[int]]
"""(error code, partition, leader, its epoch, replicas, those in sync, those offline)."""

_OFFLINE_VERSION: Final = 5
_EPOCH_VERSION: Final = 7
_OPERATIONS_VERSION: Final = 8
_FLEXIBLE_VERSION: Final = 9
_TOPIC_ID_VERSION: Final = 10
_NO_CLUSTER_OPERATIONS_VERSION: Final = 11
_ERROR_VERSION: Final = 13

_I32: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hii")
_NO_ID: Final = uuid.UUID(int=0)
_NULL_STRING: Final = b"\xff\xff"

Pack = Callable[[int, int, int], bytes]


class TopicRow(NamedTuple):
    """A topic of the answer."""

    error_code: int
    name: str | None
    topic_id: uuid.UUID | None
    operations: int
    partition_count: int = 0
    partitions: bytes = b""
    """Encoded already (`MetadataWriter.partitions`)."""


class MetadataWriter:
    """Encodes an answer at a version, topic by topic: an answer of a million partitions exists only
    as its bytes."""

    def __init__(self, version: int, nodes: Sequence[NodeRow], controller: int) -> None:
        self._version = version
        self._nodes = nodes
        self._controller = controller
        self._string, self._count, self._end = _forms(version)
        self._pack = _row_writer(version, nodes[0].id)

    def partitions(self, rows: Iterable[PartitionRow]) -> bytes:
        """Some partitions of a topic, on a node on its own."""
        pack = self._pack
        return b"".join([pack(*row) for row in rows])

    def placed(self, rows: Iterable[PlacedRow]) -> bytes:
        """Some partitions of a topic, in a cluster."""
        version, count, end = self._version, self._count, self._end
        pieces: list[bytes] = []
        for error, number, leader, epoch, replicas, isr, offline in rows:
            pieces.append(_HEAD.pack(error, number, leader))
            if version >= _EPOCH_VERSION:
                pieces.append(_I32.pack(epoch))
            listed = (replicas, isr, offline) if version >= _OFFLINE_VERSION else (replicas, isr)
            for nodes in listed:
                pieces += (count(len(nodes)), struct.pack(f">{len(nodes)}i", *nodes))
            pieces.append(end)
        return b"".join(pieces)

    def topic(self, row: TopicRow) -> bytes:
        """A topic with its partitions."""
        version = self._version
        out = row.error_code.to_bytes(2, "big", signed=True) + self._string(row.name)
        if version >= _TOPIC_ID_VERSION:
            out += (row.topic_id or _NO_ID).bytes
        if version >= 1:
            out += b"\0"  # internal streams are no topics
        out += self._count(row.partition_count) + row.partitions
        if version >= _OPERATIONS_VERSION:
            out += _I32.pack(row.operations)
        return out + self._end

    def answer(self, cluster_id: str, topics: Sequence[bytes], operations: int) -> bytes:
        """The body of the answer; `operations` are the client's on the cluster."""
        version, string = self._version, self._string
        out = b""
        if version >= 3:
            out += _I32.pack(0)  # nobody is throttled
        out += self._count(len(self._nodes))
        for node in self._nodes:
            out += _I32.pack(node.id) + string(node.host) + _I32.pack(node.port)
            if version >= 1:
                out += string(node.rack)
            out += self._end
        if version >= 2:
            out += string(cluster_id)
        if version >= 1:
            out += _I32.pack(self._controller)
        end = self._end
        if version >= _ERROR_VERSION:
            end = b"\0\0" + end  # nobody has to begin anew with its first addresses
        if _OPERATIONS_VERSION <= version < _NO_CLUSTER_OPERATIONS_VERSION:
            end = _I32.pack(operations) + end
        return b"".join((out, self._count(len(topics)), *topics, end))


def _forms(
    version: int,
) -> tuple[Callable[[str | None], bytes], Callable[[int], bytes], bytes]:
    """How strings, lengths of arrays and ends of structures are encoded."""
    if version >= _FLEXIBLE_VERSION:
        return _compact_string, lambda count: encode_uvarint(count + 1), b"\0"
    return _string, _I32.pack, b""


def _string(text: str | None) -> bytes:
    if text is None:
        return _NULL_STRING
    encoded = text.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def _compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    encoded = text.encode()
    return encode_uvarint(len(encoded) + 1) + encoded


def _row_writer(version: int, node: int) -> Pack:
    """Error, partition, leader, its epoch, replicas, those in sync, those offline."""
    if version >= _FLEXIBLE_VERSION:
        tagged: Any = struct.Struct(">hiiiBiBiBB").pack
        return lambda error, number, epoch: tagged(
            error, number, node, epoch, 2, node, 2, node, 1, 0
        )
    if version >= _EPOCH_VERSION:
        with_epoch: Any = struct.Struct(">hiiiiiiii").pack
        return lambda error, number, epoch: with_epoch(
            error, number, node, epoch, 1, node, 1, node, 0
        )
    if version >= _OFFLINE_VERSION:
        with_offline: Any = struct.Struct(">hiiiiiii").pack
        return lambda error, number, _: with_offline(error, number, node, 1, node, 1, node, 0)
    plain: Any = struct.Struct(">hiiiiii").pack
    return lambda error, number, _: plain(error, number, node, 1, node, 1, node)
