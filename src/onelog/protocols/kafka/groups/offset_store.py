"""The offsets of all groups: committing, transactions, deletion and retention, all of it durable.

Rules: a commit is answered when it is durable, and visible from then on (I4). Pending offsets of a
transaction are committed, or dropped, as one batch. The offsets of one group and those of all
groups are bounded, including those that are being written (I8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from onelog.base.clock import Clock
from onelog.base.errors import Fenced, OnelogError
from onelog.broker.kept import KeptRow
from onelog.config.kafka import KafkaGroups
from onelog.observe import get_logger
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.groups.group import Group
from onelog.protocols.kafka.groups.journal import Done, Journals, write_code
from onelog.protocols.kafka.groups.offsets import GroupOffsets, Place
from onelog.protocols.kafka.groups.rows import GroupOffset, OffsetRow
from onelog.protocols.kafka.groups.states import State
from onelog.protocols.kafka.groups.subscription import subscribed_topics
from onelog.record.batch import NO_COORDINATOR

_log = get_logger("kafka")

Wanted = tuple[int, int, str]
"""Offset, leader epoch, metadata."""


class Offsets:
    """The offsets of all groups."""

    def __init__(
        self,
        journals: Journals,
        settings: KafkaGroups,
        clock: Clock,
        ensure_group: Callable[[str], object],
    ) -> None:
        self._journals = journals
        self._settings = settings
        self._clock = clock
        self._ensure_group = ensure_group
        self._groups: dict[str, GroupOffsets] = {}
        self._total = 0
        self._writing = 0
        self._order = 0

    def recover(self, row: OffsetRow) -> None:
        """Take a recovered row."""
        offsets = self._of(row.group)
        place = (row.topic, row.partition)
        before = offsets.count
        if row.producer_id is None:
            offsets.set(place, row.committed)
        else:
            offsets.stage(row.producer_id, {place: row.committed})
        self._total += offsets.count - before
        self._order = max(self._order, row.committed.order + 1)

    def unload(self, group: str) -> None:
        """Another node owns the group: forget its offsets here."""
        self.take_out(group)

    def _of(self, group: str) -> GroupOffsets:
        return self._groups.setdefault(group, GroupOffsets(group))

    # -- looking

    @property
    def total(self) -> int:
        """Offsets of all groups."""
        return self._total

    def find(self, group: str) -> GroupOffsets | None:
        """The offsets of a group; None when it has none."""
        offsets = self._groups.get(group)
        return offsets if offsets else None

    # -- committing

    def commit(
        self, group: str, wanted: Mapping[Place, Wanted], *, expires_ms: int = -1
    ) -> asyncio.Future[None]:
        """Commit offsets; the future is done when they are durable. Raises KafkaError."""
        rows = self._numbered(wanted, expires_ms)
        offsets = self._admit(group, rows)

        def end(error: OnelogError | None) -> None:
            with self._counting(offsets):
                offsets.end_commit(rows, durable=error is None)

        return self._write(group, offsets.begin_commit(rows), len(rows), end)

    def stage(
        self,
        group: str,
        producer_id: int,
        producer_epoch: int,
        wanted: Mapping[Place, Wanted],
        coordinator_epoch: int = NO_COORDINATOR,
    ) -> asyncio.Future[None]:
        """Keep the offsets that an open transaction will commit. Done when durable. Raises
        KafkaError.

        The transaction coordinator has checked the epoch: pending offsets belong to the producer
        id, which has one transaction at a time.
        """
        del producer_epoch
        rows = self._numbered(wanted, -1, coordinator_epoch)
        offsets = self._admit(group, rows)

        def end(error: OnelogError | None) -> None:
            if error is not None:
                with self._counting(offsets):
                    offsets.unstage(producer_id, rows)

        with self._counting(offsets):
            kept = offsets.stage(producer_id, rows)
        return self._write(group, kept, len(rows), end)

    def complete(
        self,
        group: str,
        producer_id: int,
        committed: bool,
        coordinator_epoch: int = NO_COORDINATOR,
    ) -> asyncio.Future[None]:
        """End a transaction for a group. Done when durable. A repetition does no harm.

        Raises Fenced when a later owner of the transactional id let offsets in.
        """
        offsets = self._groups.get(group)
        if offsets is None or producer_id not in offsets.pending:
            return _nothing()
        staged = offsets.pending[producer_id].copy()
        newest = max(row.coordinator_epoch for row in staged.values())
        if NO_COORDINATOR < coordinator_epoch < newest:
            raise Fenced(
                f"the end of a transaction of producer {producer_id} for the group {group} is from"
                f" a coordinator of epoch {coordinator_epoch}, which epoch {newest} has followed"
            )
        moved = offsets.outcome(producer_id, committed=committed)

        def end(error: OnelogError | None) -> None:
            with self._counting(offsets):
                offsets.end_commit(moved, durable=error is None)
                if error is None:
                    offsets.unstage(producer_id, staged)

        rows = offsets.begin_commit(moved) + offsets.pending_rows(producer_id)
        return self._write(group, rows, 0, end)

    def _numbered(
        self,
        wanted: Mapping[Place, Wanted],
        expires_ms: int,
        coordinator_epoch: int = NO_COORDINATOR,
    ) -> dict[Place, GroupOffset]:
        now_ms = int(self._clock.now_ms())
        rows = {}
        for place, (offset, leader_epoch, metadata) in wanted.items():
            rows[place] = GroupOffset(
                offset,
                leader_epoch,
                metadata,
                now_ms,
                self._order,
                expires_ms,
                coordinator_epoch,
            )
            self._order += 1
        return rows

    def _admit(self, group: str, rows: Mapping[Place, GroupOffset]) -> GroupOffsets:
        self._ensure_group(group)
        offsets = self._of(group)
        new = offsets.new_places(rows)
        for limit, used, key in (
            (self._settings.offsets_per_group, offsets.load, "kafka.groups.offsets_per_group"),
            (self._settings.offsets, self._total + self._writing, "kafka.groups.offsets"),
        ):
            if new and used + new > limit:
                raise KafkaError(
                    ErrorCode.invalid_commit_offset_size,
                    f"the group {group} would hold more offsets than {key} = {limit} allows",
                )
        return offsets

    # -- deleting

    def delete(self, group: str, places: Sequence[Place]) -> asyncio.Future[None]:
        """Forget committed offsets; done when durable."""
        offsets = self.find(group)
        if offsets is None:
            return _nothing()
        known = offsets

        def end(error: OnelogError | None) -> None:
            if error is None:
                with self._counting(known):
                    known.drop(places)

        return self._write(group, known.drop_rows(places), 0, end)

    def take_out(self, group: str) -> GroupOffsets:
        """Remove all offsets of a group that is about to be deleted."""
        offsets = self._groups.pop(group, None) or GroupOffsets(group)
        self._total -= offsets.count
        return offsets

    def put_back(self, offsets: GroupOffsets) -> None:
        """The group could not be deleted: restore its offsets."""
        self._groups[offsets.group] = offsets
        self._total += offsets.count

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Topics were deleted: drop the offsets in them."""
        for topic in topics:
            for group, offsets in list(self._groups.items()):
                places = offsets.places_of(topic)
                if places:
                    self.delete(group, places).add_done_callback(_log_failure)

    def expire(self, group: Group) -> None:
        """Forget offsets that are older than the retention.

        For a group without members the time counts from when it lost the last one; if it never had
        members, from the commit. For a consumer group with members, offsets of topics that none of
        them reads any more expire from the commit, too. Offsets that a transaction may still change
        stay.
        """
        offsets = self.find(group.name)
        if offsets is None:
            return
        now_ms = int(self._clock.now_ms())
        reads: set[str] | None = set()
        since_ms = 0
        if group.state is State.EMPTY:
            since_ms = group.since_ms if group.protocol_type is not None else 0
        else:
            reads = subscribed_topics(group)
        if reads is None:
            return
        old = [
            place
            for place, row in offsets.places()
            if place[0] not in reads
            and not offsets.is_unstable(*place)
            and now_ms >= self._expiry_ms(row, since_ms)
        ]
        if old:
            _log.info("old offsets are dropped", group=group.name, offsets=len(old))
            self.delete(group.name, old).add_done_callback(_log_failure)

    def _expiry_ms(self, row: GroupOffset, since_ms: int) -> int:
        if row.expires_ms >= 0:
            return row.expires_ms
        return max(row.committed_ms, since_ms) + self._settings.offsets_retention_ms

    # -- writing

    def _write(
        self, group: str, rows: Sequence[KeptRow], new: int, end: Done
    ) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writing += new

        def done(error: OnelogError | None) -> None:
            self._writing -= new
            end(error)
            if answer.done():
                return  # its client is gone
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(KafkaError(write_code(error), f"not durable: {error}"))

        self._journals.put(group, rows, done)
        return answer

    def _counting(self, offsets: GroupOffsets) -> _Counting:
        return _Counting(self, offsets)

    def count(self, offsets: GroupOffsets, change: int) -> None:
        """A group has more or fewer offsets; one that was deleted meanwhile does not count."""
        if self._groups.get(offsets.group) is offsets:
            self._total += change
            if not offsets:
                del self._groups[offsets.group]


class _Counting:
    """Keeps the total correct while a group's offsets change."""

    def __init__(self, store: Offsets, offsets: GroupOffsets) -> None:
        self._store = store
        self._offsets = offsets
        self._before = 0

    def __enter__(self) -> None:
        self._before = self._offsets.count

    def __exit__(self, *_error: object) -> None:
        self._store.count(self._offsets, self._offsets.count - self._before)


def _nothing() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


def _log_failure(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and future.exception() is not None:
        _log.error("offsets could not be dropped", error=str(future.exception()))
