"""The end of a transaction: one marker in every partition it touched, then the groups' offsets.

Rules:
- It can be interrupted anywhere and repeated: after a restart a marker is written only where this
  producer still has a transaction open, and within one run no step is done twice.
- It is complete when every marker is durable: only then may the coordinator forget the partitions
  of the transaction.
- A marker fences: a partition refuses lower epochs of the producer from then on.
- A partition that is gone needs no marker. One that is stopped, full, or led by a node that does
  not answer gets it later.
- After an election it is not known what producers were allowed to write before: every partition of
  the transaction gets its marker then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable
from typing import Protocol

from onelog.base import faults
from onelog.base.errors import OnelogError, Timeout
from onelog.base.ids import Offset
from onelog.broker import PartitionHandle
from onelog.observe import get_logger
from onelog.protocols.kafka.transactions.participants import Decider, PartitionPlace
from onelog.protocols.kafka.transactions.state import OUTCOMES, Facts, Producer
from onelog.record.batch import Marker

_log = get_logger("kafka")


class Doors(Protocol):
    """What the end of a transaction needs from outside."""

    def know(self, places: Collection[tuple[str, int]]) -> Awaitable[None]:
        """Have these partitions of topics known here, as far as they exist. Raises OnelogError."""
        ...

    def find_log(self, topic: str, partition: int) -> PartitionHandle | None:
        """The partition that holds the records of a topic's partition; None: it is gone."""
        ...

    def all_logs(self) -> Iterable[PartitionHandle]:
        """Every partition of the broker."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether all transactions and partitions are this node's own."""
        ...

    def place_of(self, log: PartitionHandle) -> PartitionPlace:
        """Where a partition lies; it may move from node to node."""
        ...

    def at(self, place: PartitionPlace) -> PartitionHandle | None:
        """The partition at a place; None: it is gone."""
        ...

    def is_here(self, log: PartitionHandle) -> bool:
        """Whether this node leads a partition."""
        ...

    def end_here(
        self, log: PartitionHandle, marker: Marker, producer: Producer, coordinator_epoch: int
    ) -> Offset:
        """Write a marker in a partition of this node. Returns its offset. Raises OnelogError."""
        ...

    def end_elsewhere(
        self, place: PartitionPlace, marker: Marker, producer: Producer, decider: Decider
    ) -> Awaitable[None]:
        """Have a marker written by the leader of a partition. Durable when it returns; it may be
        asked again. Raises OnelogError."""
        ...

    def complete_offsets(
        self, group: str, producer_id: int, decider: Decider, *, committed: bool
    ) -> Awaitable[None]:
        """Commit a group's pending offsets, or drop them. Durable when it returns; it may be asked
        again. Raises OnelogError."""
        ...


class Completion:
    """Ends transactions."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    async def begin(self, facts: Facts, decider: Decider, *, recovered: bool) -> Work:
        """The work for a transaction's outcome. Raises OnelogError."""
        await self._doors.know(facts.partitions)
        logs = self._logs_of(facts)
        if recovered and self._doors.is_alone:
            logs = [log for log in logs if facts.producer_id in log.open_transactions()]
        return Work(facts, decider, [self._doors.place_of(log) for log in logs], self._doors)

    def forget_producer(self, facts: Facts) -> None:
        """Let partitions forget a producer: its transactional id is given up."""
        for log in self._logs_of(facts):
            log.forget_producer(facts.producer_id)

    def _logs_of(self, facts: Facts) -> list[PartitionHandle]:
        found: dict[int, PartitionHandle] = {}
        for topic, number in sorted(facts.partitions):
            log = self._doors.find_log(topic, number)
            if log is not None:
                found[id(log)] = log
        return list(found.values())

    def abort_strays(self, unfinished: list[Facts]) -> None:
        """Abort transactions that are open in partitions and that no coordinator row knows.

        Only a loss of the log's end (streams with durability `os` and a power cut) leaves such a
        transaction. It would hold back the last stable offset of its partition for ever. On several
        nodes, others may know the transaction.
        """
        if not self._doors.is_alone:
            return
        known = {
            (facts.producer_id, id(log)) for facts in unfinished for log in self._logs_of(facts)
        }
        for log in self._doors.all_logs():
            for producer_id in log.open_transactions():
                if (producer_id, id(log)) not in known:
                    self._abort_stray(log, producer_id)

    @staticmethod
    def _abort_stray(log: PartitionHandle, producer_id: int) -> None:
        place = f"{log.stream}/{log.id}"
        try:
            log.end_transaction(Marker.ABORT, producer_id, 0)
        except OnelogError as error:
            _log.error(
                "a transaction that nobody knows could not be aborted",
                partition=place,
                producer_id=producer_id,
                error=str(error),
            )
        else:
            _log.warning(
                "a transaction that nobody knows was aborted",
                partition=place,
                producer_id=producer_id,
            )


class Work:
    """The end of one transaction. Call `run` again when it failed."""

    def __init__(
        self, facts: Facts, decider: Decider, places: list[PartitionPlace], doors: Doors
    ) -> None:
        self._facts = facts
        self._decider = decider
        self._doors = doors
        self._unmarked = places
        self._unseen: list[tuple[PartitionPlace, PartitionHandle, Offset]] = []
        self._groups = sorted(facts.groups)

    async def run(self) -> None:
        """Do what is left. Returns when all of it is durable. Raises OnelogError."""
        marker, _state = OUTCOMES[self._facts.state]
        far, failure = self._mark_here(marker)
        if far:
            done = await asyncio.gather(
                self._end_here(marker),
                *(self._mark_there(place, marker) for place in far),
                return_exceptions=True,
            )
            for error in done:
                if isinstance(error, OnelogError):
                    failure = error
                elif error is not None:
                    raise error
        else:
            await self._end_here(marker)
        if failure is not None:
            raise failure

    async def _end_here(self, marker: Marker) -> None:
        committed = marker is Marker.COMMIT
        while self._groups:
            await self._doors.complete_offsets(
                self._groups[-1], self._facts.producer_id, self._decider, committed=committed
            )
            self._groups.pop()
        while self._unseen:
            place, log, offset = self._unseen[-1]
            try:
                await log.wait_visible(offset)
            except Timeout:  # another node leads it now, and may not have the marker
                self._unseen.pop()
                self._unmarked.append(place)
                raise
            self._unseen.pop()

    async def _mark_there(self, place: PartitionPlace, marker: Marker) -> None:
        await self._doors.end_elsewhere(place, marker, self._facts.producer, self._decider)
        self._unmarked.remove(place)

    def _mark_here(self, marker: Marker) -> tuple[list[PartitionPlace], OnelogError | None]:
        """Write every marker that can be written here now. Returns the places that others lead, and
        the last error, if any."""
        failure: OnelogError | None = None
        far: list[PartitionPlace] = []
        left: list[PartitionPlace] = []
        for place in self._unmarked:
            log = self._doors.at(place)
            if log is None:
                continue
            if not self._doors.is_here(log):
                far.append(place)
                left.append(place)
                continue
            faults.hit("kafka.txn.marker")
            try:
                offset = self._doors.end_here(
                    log, marker, self._facts.producer, self._decider.epoch
                )
            except OnelogError as error:
                failure = error
                left.append(place)
            else:
                self._unseen.append((place, log, offset))
        self._unmarked = left
        return far, failure
