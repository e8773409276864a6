"""Moving the history of a stream to the object store now, because somebody asked for it.

Rules: what the stream held when it was asked is sealed and moved; a table does not wait for its
next commit, and a store that was away is asked again at once. Whoever asked hears which offsets did
not go, and why: that is an error, also when others went.
"""

from __future__ import annotations

from typing import Final

import msgspec

from onelog.base.errors import ColdUnavailable, Conflict, InvalidRequest, OnelogError
from onelog.log.catalog import Catalog
from onelog.log.partition import Partition
from onelog.log.tiering import Tiering

_TOLD_MAX: Final = 3
"""Partitions that an error names."""


class Offloaded(msgspec.Struct, frozen=True, kw_only=True):
    """What of a stream is in the store after its history was moved."""

    stream: str
    moved: int
    """Offsets that were moved now."""
    pieces: int
    cold_bytes: int
    said: str
    """The same in words."""


async def offload(catalog: Catalog, tiering: Tiering, name: str) -> Offloaded:
    """Seal what a stream holds, and move it. Raises StreamNotFound, InvalidRequest, Conflict when
    somebody has to do something first, ColdUnavailable when the store did not take it."""
    stream = catalog.get(name)
    if stream.config.engine == "object" and not stream.config.tier.copies:
        raise InvalidRequest(
            f"the stream {name!r} has the engine object: everything of it is in the store already"
        )
    if not stream.config.tier.copies:
        raise InvalidRequest(
            f"the stream {name!r} copies nothing to the object store: give it a tier first"
            f" (`onelog stream alter {name} --tier log`, and not --no-tier-copy)"
        )
    wanted = {partition: int(partition.end_offset) for partition in stream.local}
    before = sum(map(_end_in_store, wanted))
    for partition in wanted:
        if partition.stopped is None:
            await catalog.shared.syncer.chores.run(partition.log.roll)
    await _move(tiering, wanted)
    behind = [one for one, end in wanted.items() if _end_in_store(one) < end]
    if behind:
        raise _refusal(tiering, wanted, behind, sum(map(_end_in_store, wanted)) - before)
    statuses = [status for one in wanted if (status := one.tier_status()) is not None]
    moved = sum(map(_end_in_store, wanted)) - before
    cold_bytes = sum(status.cold_bytes for status in statuses)
    return Offloaded(
        stream=name,
        moved=moved,
        pieces=sum(status.rows for status in statuses),
        cold_bytes=cold_bytes,
        said=_said(moved, cold_bytes),
    )


async def _move(tiering: Tiering, wanted: dict[Partition, int]) -> None:
    """Make passes while they bring something forward: a commit to a table takes a bounded part."""
    reached = -1
    while reached < (now := sum(map(_end_in_store, wanted))):
        reached = now
        for partition in wanted:
            if partition.log.tier is not None:
                partition.log.tier.hurry()
        await tiering.once_more()
        if all(_end_in_store(one) >= end for one, end in wanted.items()):
            return


def _end_in_store(partition: Partition) -> int:
    """Up to where the store has a partition; what left the log counts as there."""
    status = partition.tier_status()
    return int(partition.start_offset if status is None else status.cold_end_offset)


def _said(moved: int, cold_bytes: int) -> str:
    if moved:
        return f"{moved:,} records moved; the store has {cold_bytes:,} bytes of it, nothing waits"
    if cold_bytes:
        return f"nothing to move: all of it is in the store already, {cold_bytes:,} bytes"
    return "nothing to move: it holds no records"


def _refusal(
    tiering: Tiering, wanted: dict[Partition, int], behind: list[Partition], moved: int
) -> OnelogError:
    reasons = [_why(tiering, one, wanted[one]) for one in behind]
    told = [
        f"offsets {_end_in_store(one)} to {wanted[one] - 1} of {one.place}: {why}"
        for one, (why, _later) in zip(behind[:_TOLD_MAX], reasons, strict=False)
    ]
    more = f"; and {len(behind) - _TOLD_MAX} more partitions" if len(behind) > _TOLD_MAX else ""
    text = f"{moved:,} records moved. Not in the store: {'; '.join(told)}{more}"
    later = any(later for _why, later in reasons)
    return ColdUnavailable(text) if later else Conflict(text)


def _why(tiering: Tiering, partition: Partition, end: int) -> tuple[str, bool]:
    """Why a partition is not in the store up to `end`, and whether it may be later by itself."""
    if partition.stopped is not None:
        return f"the partition has stopped: {partition.stopped}", False
    status = partition.tier_status()
    if status is not None and status.halted:
        return status.halted, False
    error = tiering.outcome_of(partition).error
    if error:
        return error, True
    if partition.last_stable_offset < end:
        return (
            f"a transaction is open since offset {partition.last_stable_offset}: `onelog"
            " transaction list` shows it; what lies behind it goes when it ended",
            True,
        )
    return "the store took none of it in this pass: try again", True
