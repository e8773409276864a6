"""The link request: commit the transactions of a query's batch, together and once, or abort them.

Rules:
- The mark and the outcomes of all members are one append: `kafka.txn.linked` is the point from
  which the batch counts.
- All members or none: one that is not open, or not this producer's, refuses the whole batch, and
  the query runs it again.
- A batch that is at or below the mark is answered with "already", which is success: its rows are
  in the log. So a driver asks again for as long as it had no answer.
- An abort undoes nothing that was linked: only open transactions are aborted.
- Every request also aborts other transactions that the query left open for this batch or an earlier
  one (tasks that failed, drivers that died).
- The user that links must be allowed to write to every topic that the members wrote to, and to own
  the members of the batch, also where it has none: its mark keeps other users from the query. An
  abort that finds nothing to abort needs no right, so that it hides no other error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base import faults
from onelog.base.clock import Clock
from onelog.base.errors import NotOwner, OnelogError, Timeout
from onelog.broker import Action
from onelog.broker.kept import KeptRow
from onelog.config.kafka import KafkaTransactions
from onelog.observe import Sample, get_logger
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import authorize, check_transaction
from onelog.protocols.kafka.transactions import links, rules
from onelog.protocols.kafka.transactions.ids import Transaction, TransactionalIds
from onelog.protocols.kafka.transactions.links import (
    LinkedMember,
    LinkRequest,
    Outcome,
    QueryMark,
    QueryMarks,
)
from onelog.protocols.kafka.transactions.state import (
    IDLE,
    Facts,
    Producer,
    State,
    encode,
)

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
ROWS_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of one link in the coordinator's log."""
SWEPT_MAX: Final = 10_000
"""Left-over transactions that one request aborts; the next one goes on."""
VISIBLE_WAIT_S: Final = 10.0
"""How long an answer waits for the markers; readers see the batch after them."""
FORGOTTEN_AT_ONCE: Final = 1000

_log = get_logger("kafka")

Step = tuple[Transaction, Facts]
Write = Callable[[Sequence[Step], Sequence[KeptRow]], asyncio.Future[None]]
"""Appends steps and other rows together. The future is done when they are durable."""
Check = Callable[[Facts], None]
"""Raises KafkaError if the caller may not write to a topic of the transaction."""


class Linker:
    """Decides batches of queries. Made by the coordinator, whose tables and log it uses."""

    def __init__(
        self,
        ids: TransactionalIds,
        clock: Clock,
        settings: KafkaTransactions,
        write: Write,
        forget: Callable[[list[Transaction]], None],
        shard_of: Callable[[bytes], int],
    ) -> None:
        self._ids = ids
        self._clock = clock
        self._settings = settings
        self._write = write
        self._forget = forget
        self._shard_of = shard_of
        self.marks = QueryMarks(settings.marks)
        self.linked = 0
        self.replayed = 0
        self._newest: dict[int, asyncio.Future[None]] = {}
        """By shard: done when every mark is durable."""

    async def link(self, request: LinkRequest, owner: str, check: Check) -> Outcome:
        """Decide a batch. Returns when that is durable, and mostly when readers see it."""
        members = _members_of(request)
        self.marks.check_owner(request.query, owner)
        left_over = [
            row
            for row in self._ids.members(request.query, request.batch)
            if row.id not in members or not request.commit
        ][:SWEPT_MAX]
        for row in left_over:
            check(row.written)
        outcome: Outcome = "aborted"
        deciding: list[Transaction] = []
        if request.commit and request.batch > self.marks.batch(request.query):
            steps = self._commits(members, check)
            put = self._append(request, owner, steps)
            self._newest[self._shard_of(request.query.encode())] = put
            deciding = [transaction for transaction, _facts in steps]
            outcome = "linked"
            self.linked += 1
        elif request.commit:
            left_over += self._open_among(members, check)
            outcome = "already"
            self.replayed += 1
        deciding += self._sweep(left_over)
        waits = [row.put for row in deciding if row.put is not None]
        newest = self._newest.get(self._shard_of(request.query.encode()))
        if newest is not None:
            waits.append(newest)
        for put in waits:
            await durable(put)
        faults.hit("kafka.txn.linked")
        await _until_ended(deciding)
        return outcome

    def _commits(self, members: dict[str, Producer], check: Check) -> list[Step]:
        now_ms, steps = self._clock.now_ms(), []
        for transactional_id, producer in members.items():
            transaction = self._ids.find(transactional_id)
            if transaction is None:
                raise KafkaError(
                    ErrorCode.invalid_producer_id_mapping,
                    f"the transaction {transactional_id} is over: it was aborted, perhaps because"
                    " it took longer than its timeout; run the batch again",
                )
            rules.check_owner(transaction.written, producer)
            check(transaction.written)
            steps.append((transaction, rules.ended(transaction.written, now_ms, commit=True)))
        if sum(len(encode(facts)) for _row, facts in steps) > ROWS_BYTES_MAX:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"the {len(steps)} members of a link touch too many partitions:"
                f" together they may take {ROWS_BYTES_MAX} bytes in the coordinator's log;"
                " use fewer tasks",
            )
        return steps

    def _append(
        self, request: LinkRequest, owner: str, steps: Sequence[Step]
    ) -> asyncio.Future[None]:
        query = request.query
        gone = self.marks.room_for(query)
        mark = QueryMark(request.batch, owner, self._clock.now_ms(), request.once)
        faults.hit("kafka.txn.linking")
        put = self._write(
            steps,
            [
                (links.key_of(query), links.encode(mark)),
                *((links.key_of(name), None) for name in gone),
            ],
        )
        self.marks.drop(gone)
        self.marks.put(query, mark)
        return put

    def _open_among(self, members: dict[str, Producer], check: Check) -> list[Transaction]:
        """Open transactions for a batch that was linked already: those that were linked are not
        open."""
        found = []
        for transactional_id, producer in members.items():
            transaction = self._ids.find(transactional_id)
            if transaction is not None and transaction.written.producer == producer:
                check(transaction.written)
                found.append(transaction)
        return found

    def _sweep(self, rows: Sequence[Transaction]) -> list[Transaction]:
        """Abort open transactions, forget those that never began. Returns those that are being
        aborted."""
        now_ms, aborted = self._clock.now_ms(), []
        try:
            for row in rows:
                if row.written.state is State.ONGOING:
                    self._write([(row, rules.fenced(row.written, now_ms))], ())
                    aborted.append(row)
            self._forget([row for row in rows if row.written.state in IDLE])
        except OnelogError as error:
            # The next request tries again, or their timeout comes.
            _log.error("left-over transactions of a query stay open", error=str(error))
        return aborted

    def forget_unused(self) -> bool:
        """Drop marks that are too old. Returns whether there are more."""
        now_ms, settings = self._clock.now_ms(), self._settings
        unused = self.marks.unused(
            now_ms - settings.mark_expiry_ms, now_ms - settings.id_expiry_ms, FORGOTTEN_AT_ONCE
        )
        if unused:
            put = self._write((), [(links.key_of(query), None) for query in unused])
            put.add_done_callback(unheeded)  # a mark that comes back is forgotten again
            self._newest.update((self._shard_of(query.encode()), put) for query in unused)
            self.marks.drop(unused)
        return len(unused) == FORGOTTEN_AT_ONCE

    def drop(self, shard: int) -> None:
        """Another node links the batches of a shard's queries."""
        self._newest.pop(shard, None)
        self.marks.drop([row for row in self.marks if self._shard_of(row.encode()) == shard])

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        rows = (
            ("links_total", "Batches of queries that were linked.", self.linked),
            ("links_replayed_total", "Batches of queries that were there already.", self.replayed),
        )
        for name, about, value in rows:
            yield Sample(f"onelog_kafka_{name}", about, "counter", value)
        yield Sample(
            "onelog_kafka_link_marks",
            "Queries whose last linked batch is remembered.",
            "gauge",
            len(self.marks),
        )


