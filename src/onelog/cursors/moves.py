"""Moves: when topics change their home, what has to be read before what (DESIGN §3).

Rules:
- A stream that comes to hold topics of another one is read past where it ended at that moment
  only when the other one has been read up to where that one ended. So a topic that moved is read
  in order, by exact and wildcard cursors, opened before the move or after it.
- The same holds inside a stream whose number of partitions grew.
- What happened before the start is not known offset by offset: there, a stream waits for the
  older ones that could have held its topics up to where these ended at the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from onelog.base.topics import overlap
from onelog.log.stream import Stream, StreamRecord

SourceKey = tuple[str, int]


class Move(NamedTuple):
    """One change of home, as the stream that gained sees it."""

    ends: tuple[int, ...]
    """Where its own partitions ended at that moment; those that came later began empty."""
    after: tuple[tuple[SourceKey, int], ...]
    """What is read first: partitions of the old homes, up to these offsets."""

    def end_of(self, partition: int) -> int:
        """Where a partition may be read to while the old homes are not drained."""
        return self.ends[partition] if partition < len(self.ends) else 0


class Moves:
    """The moves that are known, by the id of the stream that gained."""

    __slots__ = ("_moves", "_records")

    def __init__(self, streams: list[Stream]) -> None:
        self._records = {stream.record.id: stream.record for stream in streams}
        self._moves: dict[str, tuple[Move, ...]] = {}
        by_level = _by_first_level(streams)
        for stream in streams:
            levels = {capture.split("/")[0] for capture in stream.config.captures}
            near = by_level if levels & {"+", "#"} else levels | {"+", "#"}
            others = {other.name: other for level in near for other in by_level.get(level, ())}
            older = [other for other in others.values() if _age(other) < _age(stream)]
            self._note(stream, (), _ends(_holding(older, stream.config.captures)))

    def of(self, stream: Stream) -> tuple[Move, ...]:
        """The moves by which a stream gained topics."""
        return self._moves.get(stream.record.id, ())

    def update(self, streams: list[Stream]) -> None:
        """Compare with what was known before; called in the moment of a change."""
        before, self._records = self._records, {s.record.id: s.record for s in streams}
        self._moves = {key: rows for key, rows in self._moves.items() if key in self._records}
        for stream in streams:
            record = stream.record
            old = before.get(record.id)
            if old is None:
                others = [other for other in streams if other is not stream]
                self._note(stream, (), _ends(_holding(others, record.config.captures)))
            elif old is not record:
                self._changed(stream, old, streams)

    def _changed(self, stream: Stream, old: StreamRecord, streams: list[Stream]) -> None:
        was, now = set(old.config.captures), set(stream.config.captures)
        others = [other for other in streams if other is not stream]
        grown = [stream] if stream.config.partitions > old.config.partitions else []
        if grown or now - was:
            sources = [*_holding(others, now - was), *grown]
            self._note(stream, _partition_ends(stream), _ends(sources))
        if was - now:
            for other in _holding(others, was - now):
                self._note(other, _partition_ends(other), _ends([stream]))

    def _note(
        self, stream: Stream, ends: tuple[int, ...], after: list[tuple[SourceKey, int]]
    ) -> None:
        if after:
            known = self._moves.get(stream.record.id, ())
            self._moves[stream.record.id] = (*known, Move(ends, tuple(after)))


def _age(stream: Stream) -> tuple[int, int, str]:
    shortest = min((len(capture) for capture in stream.config.captures), default=0)
    return stream.record.created_ms, shortest, stream.name


def _by_first_level(streams: list[Stream]) -> dict[str, list[Stream]]:
    found: dict[str, list[Stream]] = {}
    for stream in streams:
        captures = (*stream.config.captures, *stream.record.past_captures)
        for level in {capture.split("/")[0] for capture in captures}:
            found.setdefault(level, []).append(stream)
    return found


def _holding(streams: Iterable[Stream], filters: Iterable[str]) -> list[Stream]:
    """Streams that hold or held topics of these filters."""
    wanted = tuple(filters)
    return [
        stream
        for stream in streams
        if any(
            overlap(capture, text)
            for capture in (*stream.config.captures, *stream.record.past_captures)
            for text in wanted
        )
    ]


def _partition_ends(stream: Stream) -> tuple[int, ...]:
    return tuple(int(partition.end_offset) for partition in stream.partitions)


def _ends(streams: Iterable[Stream]) -> list[tuple[SourceKey, int]]:
    """Every partition that holds something, and where it ends."""
    return [
        ((stream.record.id, int(partition.id)), int(partition.end_offset))
        for stream in streams
        for partition in stream.partitions
        if partition.end_offset > partition.start_offset
    ]
