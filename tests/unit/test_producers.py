"""Idempotent producers and transactions: sequences, fencing, the stable end, aborted lists."""

import msgspec
import pytest

from onelog.base.errors import (
    CorruptBatch,
    DuplicateSequence,
    InvalidTxnState,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducer,
)
from onelog.kernel import ATTR_CONTROL, ATTR_TRANSACTIONAL, BatchInfo
from onelog.log import producers as producers_module
from onelog.log.producers import BATCHES_REMEMBERED, Producers, next_sequence
from onelog.record.batch import Marker

LAST_SEQUENCE = 2**31 - 1


def batch(
    offset: int,
    sequence: int,
    *,
    count: int = 1,
    producer: int = 7,
    epoch: int = 0,
    transactional: bool = False,
) -> BatchInfo:
    attributes = ATTR_TRANSACTIONAL if transactional else 0
    last = offset + count - 1
    return BatchInfo(0, 100, offset, last, 0, attributes, 5, 5, producer, epoch, sequence, count)


def marker(offset: int, *, producer: int = 7, epoch: int = 0) -> BatchInfo:
    attributes = ATTR_CONTROL | ATTR_TRANSACTIONAL
    return BatchInfo(0, 100, offset, offset, 0, attributes, 5, 5, producer, epoch, -1, 1)


def appended(*infos: BatchInfo) -> Producers:
    producers = Producers()
    for info in infos:
        assert producers.check(info) is None
        producers.note_batch(info, 1000)
    return producers


# -- sequences


def test_the_next_sequence_is_taken_and_a_gap_is_refused() -> None:
    producers = appended(batch(0, 0, count=3), batch(3, 3))
    assert producers.check(batch(4, 4)) is None
    with pytest.raises(OutOfOrderSequence):
        producers.check(batch(4, 6))


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert Producers().check(batch(0, 42)) is None


def test_a_batch_of_an_idempotent_producer_needs_a_sequence_and_an_epoch() -> None:
    with pytest.raises(CorruptBatch):
        Producers().check(batch(0, -1))
    with pytest.raises(CorruptBatch):
        Producers().check(batch(0, 0, epoch=-1))


def test_sequences_wrap_to_zero_after_two_to_the_31_minus_one() -> None:
    assert next_sequence(LAST_SEQUENCE) == 0
    producers = appended(batch(0, LAST_SEQUENCE - 1, count=2))
    assert producers.check(batch(2, 0)) is None
    with pytest.raises(OutOfOrderSequence):
        producers.check(batch(2, 1))


def test_a_batch_may_cross_the_wrap_and_be_recognised_again() -> None:
    crossing = batch(0, LAST_SEQUENCE, count=4)
    producers = appended(crossing)
    again = producers.check(batch(99, LAST_SEQUENCE, count=4))
    assert again is not None
    assert (again.base_offset, again.last_offset, again.last_sequence) == (0, 3, 2)
    assert producers.check(batch(4, 3)) is None


@pytest.mark.parametrize("back", range(1, BATCHES_REMEMBERED + 1))
def test_each_of_the_last_five_batches_is_answered_with_its_old_offset(back: int) -> None:
    producers = appended(*(batch(10 * n, 2 * n, count=2) for n in range(8)))
    wanted = 8 - back
    memory = producers.check(batch(500, 2 * wanted, count=2))
    assert memory is not None
    assert memory.base_offset == 10 * wanted


def test_a_repeat_older_than_five_batches_is_a_duplicate_without_an_offset() -> None:
    producers = appended(*(batch(n, n) for n in range(6)))
    with pytest.raises(DuplicateSequence):
        producers.check(batch(6, 0))


def test_a_repeat_with_another_count_is_no_repeat() -> None:
    producers = appended(batch(0, 0, count=2))
    with pytest.raises(DuplicateSequence):
        producers.check(batch(2, 0, count=3))


@pytest.mark.parametrize("outcome", [Marker.ABORT, Marker.COMMIT])
def test_a_sequence_of_a_transaction_that_has_ended_is_no_repeat_in_the_next(outcome) -> None:
    """C1, C6: what librdkafka takes back at an abort lends its numbers to other records."""
    producers = appended(batch(0, 0, count=2, transactional=True))
    producers.note_marker(marker(2), outcome, 1000)
    for count in (2, 1):
        with pytest.raises(UnknownProducer):
            producers.check(batch(3, 0, count=count, transactional=True))
    with pytest.raises(OutOfOrderSequence):
        producers.check(batch(3, 3, transactional=True))
    following = batch(3, 2, transactional=True)
    assert producers.check(following) is None
    producers.note_batch(following, 1000)
    again = producers.check(following)
    assert again is not None
    assert again.base_offset == 3
    with pytest.raises(UnknownProducer):
        producers.check(batch(4, 0, count=2, transactional=True))
    assert producers.check(batch(4, 0, epoch=1, transactional=True)) is None


