"""The transaction coordinator: the owner of a transactional id, its partitions, and its end.

Rules:
- Every step is a row of the internal stream `~transactions`, and is answered when the row is
  durable (I4). Rows are in order, so a step builds on the one before without waiting for it.
- A record may be written for a transaction only while its durable row says so, and only by the
  exact producer id and epoch (KIP-890). So a partition never holds a transaction that the
  coordinator does not know.
- EndTxn is answered once the outcome is durable; the markers follow (`endings.py`). Until they are
  written the transactional id is busy: CONCURRENT_TRANSACTIONS.
- Clients before KIP-890's second version keep their epoch from one transaction to the next, so the
  epoch does not reveal a delayed request. The connection does: a client that abandons a request
  opens a new connection, and later requests of the older one are refused.
- A transaction that takes longer than its timeout is aborted, and its producer fenced.
- The ids of a shard are known while this node owns it. A new owner goes on with what was decided;
  its epoch is in every marker, and partitions refuse the markers of owners before it.
- Transactional ids are bounded: beyond that the one that is unused longest is forgotten. Its
  producer, if it lives, is refused and begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from onelog.base import faults
from onelog.base.clock import Clock
from onelog.base.errors import NotOwner, OnelogError, StateUnknown
from onelog.broker.kept import KeptRow, KeptTable
from onelog.broker.producer_ids import ProducerIds
from onelog.broker.shards import Shards
from onelog.config.kafka import KafkaTransactions
from onelog.observe import Sample, get_logger
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.transactions import links, rules
from onelog.protocols.kafka.transactions.completion import Completion
from onelog.protocols.kafka.transactions.endings import PAUSE_MIN_S, Endings
from onelog.protocols.kafka.transactions.ids import (
    CallLater,
    Timer,
    Transaction,
    TransactionalIds,
)
from onelog.protocols.kafka.transactions.linking import Linker, Step, durable, unheeded
from onelog.protocols.kafka.transactions.participants import Decider
from onelog.protocols.kafka.transactions.state import (
    IDLE,
    OUTCOMES,
    Facts,
    Producer,
    State,
    decode,
    encode,
)

STREAM: Final = "~transactions"
ID_CHARS_MAX: Final = 1024
SWEEP_S: Final = 600.0
"""How often unused ids are searched for."""
FORGOTTEN_AT_ONCE: Final = 1000

OUTSIDE: Final = (ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable)
"""The error of a write outside its transaction: for older clients, and for those of KIP-890."""

_log = get_logger("kafka")


class Coordinator:
    """Every transactional id of the shards here. Make one with `Coordinator.open`."""

    name: Final = "kafka-transactions"

    def __init__(
        self,
        table: KeptTable,
        shards: Shards,
        completion: Completion,
        producer_ids: ProducerIds,
        clock: Clock,
        settings: KafkaTransactions,
        call_later: CallLater,
    ) -> None:
        self._table = table
        self._shards = shards
        self._epochs: dict[int, int] = {}
        """The epoch of this node as the owner of each shard that it has taken."""
        self._completion = completion
        self._producer_ids = producer_ids
        self._clock = clock
        self._settings = settings
        self._call_later = call_later
        self._ids = TransactionalIds()
        self.links = Linker(
            self._ids, clock, settings, self._write_all, self._forget, self._shards.of
        )
        self.endings = Endings(completion, call_later, self._finish)
        self._sweep: Timer | None = None
        self.timeouts = 0

    @classmethod
    async def open(
        cls,
        table: KeptTable,
        shards: Shards,
        completion: Completion,
        producer_ids: ProducerIds,
        clock: Clock,
        settings: KafkaTransactions,
        call_later: CallLater | None = None,
    ) -> Coordinator:
        """Recover every transactional id of the shards here. Transactions that were being ended are
        ended. Raises StateUnknown."""
        later = call_later or asyncio.get_running_loop().call_later
        coordinator = cls(table, shards, completion, producer_ids, clock, settings, later)
        await shards.register(coordinator)
        if len(coordinator._epochs) == len(shards):
            unfinished = [row.written for row in coordinator._ids if row.written.state not in IDLE]
            completion.abort_strays(unfinished)
        coordinator._sweep_later()
        return coordinator

    # -- shards

    async def take(self, shard: int) -> None:
        """Recover the transactional ids of a shard. Raises StateUnknown."""
        rows = await self._table.load(shard)
        self._epochs[shard] = self._table.epoch(shard)
        self._recover(rows)

    async def drop(self, shard: int) -> None:
        """See `ShardService`: what was decided, the next owner ends."""
        self._epochs.pop(shard, None)
        lost = [row for row in self._ids if self._shard_of(row.id) == shard]
        for transaction in lost:
            transaction.is_lost = True
            self._disarm(transaction)
            self._ids.drop(transaction)
        self.links.drop(shard)
        await self.endings.drop(lost)

    def _shard_of(self, transactional_id: str) -> int:
        return self._shards.of(links.name_of(transactional_id.encode()))

    def check(self, transactional_id: str) -> None:
        """Raise NotOwner, StateLoading or StateUnknown unless this node answers for an id."""
        self._shards.check(self, links.name_of(transactional_id.encode()))

    def check_query(self, query: str) -> None:
        """As `check`, for the batches of a query."""
        self._shards.check(self, query.encode())

    def owns(self, transactional_id: str) -> bool:
        """Whether this node, and no other, answers for an id. Raises StateLoading, StateUnknown."""
        try:
            self.check(transactional_id)
        except NotOwner:
            return False
        return True

    @property
    def unlisted(self) -> OnelogError | None:
        """Why not all ids that this node owns can be listed; None: they can."""
        return self._shards.unlisted(self)

    def decider(self, transactional_id: str) -> Decider:
        """The coordinator of an id that is owned here."""
        shard = self._shard_of(transactional_id)
        return Decider(shard, self._epochs[shard])

    def _recover(self, kept: Mapping[bytes, bytes]) -> None:
        rows: list[Transaction] = []
        marks: list[tuple[str, links.QueryMark]] = []
        for key, value in kept.items():
            try:
                query = links.query_of(key)
                if query is not None:
                    marks.append((query, links.decode(value)))
                else:
                    rows.append(Transaction(key.decode(), decode(value)))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise StateUnknown(
                    f"the stream {STREAM} holds a row that cannot be read ({key!r}: {error})."
                    " Restore the stream from a backup, then restart"
                ) from None
        self._ids.fill(rows)
        self.links.marks.fill(marks)
        for transaction in rows:
            if transaction.written.state in OUTCOMES:
                self.endings.begin(transaction, self.decider(transaction.id), recovered=True)
            elif transaction.written.state is State.ONGOING:
                self._arm(transaction)

    async def close(self) -> None:
        """Stop all timers. Transactions that are being ended go on at the next start."""
        self._shards.remove(self)
        if self._sweep is not None:
            self._sweep.cancel()
        for transaction in self._ids:
            self._disarm(transaction)
        await self.endings.close()

    # -- looking

    def find(self, transactional_id: str) -> Facts | None:
        """The durable facts of a transactional id. Raises OnelogError."""
        self.check(transactional_id)
        transaction = self._ids.find(transactional_id)
        return None if transaction is None else transaction.durable

    def listed(self) -> Iterator[tuple[str, Facts]]:
        """Every transactional id."""
        for transaction in self._ids:
            yield transaction.id, transaction.durable

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        yield from self._ids.samples()
        totals = (
            ("committed", "Transactions that committed.", self.endings.commits),
            ("aborted", "Transactions that aborted.", self.endings.aborts),
            ("timed_out", "Transactions that took too long.", self.timeouts),
        )
        for name, about, value in totals:
            yield Sample(f"onelog_kafka_transactions_{name}_total", about, "counter", value)
        yield from self.links.samples()

    def verify(
        self,
        transactional_id: str | None,
        producer_id: int,
        epoch: int,
        topic: str,
        partition: int,
        *,
        abortable: bool = False,
    ) -> None:
        """Raise KafkaError unless this record batch belongs to a transaction under way.

        The caller appends in the same step of the loop. `abortable`: the client knows the error
        after which it may abort and go on.
        """
        outside = OUTSIDE[abortable]
        facts = self._writable(transactional_id, Producer(producer_id, epoch), outside)
        if (topic, partition) not in facts.partitions:
            raise KafkaError(
                outside,
                f"partition {partition} of {topic} was not added to the transaction of"
                f" {transactional_id}",
            )

    def verify_group(
        self, transactional_id: str, producer: Producer, group: str, *, abortable: bool = False
    ) -> None:
        """As `verify`, for the offsets of a group."""
        outside = OUTSIDE[abortable]
        if group not in self._writable(transactional_id, producer, outside).groups:
            raise KafkaError(
                outside,
                f"the group {group} was not added to the transaction of {transactional_id}",
            )

    def _writable(
        self, transactional_id: str | None, producer: Producer, outside: ErrorCode
    ) -> Facts:
        if not transactional_id:
            raise KafkaError(
                ErrorCode.transactional_id_authorization_failed,
                "records of a transaction came without a transactional id",
            )
        self.check(transactional_id)
        transaction = self._ids.get(transactional_id)
        rules.check_writable(transaction.written, producer, outside)
        if transaction.durable is not transaction.written:
            rules.check_writable(transaction.durable, producer, outside)
        return transaction.durable

    # -- requests

    async def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer | None = None,
    ) -> Producer:
        """The next epoch of a transactional id. Returns when that is durable."""
        if not 0 < len(transactional_id) <= ID_CHARS_MAX:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"a transactional id has 1 to {ID_CHARS_MAX} characters,"
                f" not {len(transactional_id)}",
            )
        links.check_id(transactional_id)
        self.check(transactional_id)
        if not 0 < timeout_ms <= self._settings.timeout_max_ms:
            raise KafkaError(
                ErrorCode.invalid_transaction_timeout,
                f"a transaction timeout is 1 to {self._settings.timeout_max_ms} ms, not"
                f" {timeout_ms} (kafka.transactions.timeout_max_ms)",
            )
        now_ms = self._clock.now_ms()
        transaction = self._ids.find(transactional_id)
        if transaction is None:
            self._make_room()
            facts = rules.first_producer(self._producer_ids.take(), timeout_ms, now_ms)
            transaction = Transaction(transactional_id, facts)
        else:
            facts = rules.next_producer(
                transaction.written, expected, timeout_ms, now_ms, self._producer_ids.take
            )
        put = self._write(transaction, facts)
        transaction.newest_connection = 0
        await durable(put)
        faults.hit("kafka.txn.begun")
        if facts.state is State.PREPARE_ABORT:
            raise KafkaError(
                ErrorCode.concurrent_transactions,
                f"a transaction of {transactional_id} was left open and is being aborted;"
                " try again",
            )
        return facts.producer

    async def add(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[tuple[str, int]] = frozenset(),
        groups: frozenset[str] = frozenset(),
        *,
        connection: int = 0,
    ) -> None:
        """Let the transaction write to more partitions and groups. The first call begins it."""
        transaction = self._own(transactional_id, producer, connection)
        facts = rules.added(
            transaction.written,
            partitions,
            groups,
            self._clock.now_ms(),
            partitions_max=self._settings.partitions,
        )
        await durable(self._write(transaction, facts))
        faults.hit("kafka.txn.added")

    async def end(
        self, transactional_id: str, producer: Producer, *, commit: bool, connection: int = 0
    ) -> None:
        """Commit or abort. Returns when the outcome is durable; the markers follow."""
        transaction = self._own(transactional_id, producer, connection)
        if commit and transaction.member is not None:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"{transactional_id} is committed with its whole batch, by a link request",
            )
        facts = rules.ended(transaction.written, self._clock.now_ms(), commit=commit)
        await durable(self._write(transaction, facts))
        faults.hit("kafka.txn.decided")

    async def abort(self, transactional_id: str) -> None:
        """Abort what is open, as a timeout does. Returns when the outcome is durable."""
        self.check(transactional_id)
        found = self._ids.get(transactional_id)
        await durable(self._write(found, rules.aborted(found.written, self._clock.now_ms())))

    def _own(self, transactional_id: str, producer: Producer, connection: int) -> Transaction:
        self.check(transactional_id)
        transaction = self._ids.get(transactional_id)
        rules.check_owner(transaction.written, producer)
        if connection < transaction.newest_connection:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"producer {producer.id} has gone on over a newer connection;"
                " a delayed request is not for this transaction",
            )
        transaction.newest_connection = connection
        return transaction

    # -- the log

    def _write(self, transaction: Transaction, facts: Facts) -> asyncio.Future[None]:
        """Append a step. The future is done when it is durable. A caller that waits for it shields
        it."""
        if facts is transaction.written and transaction.put is not None:
            return transaction.put
        return self._write_all([(transaction, facts)])

    def _write_all(
        self, steps: Sequence[Step], more: Sequence[KeptRow] = ()
    ) -> asyncio.Future[None]:
        """Append steps of several transactions, and other rows, as one batch."""
        rows = [(transaction.id.encode(), encode(facts)) for transaction, facts in steps]
        put = self._table.put([*more, *rows])
        for transaction, facts in steps:
            self._follow(transaction, facts, put)
        return put

    def _follow(self, transaction: Transaction, facts: Facts, put: asyncio.Future[None]) -> None:
        transaction.written, transaction.put = facts, put
        self._ids.touch(transaction)
        if facts.state is not State.ONGOING:
            self._disarm(transaction)
        elif transaction.deadline is None:
            self._arm(transaction)

        def settled(future: asyncio.Future[None]) -> None:
            if future.cancelled() or future.exception() is not None:
                return  # the stream stopped, or is another node's: nothing goes on from here
            transaction.durable = facts
            if facts.state in OUTCOMES and not transaction.is_lost:
                self.endings.begin(transaction, self.decider(transaction.id), recovered=False)

        put.add_done_callback(settled)

    # -- the end of a transaction

    def _finish(self, transaction: Transaction, facts: Facts) -> None:
        """The next step may build on this row at once: the log keeps their order."""
        done = rules.completed(facts, self._clock.now_ms())
        if transaction.member is None:
            self._write(transaction, done)
            return
        transaction.written = done
        self._forget([transaction])
        self._completion.forget_producer(facts)
        faults.hit("kafka.txn.forgotten")

    # -- time

    def _arm(self, transaction: Transaction) -> None:
        facts = transaction.written
        # A wall clock that was set back prolongs it by its timeout at most.
        age_ms = min(max(self._clock.now_ms() - facts.started_ms, 0), facts.timeout_ms)
        transaction.deadline = self._call_later(
            (facts.timeout_ms - age_ms) / 1000, lambda: self._time_out(transaction)
        )

    @staticmethod
    def _disarm(transaction: Transaction) -> None:
        if transaction.deadline is not None:
            transaction.deadline.cancel()
            transaction.deadline = None

    def _time_out(self, transaction: Transaction) -> None:
        transaction.deadline = None
        if transaction.written.state is not State.ONGOING:
            return
        try:
            self._write(transaction, rules.fenced(transaction.written, self._clock.now_ms()))
        except OnelogError as error:
            _log.error(
                "a transaction that timed out could not be aborted",
                transactional_id=transaction.id,
                error=str(error),
            )
            transaction.deadline = self._call_later(
                PAUSE_MIN_S, lambda: self._time_out(transaction)
            )
            return
        self.timeouts += 1
        _log.info("a transaction timed out", transactional_id=transaction.id)

    def _sweep_later(self) -> None:
        self._sweep = self._call_later(SWEEP_S, self._forget_unused)

    def _forget_unused(self) -> None:
        before_ms = self._clock.now_ms() - self._settings.id_expiry_ms
        unused = self._ids.unused(before_ms, FORGOTTEN_AT_ONCE)
        try:
            self._forget(unused)
            more = self.links.forget_unused() or len(unused) == FORGOTTEN_AT_ONCE
        except OnelogError as error:
            _log.error("unused transactional ids could not be forgotten", error=str(error))
            more = False
        if more:
            self._sweep = self._call_later(PAUSE_MIN_S, self._forget_unused)
        else:
            self._sweep_later()

    def _make_room(self) -> None:
        if len(self._ids) < self._settings.ids:
            return
        idle = self._ids.longest_idle()
        if idle is None:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"{self._settings.ids} transactional ids have a transaction open"
                " (kafka.transactions.ids)",
            )
        self._forget([idle])

    def _forget(self, unused: list[Transaction]) -> None:
        if not unused:
            return
        put = self._table.put([(transaction.id.encode(), None) for transaction in unused])
        put.add_done_callback(unheeded)  # nobody waits: an id that comes back is forgotten again
        now_ms = self._clock.now_ms()
        for transaction in unused:
            transaction.written = rules.forgotten(transaction.written, now_ms)
            self._ids.drop(transaction)
