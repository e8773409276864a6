"""The transactional ids that a broker remembers: a bounded table, longest unused first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from onelog.observe import Sample
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.transactions import rules
from onelog.protocols.kafka.transactions.links import member_of
from onelog.protocols.kafka.transactions.state import IDLE, Facts


class Timer(Protocol):
    """A call that will come, unless it is cancelled."""

    def cancel(self) -> None:
        """Never call."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class Transaction:
    """One transactional id."""

    __slots__ = (
        "deadline",
        "durable",
        "ending",
        "id",
        "is_lost",
        "member",
        "newest_connection",
        "put",
        "written",
    )

    def __init__(self, transactional_id: str, facts: Facts) -> None:
        self.id = transactional_id
        self.member = member_of(transactional_id)
        """The batch of a query that decides it; None: its producer does. Such an id is forgotten
        when its transaction is over, because it is not used again."""
        self.written = facts
        """The last row that was appended: the next step builds on it."""
        self.durable = facts
        """The last row that is durable: answers rely on it."""
        self.put: asyncio.Future[None] | None = None
        """Done when the last row is durable; None: it was recovered."""
        self.newest_connection = 0
        """The newest connection that added to a transaction or ended it."""
        self.deadline: Timer | None = None
        self.ending: asyncio.Task[None] | None = None
        """Writes its markers."""
        self.is_lost = False
        """Another node owns it now."""


class TransactionalIds:
    """Every transactional id, in the order of their last change."""

    def __init__(self) -> None:
        self._rows: dict[str, Transaction] = {}
        self._queries: dict[str, dict[str, Transaction]] = {}
        """The transactions of each query."""

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._rows.values())

    def fill(self, rows: Iterable[Transaction]) -> None:
        """Take recovered rows."""
        for row in sorted([*self._rows.values(), *rows], key=lambda row: row.written.updated_ms):
            self.touch(row)

    def find(self, transactional_id: str) -> Transaction | None:
        """A transactional id; None: it is unknown."""
        return self._rows.get(transactional_id)

    def get(self, transactional_id: str) -> Transaction:
        """A transactional id. Raises KafkaError."""
        found = self._rows.get(transactional_id)
        if found is None:
            raise KafkaError(
                ErrorCode.invalid_producer_id_mapping,
                f"the transactional id {transactional_id} is not known; begin with InitProducerId",
            )
        return found

    def touch(self, transaction: Transaction) -> None:
        """It changed: it moves to the end."""
        self._rows.pop(transaction.id, None)
        self._rows[transaction.id] = transaction
        if transaction.member is not None:
            self._queries.setdefault(transaction.member.query, {})[transaction.id] = transaction

    def drop(self, transaction: Transaction) -> None:
        """Forget it."""
        del self._rows[transaction.id]
        if transaction.member is not None:
            query = transaction.member.query
            del self._queries[query][transaction.id]
            if not self._queries[query]:
                del self._queries[query]

    def members(self, query: str, last_batch: int) -> list[Transaction]:
        """The transactions of a query's batches up to the last one."""
        return [
            row
            for row in self._queries.get(query, {}).values()
            if row.member is not None and row.member.batch <= last_batch
        ]

    def unused(self, before_ms: int, count_max: int) -> list[Transaction]:
        """Ids without a transaction that have not changed since `before_ms`."""
        found: list[Transaction] = []
        for row in self._rows.values():
            if row.written.updated_ms >= before_ms or len(found) == count_max:
                break
            if rules.is_forgettable(row.written, before_ms):
                found.append(row)
        return found

    def longest_idle(self) -> Transaction | None:
        """The id without a transaction that has been idle longest; None: all have one."""
        return next((row for row in self._rows.values() if row.written.state in IDLE), None)

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        open_now = sum(row.durable.state not in IDLE for row in self._rows.values())
        yield Sample(
            "onelog_kafka_transactional_ids",
            "Transactional ids that are remembered.",
            "gauge",
            len(self._rows),
        )
        yield Sample("onelog_kafka_transactions", "Transactions open now.", "gauge", open_now)