# -- epochs


def test_an_older_epoch_is_fenced() -> None:
    producers = appended(batch(0, 0, epoch=3))
    with pytest.raises(ProducerFenced):
        producers.check(batch(1, 1, epoch=2))
    with pytest.raises(ProducerFenced):
        producers.check_marker(7, 2)


def test_a_newer_epoch_begins_with_sequence_zero_and_forgets_the_old_batches() -> None:
    producers = appended(batch(0, 0), batch(1, 1))
    with pytest.raises(OutOfOrderSequence):
        producers.check(batch(2, 2, epoch=1))
    producers.note_batch(batch(2, 0, epoch=1), 1000)
    with pytest.raises(ProducerFenced):
        producers.check(batch(3, 2))
    assert producers.check(batch(3, 0, epoch=1)) is not None


def test_a_marker_of_a_newer_epoch_fences_the_old_one() -> None:
    producers = appended(batch(0, 0, transactional=True))
    producers.note_marker(marker(1, epoch=1), Marker.ABORT, 1000)
    with pytest.raises(ProducerFenced):
        producers.check(batch(2, 1))
    assert producers.check(batch(2, 0, epoch=1)) is None


def test_after_a_marker_of_a_newer_epoch_the_sequence_begins_at_zero() -> None:
    producers = appended(batch(0, 0, transactional=True))
    producers.note_marker(marker(1, epoch=1), Marker.ABORT, 1000)
    with pytest.raises(OutOfOrderSequence):
        producers.check(batch(2, 1, epoch=1))
    again = Producers.decode(producers.encode())
    with pytest.raises(OutOfOrderSequence):
        again.check(batch(2, 1, epoch=1))


def test_a_marker_of_an_unknown_producer_fences_but_leaves_its_sequence_open() -> None:
    """Retention took its batches, not its right to go on where it was."""
    producers = Producers()
    producers.note_marker(marker(0, epoch=2), Marker.COMMIT, 1000)
    for state in (producers, Producers.decode(producers.encode())):
        assert state.check(batch(1, 42, epoch=2)) is None
        with pytest.raises(ProducerFenced):
            state.check(batch(1, 42, epoch=1))
    producers.note_batch(batch(1, 42, epoch=2), 1000)
    with pytest.raises(OutOfOrderSequence):
        producers.check(batch(2, 44, epoch=2))


# -- transactions


def test_a_transaction_opens_at_its_first_batch_and_ends_with_its_marker() -> None:
    producers = appended(batch(5, 0, transactional=True), batch(6, 1, transactional=True))
    assert producers.first_open_offset == 5
    assert producers.open_transactions() == {7: 5}
    assert producers.is_open(7)
    producers.note_marker(marker(7), Marker.COMMIT, 1000)
    producers.settle(8)
    assert producers.first_open_offset is None
    assert not producers.is_open(7)


def test_a_batch_outside_the_open_transaction_of_its_producer_is_refused() -> None:
    producers = appended(batch(0, 0, transactional=True))
    with pytest.raises(InvalidTxnState):
        producers.check(batch(1, 1))
    with pytest.raises(InvalidTxnState):
        producers.check(batch(1, 0, epoch=1))
    producers.note_marker(marker(1), Marker.COMMIT, 1000)
    assert producers.check(batch(2, 1)) is None


def test_a_transaction_counts_as_open_until_its_marker_is_visible() -> None:
    """I4: a commit that a crash could take back decides nothing yet."""
    producers = appended(batch(5, 0, transactional=True))
    producers.note_marker(marker(6), Marker.COMMIT, 1000)
    producers.settle(6)
    assert producers.first_open_offset == 5
    producers.settle(7)
    assert producers.first_open_offset is None


def test_the_earliest_open_transaction_bounds_the_stable_end() -> None:
    producers = Producers()
    producers.note_batch(batch(0, 0, producer=1, transactional=True), 1000)
    producers.note_batch(batch(1, 0, producer=2, transactional=True), 1000)
    assert producers.first_open_offset == 0
    producers.note_marker(marker(2, producer=1), Marker.COMMIT, 1000)
    producers.settle(3)
    assert producers.first_open_offset == 1


