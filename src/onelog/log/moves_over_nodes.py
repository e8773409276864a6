"""Moves on a cluster: the leaders say where partitions ended, and every node is waited for.

Rules:
- A change is refused until the leaders of all partitions that it concerns have answered. It is
  written with an end that nobody knows yet (`UNKNOWN_END`) for each old home, also where no record
  was found: from the moment in which a node adopts it, that node writes to the new home, and its
  readers wait there.
- When every node has adopted it, and nothing of theirs is under way to the old homes any more, the
  leaders say where these end: no record of a topic that moved comes later. Then the row is written
  again, without the old homes that hold nothing, and readers go on.
- The new home's own ends are those from before the change was written, so that all records that
  came by it lie behind them. The partitions of a stream that grew come before its new ones only,
  and none of them waits for another one.
- Records carry their topic from an offset on that is found in the same way, before the captures of
  their stream change: up to there every record has the one topic, whether it carries it or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.log.moves import UNKNOWN_END, Move, SourceKey, gained_by, homes_among

if TYPE_CHECKING:
    from onelog.log.config import StreamConfig
    from onelog.log.hosting import Hosting
    from onelog.log.stream import Stream, StreamRecord

Questions = Mapping[SourceKey, tuple[str, ...] | None]
"""Partitions, and which exact topics are looked for in each; None: any."""


class HomeEnd(NamedTuple):
    """What the leader of a partition says."""

    end: int
    """Everything that it had taken is below it, and visible."""
    holds: bool
    """Whether it may hold records of the topics in question."""


class Plan(NamedTuple):
    """A change before it is written."""

    homes: Mapping[str, Questions]
    """The old homes, by the stream that gains topics of them."""
    moves: Mapping[str, Move]
    late: frozenset[str]
    """The streams that are not the first to hold their topics."""

    @property
    def questions(self) -> dict[SourceKey, tuple[str, ...] | None]:
        """What the leaders of all old homes are asked."""
        return {key: topics for rows in self.homes.values() for key, topics in rows.items()}


async def plan_move(
    hosting: Hosting,
    stream: Stream,
    old: StreamConfig | None,
    new: StreamConfig,
    near: Sequence[Stream],
) -> Plan:
    """Ask the leaders what a change moves; `old` is None for a new stream. Raises OnelogError."""
    others = [other for other in near if other.name != new.name]
    was, now = set(() if old is None else old.captures), set(new.captures)
    grows = old is not None and new.partitions > old.partitions
    if grows and was != now:
        raise InvalidRequest(
            f"stream {new.name}: on a cluster, partitions and captures are changed one after the"
            " other"
        )
    homes = {other: homes_among([stream], gained_by(other, was - now)) for other in others}
    homes[stream] = homes_among(others, now - was)
    if grows:
        homes[stream] = dict.fromkeys(keys_of(stream))
    homes = {row: questions for row, questions in homes.items() if questions}
    asked: dict[SourceKey, tuple[str, ...] | None] = {}
    for row, questions in homes.items():
        asked |= {key: () for key in keys_of(row) if key not in asked} | dict(questions)
    said = await hosting.ask(asked) if asked else {}
    return Plan(
        {row.name: questions for row, questions in homes.items()},
        {row.name: _planned(row, questions, said) for row, questions in homes.items()},
        frozenset(
            row.name for row, homes in homes.items() if any(said[key].holds for key in homes)
        ),
    )


def _planned(stream: Stream, homes: Questions, said: Mapping[SourceKey, HomeEnd]) -> Move:
    ends = tuple(UNKNOWN_END if key in homes else said[key].end for key in keys_of(stream))
    return Move(ends, tuple((key, UNKNOWN_END) for key in homes), is_exact=False)


def here(moves: Mapping[str, Move]) -> Plan:
    """What a node on its own finds out by itself."""
    return Plan({}, moves, frozenset(moves))


def left_open(streams: Iterable[Stream]) -> Plan:
    """What is left to do of changes of these streams, whoever began them."""
    homes = {
        stream.name: {key: None for move in moves for key, _end in move.after}
        for stream in streams
        if (moves := [move for move in stream.record.moves if not move.is_exact])
    }
    return Plan(homes, {}, frozenset())


def completed(record: StreamRecord, said: Mapping[SourceKey, HomeEnd]) -> StreamRecord:
    """The record of a stream with the ends that the leaders said."""
    moves = [move if move.is_exact else _completed(move, record.id, said) for move in record.moves]
    return msgspec.structs.replace(record, moves=tuple(move for move in moves if move.after))


def _completed(move: Move, stream_id: str, said: Mapping[SourceKey, HomeEnd]) -> Move:
    ends = tuple(
        said[stream_id, number].end if end == UNKNOWN_END else end
        for number, end in enumerate(move.ends)
    )
    return Move(ends, tuple((key, said[key].end) for key, _end in move.after if said[key].holds))


def keys_of(stream: Stream) -> list[SourceKey]:
    """The partitions of a stream."""
    return [(stream.record.id, int(partition.id)) for partition in stream.partitions]
