"""Batches that nodes forward to the leader of a partition: checked, appended, answered.

Rules:
- The bytes come from outside: each batch is one of a node's own kind, with its CRC and its records
  walked, before anything is appended. What a node forwards wrongly is refused; a node that forwards
  more than was agreed ends its link.
- A batch is appended only by the leader of the epoch that its sender names, and only for a node
  that is registered. Rights, quotas and hooks are the matter of the node where the publisher is.
- All batches that come in one pass for one partition are one append, in the order in which they
  came. One with a producer's sequence is appended alone, because it may be a repeat.
- The answer goes out when the batch is below the high watermark, or when it is refused; then all
  that follow it in the same attempt are refused, too.
- What a node has not been answered for is bounded; of a link that is gone, nothing is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from onelog.base.errors import (
    CorruptBatch,
    DuplicateSequence,
    InvalidTxnState,
    MessageTooLarge,
    NotLeader,
    OnelogError,
    OutOfOrderSequence,
    ProducerFenced,
    StorageFull,
    Unavailable,
)
from onelog.base.ids import Offset
from onelog.base.limits import BATCH_BYTES_MAX, FORWARD_WINDOW_BYTES, FORWARDS_MAX
from onelog.cluster.forward_frames import ForwardBatch, Forwarded, ForwardOutcome
from onelog.cluster.link.hello import Sender
from onelog.cluster.link.layout import LinkViolation
from onelog.kernel import BatchInfo, check_produce_batch
from onelog.log.handle import PartitionHandle
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

FAILED: Final = "forward-append"
"""Incidents: a forwarded batch met a fault of ours."""

_OUTCOMES: Final[tuple[tuple[type[OnelogError], ForwardOutcome], ...]] = (
    # What an error says that was raised before anything was appended; the first match counts.
    (NotLeader, ForwardOutcome.NOT_LEADER),
    (StorageFull, ForwardOutcome.FULL),
    (MessageTooLarge, ForwardOutcome.TOO_LARGE),
    (CorruptBatch, ForwardOutcome.INVALID),
    (OutOfOrderSequence, ForwardOutcome.OUT_OF_ORDER),
    (ProducerFenced, ForwardOutcome.FENCED),
    (InvalidTxnState, ForwardOutcome.IN_TRANSACTION),
    (Unavailable, ForwardOutcome.TOO_FEW),
)


class ForwardHost(Protocol):
    """The node, as its desk sees it."""

    def led(self, key: PartitionKey) -> PartitionHandle | None:
        """A partition that this node leads; None: it does not."""
        ...

    def is_registered(self, sender: Sender) -> bool:
        """Whether a node is registered."""
        ...

    def answer(self, sender: Sender, answer: Forwarded) -> None:
        """Tell a node; without a link the answer is lost."""
        ...


class _Book:
    """What one node, over one link, has not been answered for."""

    __slots__ = ("count", "is_closed", "refused", "sender", "size")

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.count = self.size = 0
        self.is_closed = False
        self.refused: dict[PartitionKey, int] = {}
        """The attempt in which a batch of a partition was refused."""


class _Row:
    """One batch, and whom to answer."""

    __slots__ = ("batch", "book", "size")

    def __init__(self, book: _Book, batch: ForwardBatch) -> None:
        self.book = book
        self.batch = batch
        self.size = len(batch.data)


class ForwardDesk:
    """The leader's side of forwards."""

    def __init__(
        self,
        host: ForwardHost,
        soon: Callable[[Callable[[], object]], object],
        troubles: Troubles,
    ) -> None:
        """`soon` calls at the end of the pass."""
        self._host = host
        self._soon = soon
        self._troubles = troubles
        self._books: dict[int, _Book] = {}
        self._pending: list[_Row] = []
        self.appended = self.refused = 0

    def take(self, sender: Sender, batch: ForwardBatch) -> None:
        """A batch came. Raises LinkViolation."""
        book = self._books.get(sender.node)
        if book is None:
            book = self._books[sender.node] = _Book(sender)
        if book.count >= 2 * FORWARDS_MAX or book.size >= 2 * FORWARD_WINDOW_BYTES:
            raise LinkViolation(f"{book.size} forwarded bytes are not answered: too many")
        row = _Row(book, batch)
        assert row.size <= BATCH_BYTES_MAX + 1024 * 1024, "frames are bounded"
        book.count += 1
        book.size += row.size
        if not self._pending:
            self._soon(self._write)
        self._pending.append(row)

    def forget(self, node: int) -> None:
        """The link to a node is gone: it learns nothing of what it sent."""
        book = self._books.pop(node, None)
        if book is not None:
            book.is_closed = True

    # -- appending

    def _write(self) -> None:
        pending, self._pending = self._pending, []
        by_partition: dict[PartitionKey, list[_Row]] = {}
        for row in pending:
            by_partition.setdefault(row.batch.partition, []).append(row)
        for key, rows in by_partition.items():
            try:
                self._write_to(key, rows)
            except Exception as error:  # noqa: BLE001 - the other partitions go on
                self._troubles.note(FAILED, f"{key.stream_id}/{key.partition}", error)

    def _write_to(self, key: PartitionKey, rows: list[_Row]) -> None:
        partition = self._host.led(key)
        together: list[_Row] = []
        for row in rows:
            if self._is_late(row):
                self._refuse(row, ForwardOutcome.AFTER_REFUSED)
                continue
            try:
                info, repeated = self._check(row, partition, together)
            except DuplicateSequence:
                assert partition is not None
                self._await_repeated(partition, row)
                continue
            except OnelogError as error:
                # What came before it is appended first: its refusal may say what is known then.
                self._refuse(row, _outcome_of(error), error)
                continue
            assert partition is not None
            if repeated is not None:
                self._await(partition, [row], [repeated[0]], repeated[1])
            elif info.producer_id >= 0:
                self._append(partition, [row])
            else:
                together.append(row)
        if together:
            assert partition is not None
            self._append(partition, together)

    def _check(
        self, row: _Row, partition: PartitionHandle | None, together: list[_Row]
    ) -> tuple[BatchInfo, tuple[int, int] | None]:
        """The batch, and the offsets (first, end) of the append that it repeats. Raises why it is
        refused."""
        batch = row.batch
        if partition is None or batch.leader_epoch != partition.leader_epoch:
            raise NotLeader("another node leads, or this one in another epoch")
        if not self._host.is_registered(row.book.sender):
            raise NotLeader(f"node {row.book.sender.node} is not registered")
        info, _latest = check_produce_batch(batch.data, 0, row.size, False)
        if info.attributes:
            raise CorruptBatch(f"a node forwards plain batches, not with {info.attributes:#x}")
        if info.producer_id >= 0 and together:  # they came first
            self._append(partition, together.copy())
            together.clear()
        # Its node checked the size of each message; the batch holds all of a pass, and is larger.
        size = min(info.size_bytes, partition.message_bytes_max)
        repeated = partition.check_batch(info._replace(size_bytes=size))
        return info, None if repeated is None else (repeated.base_offset, repeated.end_offset)

    def _is_late(self, row: _Row) -> bool:
        """Whether an earlier batch of the same attempt was refused."""
        refused, key = row.book.refused, row.batch.partition
        attempt = refused.get(key)
        if attempt is None:
            return False
        if attempt >= row.batch.attempt:
            return True
        del refused[key]
        return False

    def _append(self, partition: PartitionHandle, rows: list[_Row]) -> None:
        """Append batches as one write, and answer them when they are visible."""
        data = bytearray()
        for row in rows:
            data += row.batch.data
        try:
            placed = partition.append_checked(data)
        except (NotLeader, StorageFull, Unavailable) as error:  # nothing was appended
            for row in rows:
                self._refuse(row, _outcome_of(error), error)
            return
        except Exception as error:  # noqa: BLE001 - it may have been appended, or not
            self._troubles.note(FAILED, f"{partition.stream}/{partition.id}", error)
            for row in rows:
                self._refuse(row, ForwardOutcome.UNKNOWN)
            return
        self.appended += len(rows)
        bases = [info.base_offset for info in placed]
        self._await(partition, rows, bases, placed[-1].last_offset + 1)

    def _await(
        self, partition: PartitionHandle, rows: list[_Row], bases: list[int], end: int
    ) -> None:
        if end <= partition.high_watermark:
            self._visible(rows, bases, None)
        else:
            partition.when_visible(Offset(end - 1), partial(self._visible, rows, bases))

    def _await_repeated(self, partition: PartitionHandle, row: _Row) -> None:
        """It was appended, and nobody knows where: it is visible when all is."""

        def visible(error: OnelogError | None) -> None:
            seen = ForwardOutcome.DUPLICATE if error is None else ForwardOutcome.UNKNOWN
            self._refuse(row, seen)

        partition.when_visible(Offset(partition.end_offset - 1), visible)

    # -- answers

    def _visible(self, rows: list[_Row], bases: list[int], error: OnelogError | None) -> None:
        for row, base in zip(rows, bases, strict=True):
            if error is None:
                self._answer(row, ForwardOutcome.DONE, base)
            else:
                self._refuse(row, ForwardOutcome.UNKNOWN)

    def _refuse(self, row: _Row, outcome: ForwardOutcome, error: OnelogError | None = None) -> None:
        self.refused += 1
        book, batch = row.book, row.batch
        book.refused[batch.partition] = max(book.refused.get(batch.partition, 0), batch.attempt)
        if isinstance(error, CorruptBatch):
            self._troubles.note(FAILED, f"from node {book.sender.node}", error)
        self._answer(row, outcome, 0)

    def _answer(self, row: _Row, outcome: ForwardOutcome, base: int) -> None:
        book = row.book
        book.count -= 1
        book.size -= row.size
        if not book.is_closed:
            batch = row.batch
            said = Forwarded(batch.number, outcome, batch.leader_epoch, base)
            self._host.answer(book.sender, said)


def _outcome_of(error: OnelogError) -> ForwardOutcome:
    """What is answered for an error that came before anything was appended."""
    for kind, outcome in _OUTCOMES:
        if isinstance(error, kind):
            return outcome
    return ForwardOutcome.NOT_LEADER  # it stopped: another node will lead