def test_only_aborted_transactions_are_listed_and_only_where_they_lie() -> None:
    producers = Producers()
    producers.note_batch(batch(0, 0, producer=1, transactional=True), 1000)
    producers.note_batch(batch(1, 0, producer=2, transactional=True), 1000)
    producers.note_marker(marker(2, producer=2), Marker.ABORT, 1000)
    producers.note_marker(marker(3, producer=1), Marker.COMMIT, 1000)
    producers.note_batch(batch(4, 1, producer=1, transactional=True), 1000)
    producers.note_marker(marker(5, producer=1), Marker.ABORT, 1000)
    (first, second) = producers.aborted_between(0, 99)
    assert (first.producer_id, first.first_offset, first.last_offset) == (2, 1, 2)
    assert first.last_stable_offset == 0  # producer 1 was open
    assert (second.producer_id, second.first_offset, second.last_offset) == (1, 4, 5)
    assert second.last_stable_offset == 6
    assert producers.aborted_between(0, 1) == []
    assert producers.aborted_between(2, 4) == [first]
    assert producers.aborted_between(3, 4) == []
    assert producers.aborted_between(3, 5) == [second]


def test_an_abort_without_an_open_transaction_aborts_nothing() -> None:
    producers = Producers()
    producers.note_marker(marker(0), Marker.ABORT, 1000)
    assert producers.aborted_between(0, 9) == []


def test_aborted_transactions_leave_with_the_records_they_cover() -> None:
    producers = appended(batch(5, 0, transactional=True))
    producers.note_marker(marker(6), Marker.ABORT, 1000)
    producers.forget_before(6)
    assert len(producers.aborted_between(0, 99)) == 1
    producers.forget_before(7)
    assert producers.aborted_between(0, 99) == []


# -- expiry and snapshots


def test_silent_producers_expire_by_the_brokers_clock_unless_a_transaction_is_open() -> None:
    producers = Producers()
    producers.note_batch(batch(0, 0, producer=1), 1000)  # the batch itself says 5 ms
    producers.note_batch(batch(1, 0, producer=2, transactional=True), 1000)
    producers.note_batch(batch(2, 0, producer=3), 3000)
    assert producers.expire(1000) == 0
    assert producers.expire(2000) == 1
    assert producers.entry(1) is None
    assert {entry.producer_id for entry in producers.entries()} == {2, 3}


def test_a_snapshot_gives_back_the_whole_state() -> None:
    producers = Producers()
    for number in range(7):
        producers.note_batch(batch(number, number, producer=1), 1000 + number)
    producers.note_batch(batch(7, 0, producer=2, transactional=True), 2000)
    producers.note_batch(batch(8, 0, producer=3, transactional=True), 2000)
    producers.note_marker(marker(9, producer=3), Marker.ABORT, 2000)
    producers.settle(10)
    again = Producers.decode(producers.encode())
    assert again.entries() == producers.entries()
    assert again.open_transactions() == {2: 7}
    assert again.first_open_offset == 7
    assert again.aborted_between(0, 99) == producers.aborted_between(0, 99)
    assert again.check(batch(10, 3, producer=1)) == producers.check(batch(10, 3, producer=1))
    assert len(again) == 3


def test_a_client_that_invents_producers_costs_bounded_memory(monkeypatch) -> None:
    """I8: past the bound the longest known producer goes, one with a transaction stays."""
    monkeypatch.setattr(producers_module, "PRODUCERS_MAX", 3)
    producers = Producers()
    for number in range(10):
        info = batch(number, 0, producer=number, transactional=number == 0)
        producers.note_batch(info, 0)
    assert [entry.producer_id for entry in producers.entries()] == [0, 8, 9]
    for number in range(10, 20):
        producers.note_marker(marker(number, producer=number), Marker.ABORT, 0)
    assert [entry.producer_id for entry in producers.entries()] == [0, 18, 19]


def test_the_aborted_list_is_the_same_however_many_ended_later() -> None:
    """The search stops early; what it finds is what a look at every transaction finds."""
    producers = Producers()
    aborted: list[tuple[int, int, int]] = []
    begun: dict[int, int] = {}
    for offset in range(200):
        producer = offset * 7 % 5
        if producer in begun:
            kind = Marker.ABORT if offset % 3 else Marker.COMMIT
            producers.note_marker(marker(offset, producer=producer), kind, 0)
            first = begun.pop(producer)
            if kind is Marker.ABORT:
                aborted.append((producer, first, offset))
        else:
            producers.note_batch(batch(offset, 0, producer=producer, transactional=True), 0)
            begun[producer] = offset
    for start in range(0, 200, 3):
        for end in range(start + 1, 200, 7):
            rows = producers.aborted_between(start, end)
            found = [(row.producer_id, row.first_offset, row.last_offset) for row in rows]
            assert found == [row for row in aborted if row[2] >= start and row[1] < end]


def test_a_snapshot_that_older_software_wrote_is_read() -> None:
    """It has no list of transactions whose end was not visible: there were none to keep."""
    for old in ([[], []], [[], [], []]):
        state = Producers.decode(msgspec.msgpack.encode(old))
        assert state.encode() == Producers().encode()
        assert state.first_open_offset is None
