"""The end of a transaction: one marker in every partition it touched, then the groups' offsets.

Rules:
- It can be interrupted anywhere and repeated: after a restart a marker is written only where this
  producer still has a transaction open, and within one run no step is done twice.
- It is complete when every marker is durable: only then may the coordinator forget the partitions
  of the transaction.
- A marker fences: a partition refuses lower epochs of the producer from then on.
- A partition that is gone needs no marker. One that is stopped or full gets it later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from onelog.base import faults
from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.broker import PartitionHandle
from onelog.observe import get_logger
from onelog.protocols.kafka.transactions.state import OUTCOMES, Facts
from onelog.record.batch import Marker

_log = get_logger("kafka")


class Doors(Protocol):
    """What the end of a transaction needs from outside."""

    def find_log(self, topic: str, partition: int) -> PartitionHandle | None:
        """The partition that holds the records of a topic's partition; None: it is gone."""
        ...

    def all_logs(self) -> Iterable[PartitionHandle]:
        """Every partition of the broker."""
        ...

    def complete_offsets(self, group: str, producer_id: int, committed: bool) -> Awaitable[None]:
        """Commit a group's pending offsets, or drop them. Durable when it returns."""
        ...


class Completion:
    """Ends transactions."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def begin(self, facts: Facts, *, recovered: bool) -> Work:
        """The work for a transaction's outcome."""
        logs = self._logs_of(facts)
        if recovered:
            logs = [log for log in logs if facts.producer_id in log.open_transactions()]
        return Work(facts, logs, self._doors.complete_offsets)

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
        transaction. It would hold back the last stable offset of its partition for ever.
        """
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
        self,
        facts: Facts,
        logs: list[PartitionHandle],
        complete_offsets: Callable[[str, int, bool], Awaitable[None]],
    ) -> None:
        self._facts = facts
        self._unmarked = logs
        self._unseen: list[tuple[PartitionHandle, Offset]] = []
        self._groups = sorted(facts.groups)
        self._complete_offsets = complete_offsets

    async def run(self) -> None:
        """Do what is left. Returns when all of it is durable. Raises OnelogError."""
        marker, _state = OUTCOMES[self._facts.state]
        failure = self._mark(marker)
        while self._groups:
            await self._complete_offsets(
                self._groups[-1], self._facts.producer_id, marker is Marker.COMMIT
            )
            self._groups.pop()
        while self._unseen:
            log, offset = self._unseen[-1]
            await log.wait_visible(offset)
            self._unseen.pop()
        if failure is not None:
            raise failure

    def _mark(self, marker: Marker) -> OnelogError | None:
        """Write every marker that can be written now. Returns the last error, if any."""
        failure: OnelogError | None = None
        left: list[PartitionHandle] = []
        for log in self._unmarked:
            faults.hit("kafka.txn.marker")
            try:
                ended = log.end_transaction(marker, self._facts.producer_id, self._facts.epoch)
            except OnelogError as error:
                failure = error
                left.append(log)
            else:
                self._unseen.append((log, ended.base_offset))
        self._unmarked = left
        return failure
