"""Takes the rows of a stream's table over that another writer rewrote, because somebody asked.

Rules: all partitions of the stream stand still meanwhile, because a foreign file may hold rows of
several. First each manifest learns what the table has; then the table gets new files in one commit;
then the manifests name them. A crash between the last two is made good by the next commit, as after
a join. A refusal changes nothing, and says which offsets are not proved.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import msgspec

from onelog.base.errors import ColdUnavailable, Conflict, InvalidRequest, StorageError
from onelog.log.catalog import Catalog
from onelog.log.tier_work import TierWork
from onelog.log.tiering import Tiering


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """What of a stream's table was taken over."""

    stream: str
    files: int
    """Files that were written in the place of rewritten ones; 0: nobody rewrote anything."""
    offsets: int
    """Offsets that they answer for."""
    log_bytes: int
    """Bytes of batches that were proved."""
    said: str
    """The same in words."""


async def adopt(catalog: Catalog, tiering: Tiering, name: str) -> Adopted:
    """Prove and take over what was rewritten. Raises StreamNotFound, InvalidRequest, Conflict,
    ColdUnavailable."""
    stream = catalog.get(name)
    if not stream.config.tier.format.is_table:
        raise InvalidRequest(
            f"the history of the stream {name!r} is no table: only tiers of the format iceberg or"
            " delta have rows that another writer could rewrite"
        )
    works = [work for one in stream.local if (work := tiering.work_of(one)) is not None]
    stopped = [work.partition for work in works if work.partition.stopped is not None]
    if stopped or len(works) < len(stream.local):
        raise Conflict(f"not all partitions of {name!r} run: `onelog partition list {name}`")
    tiering.adoptions += 1
    try:
        return await _adopt(name, works)
    except ColdUnavailable:
        raise
    except StorageError as error:
        raise Conflict(str(error)) from error
    finally:
        tiering.adoptions -= 1


async def _adopt(name: str, works: list[TierWork]) -> Adopted:
    async with AsyncExitStack() as held:
        for work in works:
            await held.enter_async_context(work.turn)
        parts = [await work.run_held(work.tier.adoption) for work in works]
        first = works[0]
        made = await first.run_held(partial(first.tier.adopt, parts))
        for work, part in zip(works, parts, strict=True):
            rows = made[part.partition]
            await work.run_held(partial(work.tier.take_adopted, part, rows))
    rows = [row for found in made.values() for row in found]
    log_bytes = sum(row.log_bytes for row in rows)
    offsets = sum(row.end - row.base for row in rows)
    return Adopted(
        stream=name,
        files=len(rows),
        offsets=offsets,
        log_bytes=log_bytes,
        said=_said(len(rows), offsets, log_bytes),
    )


def _said(files: int, offsets: int, log_bytes: int) -> str:
    if not files:
        return "nothing to adopt: the table has every file that OneLog wrote"
    return (
        f"{files:,} files with {offsets:,} offsets, {log_bytes:,} bytes of batches, are proved and"
        " OneLog's own again"
    )
