"""Which partitions of which streams a view shows, and in which order it numbers them.

Rules:
- A view's partitions are all partitions that may hold its records: of every stream that captures
  or once captured something the filter overlaps with. An exact topic lives in one partition of a
  stream with many topics; where partitions were added since, also where it lived before.
- They are numbered by age: of the stream, and of a partition that was added later. So later
  partitions get higher numbers, and a group's offsets stay with the records that they were
  committed for. Only the deletion of a stream changes the numbers of those behind it.
- If a stream was made for a topic that now lives with others, the topic lived there first; older
  streams held nothing of it, unless they took the topic over.
- Queues and exchanges of AMQP, and the audit trail, have own streams; `main` never held their
  records.
"""

from __future__ import annotations

from typing import NamedTuple

from onelog.base.topics import is_audit, is_exact
from onelog.broker import MAIN, Broker, PartitionHandle, Stream
from onelog.kernel import topic_hash
from onelog.queues.addresses import has_own_stream


class ShownPartition(NamedTuple):
    """One partition that a view shows."""

    stream: Stream
    log: PartitionHandle

    @property
    def key(self) -> tuple[str, int]:
        """Its key: the id of a stream is never used again."""
        return self.stream.record.id, self.log.id


def shown_partitions(broker: Broker, text: str) -> list[ShownPartition]:
    """The partitions that a view of `text` shows, in the order of their numbers."""
    rows: list[tuple[tuple[bool, int, str, int], ShownPartition]] = []
    elsewhere = has_own_stream(text) or is_audit(text)
    holders = broker.streams.holders(text)
    first = next((row for row in reversed(holders) if row.record.fixed_topic == text), None)
    for stream in holders:
        if elsewhere and stream.name == MAIN:
            continue
        is_late = first is not None and stream is not first
        if first is not None and is_late and not _came_after(first, stream, home=holders[-1]):
            continue
        for born_ms, number in _numbers(stream, text):
            rank = (is_late, born_ms, stream.name, number)
            rows.append((rank, ShownPartition(stream, stream.partitions[number])))
    return [place for _rank, place in sorted(rows, key=lambda row: row[0])]


def _came_after(first: Stream, stream: Stream, *, home: Stream) -> bool:
    """Whether a stream may hold records of a topic that lived in another one first."""
    took_over = any(
        key[0] == first.record.id for move in stream.record.moves for key, _end in move.after
    )
    return stream is home or took_over or stream.record.created_ms > first.record.created_ms


def _numbers(stream: Stream, text: str) -> list[tuple[int, int]]:
    """(since when, number) of the partitions of a stream that may hold records of a filter."""
    record = stream.record
    births = record.births()
    found: dict[int, int] = {}
    if is_exact(text) and record.fixed_topic is None and not (record.grown and not record.growth):
        hashed = topic_hash(text.encode())
        for since_ms, count in births:
            found.setdefault(hashed % count, since_ms)
    else:
        for since_ms, count in births:
            for number in range(len(found), count):
                found[number] = since_ms
    # Partitions that are just being added have no log yet.
    last = len(stream.partitions)
    return [(since_ms, number) for number, since_ms in found.items() if number < last]