async def durable(put: asyncio.Future[None]) -> None:
    """Wait for a row. Raises OnelogError; NotOwner when another node owns the rows now, which may
    have this one: it is asked again there."""
    try:
        await asyncio.shield(put)
    except Timeout as error:
        raise NotOwner(f"another node coordinates this transaction now: {error}") from None


def unheeded(future: asyncio.Future[None]) -> None:
    """Nobody waits for the future: ignore its error."""
    if not future.cancelled():
        future.exception()


def _members_of(request: LinkRequest) -> dict[str, Producer]:
    batch = LinkedMember(request.query, request.batch)
    members: dict[str, Producer] = {}
    for transactional_id, producer_id, epoch in request.members:
        if links.member_of(transactional_id) != batch or transactional_id in members:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"{transactional_id!r} is no member of batch {batch.batch} of {batch.query},"
                " or named twice",
            )
        members[transactional_id] = Producer(producer_id, epoch)
    return members


async def _until_ended(transactions: Sequence[Transaction]) -> None:
    """Wait for markers. Those that cannot be written now follow later; the outcome stands."""
    endings = [row.ending for row in transactions if row.ending is not None]
    if endings:
        await asyncio.wait(endings, timeout=VISIBLE_WAIT_S)


async def link(hub: Hub, request: Request) -> bytes:
    """Serve the private request (docs/reference/kafka.md)."""
    principal = request.connection.principal
    assert principal is not None, "nothing is asked before the login"

    def check(facts: Facts) -> None:
        check_transaction(hub, request, links.batch_of(wish.query, wish.batch))
        for name in {topic for topic, _partition in facts.partitions}:
            topic = hub.topics.find(name)
            if topic is not None:  # nothing is written to a topic that is gone
                authorize(hub, principal, Action.PUBLISH, topic.address)

    try:
        wish = _decode(request.body)
        if wish.commit:
            check_transaction(hub, request, links.batch_of(wish.query, wish.batch))
        for transactional_id, _producer_id, _epoch in wish.members:
            check_transaction(hub, request, transactional_id)
        hub.transactions.check_query(wish.query)
        outcome = await hub.transactions.links.link(wish, principal.name, check)
    except OnelogError as error:
        return msgspec.json.encode({"error": int(code_of(error)), "message": str(error)})
    return msgspec.json.encode({"error": int(ErrorCode.none), "outcome": outcome})


def _decode(body: bytes) -> LinkRequest:
    if len(body) > REQUEST_BYTES_MAX:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"a link request has at most {REQUEST_BYTES_MAX} bytes, not {len(body)}",
        )
    try:
        return msgspec.json.decode(body, type=LinkRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KafkaError(
            ErrorCode.invalid_request, f"a link request cannot be read: {error}"
        ) from None
