"""Moving cursors: to the start, the end, a time or an offset; and dead letters that come back.

Rules: records that consumers have at that time stay with them, and are settled or come back as if
nobody had moved the cursor. Everything else from the new position on comes again, whether it was
settled or not, and nothing below it does. The new state is durable before the answer. A cursor
that nobody has open is moved in its kept state.

A redrive lets the records whose dead letters lie in a queue's dead-letter topic come again in that
queue, and in no other. How far the dead letters were gone through is a cursor of its own
(`redrive/<queue>`): each dead letter counts once, and a seek of that cursor lets it count again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base.errors import Conflict, NotFound
from onelog.broker.dead_letters import DEAD_LETTER_HEADER
from onelog.broker.hooks import LOCAL
from onelog.cursors.cursor import Position, Reading
from onelog.cursors.offset import Committed, OffsetCursor
from onelog.cursors.queue import QueueCursor
from onelog.cursors.session import SessionCursor
from onelog.cursors.sources import Source
from onelog.cursors.start import EARLIEST, Start
from onelog.record.headers import find_header

if TYPE_CHECKING:
    from onelog.broker.cursors import CursorDesk
    from onelog.log.catalog import Catalog
    from onelog.record.record import Record

Chosen = Callable[[Source], bool]
"""Whether a source is to be moved."""
Turn = Callable[[], Awaitable[None]]
"""Lets others have their turn."""

REDRIVE: Final = "redrive/"
REDRIVEN_MAX: Final = 10_000
"""Dead letters that one redrive looks at."""
_AT_ONCE: Final = 100
_WAIT_S: Final = 5.0


class Redriven(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a redrive."""

    records: int
    """Records that wait in the queue again."""
    gone: int
    """Dead letters whose record the log no longer holds; the dead letter itself still is there."""
    skipped: int
    """Dead letters whose record waits or is with a consumer already."""
    complete: bool
    """Whether all dead letters were looked at; false: ask again for the rest."""


class _Why(msgspec.Struct, frozen=True):
    """What a dead letter says of its record."""

    queue: str
    stream: str
    partition: int
    offset: int


async def places(sources: list[Source], start: Start, chosen: Chosen) -> list[Position]:
    """Where a start is in the sources that are chosen, within what they hold. Raises NotFound."""
    wanted = [source for source in sources if chosen(source)]
    if not wanted:
        raise NotFound("the cursor reads no such partition: GET the cursor to see its positions")
    start = await start.settled(wanted)
    found = []
    for source in wanted:
        ends = source.partition.ends()
        offset = min(max(start.offset_in(source), ends.start), ends.high_watermark)
        found.append(Position(*source.key, int(offset)))
    return found


async def seek(desk: CursorDesk, name: str, start: Start, chosen: Chosen) -> None:
    """Move a cursor of the door's own kinds. Raises CursorNotFound, NotFound, Conflict."""
    async with desk.moving(name) as cursor:
        if not isinstance(cursor, OffsetCursor | SessionCursor | QueueCursor):
            raise Conflict(f"the cursor {name!r} is of kind {cursor.kind}, which does not seek")
        for row in await places(list(cursor.reading.sources.sources), start, chosen):
            move(cursor, row)


def move(cursor: OffsetCursor | SessionCursor | QueueCursor, to: Position) -> None:
    """Let a cursor go on at a position. The committed position of an offset cursor moves, too."""
    cursor.seek(to.stream_id, to.partition, to.offset)
    if isinstance(cursor, OffsetCursor):
        cursor.commit(Committed(to.stream_id, to.partition, to.offset))


async def redrive(desk: CursorDesk, catalog: Catalog, name: str, turn: Turn) -> Redriven:
    """Let records that a queue gave up wait in it again. Raises CursorNotFound, Conflict."""
    async with desk.moving(name) as queue:
        topic = queue.settings.dead_letter_topic if isinstance(queue, QueueCursor) else None
        if not isinstance(queue, QueueCursor) or topic is None:
            raise Conflict(
                f"the cursor {name!r} has no dead-letter topic: nothing could be redriven"
            )
        letters = await _letters(desk, name, topic)
        try:
            found = await _revive(queue, catalog, letters, turn)
            # The queue first: after a crash in between, its records come once more, not never.
            await desk.save(queue)
            letters.commit_read()
        finally:
            await desk.close_cursor(letters)
    return found


async def _letters(desk: CursorDesk, name: str, topic: str) -> OffsetCursor:
    """The cursor over the dead letters; a new one, if the queue's topic for them is another now."""
    kept = desk.kept(REDRIVE + name)
    if kept is not None and kept.filters != (topic,) and desk.find(REDRIVE + name) is None:
        await desk.delete(REDRIVE + name)
    return await desk.open_offset(REDRIVE + name, (topic,), start=EARLIEST, principal=LOCAL)


async def _revive(
    queue: QueueCursor, catalog: Catalog, letters: OffsetCursor, turn: Turn
) -> Redriven:
    counts = {"revived": 0, "gone": 0, "skipped": 0}
    looked = 0
    while looked < REDRIVEN_MAX:
        records = letters.fetch(_AT_ONCE)
        for record in records:
            why = _why(record)
            if why is not None and why.queue == queue.name:
                counts[await _bring_back(queue, catalog, why)] += 1
        looked += len(records)
        if not records and not await _goes_on(letters.reading):
            break
        await turn()
    return Redriven(
        records=counts["revived"],
        gone=counts["gone"],
        skipped=counts["skipped"],
        complete=not letters.reading.is_behind(),
    )


async def _goes_on(reading: Reading) -> bool:
    """Whether there is more to read; waits for what is cold."""
    if reading.may_go_on():
        return True
    return reading.is_behind() and await reading.wait_readable(_WAIT_S)


async def _bring_back(queue: QueueCursor, catalog: Catalog, why: _Why) -> str:
    stream = catalog.find(why.stream)
    if stream is None:
        return "gone"
    place = (stream.record.id, why.partition, why.offset)
    if await queue.reading.find_record(*place) is None:
        return "gone"
    return "revived" if queue.revive(*place) else "skipped"


def _why(letter: Record) -> _Why | None:
    text = find_header(letter.headers, DEAD_LETTER_HEADER)
    try:
        return None if text is None else msgspec.json.decode(text, type=_Why)
    except msgspec.MsgspecError:  # a client wrote that
        return None
