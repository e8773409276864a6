"""Plans of changes: which moves a change of a stream makes, and the rows that say so.

Rules: a plan is written before the change takes effect, with offsets of a moment before it. The
store decides between plans of two writers (`stream_rows`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

import msgspec

from onelog.base.errors import Timeout
from onelog.log.config import StreamConfig
from onelog.log.directory import Directory
from onelog.log.hosting import Hosting
from onelog.log.moves import bring, moves_by, with_move
from onelog.log.moves_over_nodes import Plan, here, plan_move
from onelog.log.settling import check_tagged
from onelog.log.stream import Assigned, Stream, StreamRecord
from onelog.log.stream_rows import StreamRows


class Planning:
    """The plans of a catalog."""

    def __init__(
        self, directory: Directory, rows: StreamRows, hosting: Callable[[], Hosting]
    ) -> None:
        self._directory = directory
        self._rows = rows
        self._hosting = hosting
        self.unsure: set[str] = set()
        """Streams with a change of ours that may have been written, and did not take effect."""

    def homes(
        self, config: StreamConfig, first: int, asked: Assigned
    ) -> tuple[tuple[int, ...], ...]:
        """On which nodes partitions from `first` on are to lie: those asked for, else others."""
        chosen = self._hosting().place(config, first)
        return tuple(own or other for own, other in zip_longest(asked, chosen, fillvalue=()))

    async def plan(self, stream: Stream, old: StreamConfig | None, new: StreamConfig) -> Plan:
        """Which moves a change makes, before it is written down. `old` is None for a new stream."""
        near = self._directory.near(old, new)
        if self._hosting().is_shared:
            check_tagged(stream.record, new)
            return await plan_move(self._hosting(), stream, old, new, near)
        if old is None:  # otherwise nothing may happen between a look at the ends and the change
            await bring(old, new, near)
        return here(moves_by(stream, old, new, near, is_plan=old is not None))

    async def write(self, record: StreamRecord, planned: Plan) -> None:
        """Write down a change, and which moves it makes, before it takes effect."""
        others = [
            self._directory.get(name).record for name in planned.moves if name != record.config.name
        ]
        rows = [self.moved(row, planned, is_exact=False) for row in (*others, record)]
        try:
            await self._rows.save(rows)
        except Timeout:
            self.unsure.add(record.config.name)
            raise
        self.unsure.discard(record.config.name)

    def moved(self, record: StreamRecord, planned: Plan, *, is_exact: bool) -> StreamRecord:
        """A stream's record, with the move if the stream gained topics by it."""
        name = record.config.name
        if name not in planned.moves:
            return record
        move = msgspec.structs.replace(planned.moves[name], is_exact=is_exact)
        found = with_move(record.moves, move, self._directory.partitions(), name)
        # A stream that is not the first to hold its one topic writes the topic beside each record.
        is_first = name in self._directory.by_name or name not in planned.late
        fixed = record.fixed_topic if is_first else None
        return msgspec.structs.replace(record, moves=found, fixed_topic=fixed)
