"""The transaction coordinator over a real broker: answers, markers, timeouts, recovery, bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onelog.base.errors import StateUnknown, StorageFull
from onelog.broker.kept import KeptTable
from onelog.config.kafka import KafkaTransactions
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.transactions import coordinator as coordinator_module
from onelog.protocols.kafka.transactions.coordinator import STREAM, SWEEP_S
from onelog.protocols.kafka.transactions.state import EPOCH_MAX, Producer, State
from tests.support.kafka_txn import TIMEOUT_MS, Desk, desk, refused

E = ErrorCode
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


async def begun(at: Desk, *partitions: tuple[str, int]) -> Producer:
    """A producer whose transaction touches some partitions and has a record in each."""
    producer = await at.init()
    await at.add(producer, *partitions)
    for topic, number in partitions:
        at.write(producer, topic, number, f"{topic}{number}")
    return producer


def state(at: Desk, transactional_id: str = "t") -> State | None:
    facts = at.coordinator.find(transactional_id)
    return None if facts is None else facts.state


def _full(*_args: object) -> None:
    raise StorageFull("no room")


# -- producers


async def test_a_transactional_id_keeps_its_producer_id_and_counts_epochs(tmp_path: Path):
    async with desk(tmp_path) as at:
        first, second = await at.init(), await at.init()
        assert second == Producer(first.id, first.epoch + 1)
        assert (await at.init("other")).id != first.id
        await at.crash()
        assert await at.init() == Producer(first.id, first.epoch + 2)


@pytest.mark.parametrize("timeout_ms", [0, -1, 15 * 60_000 + 1])
async def test_a_timeout_out_of_bounds_is_refused(tmp_path: Path, timeout_ms: int):
    async with desk(tmp_path) as at:
        with refused(E.invalid_transaction_timeout):
            await at.coordinator.init_producer("t", timeout_ms)
        assert state(at) is None


@pytest.mark.parametrize("name", ["", "t" * 1025])
async def test_a_transactional_id_has_a_bounded_length(tmp_path: Path, name: str):
    async with desk(tmp_path) as at:
        with refused(E.invalid_request):
            await at.init(name)


async def test_an_unknown_id_a_strange_producer_and_an_old_epoch_are_refused(tmp_path: Path):
    async with desk(tmp_path) as at:
        with refused(E.invalid_producer_id_mapping):
            await at.add(Producer(1, 0), A0)
        old = await at.init()
        new = await at.init()
        for call in (at.add(old, A0), at.end(old)):
            with refused(E.producer_fenced):
                await call
        with refused(E.invalid_producer_id_mapping):
            await at.end(Producer(new.id + 1, new.epoch))


async def test_an_id_that_is_new_here_takes_whoever_the_producer_says_it_was(tmp_path: Path):
    """KIP-360: the id expired while its producer lived; it goes on under a new producer id."""
    async with desk(tmp_path) as at:
        assert (await at.init(expected=Producer(4711, 9))).epoch == 0


# -- a transaction


async def test_a_commit_shows_every_record_at_once_and_an_abort_none(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0, B0)
        assert at.committed(*A0) == at.committed(*B0) == []
        await at.end(producer)
        await at.settle()
        assert (at.committed(*A0), at.committed(*B0)) == (["a0"], ["b0"])
        assert state(at) is State.COMPLETE_COMMIT
        await at.add(producer, A0)
        at.write(producer, *A0, "no")
        await at.end(producer, commit=False)
        await at.settle()
        assert at.committed(*A0) == ["a0"]
        assert at.is_stable(*A0) and at.is_stable(*B0)
        assert (at.coordinator.endings.commits, at.coordinator.endings.aborts) == (1, 1)


async def test_every_partition_that_was_added_gets_a_marker_also_without_records(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await at.init()
        await at.add(producer, A0, A1)
        at.write(producer, *A0, "x")
        await at.end(producer)
        await at.settle()
        assert (at.log(*A0).end_offset, at.log(*A1).end_offset) == (2, 1)
        assert at.log(*B0).end_offset == 0


async def test_offsets_of_groups_are_told_the_outcome(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await at.init()
        for commit in (True, False):
            await at.add(producer, groups=("g", "h"))
            at.coordinator.verify_group("t", producer, "g")
            await at.end(producer, commit=commit)
            await at.settle()
            assert sorted(at.offsets.told) == [
                ("g", producer.id, commit),
                ("h", producer.id, commit),
            ]
            at.offsets.told.clear()


async def test_until_the_markers_are_written_nothing_new_begins(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0)
        with at.without_markers():
            await at.end(producer)
            await at.settle()
        assert state(at) is State.PREPARE_COMMIT
        for call in (at.add(producer, A0), at.end(producer), at.init()):
            with refused(E.concurrent_transactions):
                await call
        with refused(E.invalid_txn_state):
            await at.end(producer, commit=False)
        with refused(E.invalid_txn_state):
            at.write(producer, *A0, "late")


async def test_a_marker_that_cannot_be_written_is_written_later_and_the_others_once(
    tmp_path: Path,
):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0, B0)
        with at.without_markers(at.log(*A0)):
            await at.end(producer)
            await at.settle()
        assert at.committed(*B0) == ["b0"]
        assert at.committed(*A0) == []
        at.timers.pass_time(1)
        await at.settle()
        assert at.committed(*A0) == ["a0"]
        assert at.log(*B0).end_offset == 2, "its marker was written twice"
        assert state(at) is State.COMPLETE_COMMIT


async def test_the_next_try_comes_later_each_time_and_at_least_every_minute(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0)
        with at.without_markers():
            await at.end(producer)
            waits = []
            for _ in range(9):
                await at.settle()
                (next_at, _sweep) = at.timers.waiting
                waits.append(next_at - at.clock.monotonic())
                at.timers.pass_time(waits[-1])
            assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


async def test_groups_that_fail_are_told_again(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await at.init()
        await at.add(producer, A0, groups=("g",))
        at.write(producer, *A0, "x")
        at.offsets.failures.append(StorageFull("no room"))
        await at.end(producer)
        await at.settle()
        assert state(at) is State.PREPARE_COMMIT
        at.timers.pass_time(1)
        await at.settle()
        assert at.offsets.told == [("g", producer.id, True)]
        assert state(at) is State.COMPLETE_COMMIT
        assert at.log(*A0).end_offset == 2


async def test_a_topic_that_was_deleted_needs_no_marker(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0, B0)
        await at.broker.streams.delete("a")
        await at.end(producer)
        await at.settle()
        assert state(at) is State.COMPLETE_COMMIT
        assert at.committed(*B0) == ["b0"]


# -- what may be written (KIP-890)


async def test_a_record_needs_its_partition_in_the_ongoing_transaction(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0)
        with refused(E.invalid_txn_state):
            at.write(producer, *B0, "not added")
        with refused(E.invalid_producer_epoch):
            at.write(Producer(producer.id, producer.epoch + 1), *A0, "x")
        with refused(E.invalid_producer_id_mapping):
            at.write(Producer(producer.id + 1, 0), *A0, "x")
        with refused(E.invalid_producer_id_mapping):
            at.write(producer, *A0, "x", transactional_id="unknown")
        with refused(E.transactional_id_authorization_failed):
            at.coordinator.verify(None, producer.id, producer.epoch, "a", 0)
        with refused(E.invalid_txn_state):
            at.coordinator.verify_group("t", producer, "g")


async def test_a_delayed_record_is_in_no_later_transaction(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0)
        await at.end(producer)
        await at.settle()
        with refused(E.invalid_txn_state):
            at.write(producer, *A0, "late")
        await at.add(producer, B0)
        with refused(E.invalid_txn_state):
            at.write(producer, *A0, "late")


async def test_a_record_counts_only_once_its_partition_is_durably_added(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await at.init()
        adding = asyncio.ensure_future(at.add(producer, A0))
        await asyncio.sleep(0)  # the row is appended, and its sync runs
        assert not adding.done()
        with refused(E.invalid_txn_state):
            at.write(producer, *A0, "too early")
        await adding
        at.write(producer, *A0, "now")


async def test_requests_of_an_older_connection_do_not_touch_the_next_transaction(tmp_path: Path):
    """KIP-890: the client gave up on a request, reconnected and went on; then it arrives."""
    async with desk(tmp_path) as at:
        producer = await at.init()
        calls = at.coordinator
        await calls.add("t", producer, frozenset({A0}), connection=5)
        await calls.end("t", producer, commit=True, connection=6)
        await at.settle()
        with refused(E.invalid_txn_state):
            await calls.add("t", producer, frozenset({A0}), connection=5)
        assert state(at) is State.COMPLETE_COMMIT
        await calls.add("t", producer, frozenset({A0}), connection=6)
        with refused(E.invalid_txn_state):
            await calls.end("t", producer, commit=True, connection=5)
        assert state(at) is State.ONGOING
        await calls.end("t", producer, commit=True, connection=6)
        await at.settle()
        successor = await at.init()
        await calls.add("t", successor, frozenset({A0}), connection=2)


# -- fencing and time


async def test_a_new_instance_aborts_what_the_old_one_left_and_fences_it(tmp_path: Path):
    async with desk(tmp_path) as at:
        old = await begun(at, A0)
        with refused(E.concurrent_transactions):
            await at.init()
        await at.settle()
        new = await at.init()
        assert new == Producer(old.id, old.epoch + 2)
        assert at.committed(*A0) == []
        assert at.is_stable(*A0)
        with refused(E.producer_fenced):
            await at.end(old)
        with refused(E.invalid_producer_epoch):
            at.write(old, *A0, "zombie")
        assert at.log(*A0).producers.entry(old.id).epoch == old.epoch + 1


async def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(
    tmp_path: Path,
):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0)
        at.timers.pass_time(TIMEOUT_MS / 1000 - 1)
        await at.add(producer, A1)  # does not prolong it
        at.timers.pass_time(1)
        await at.settle()
        assert state(at) is State.COMPLETE_ABORT
        assert at.coordinator.timeouts == 1
        assert at.is_stable(*A0)
        assert at.committed(*A0) == []
        for call in (at.add(producer, A0), at.end(producer), at.init(expected=producer)):
            with refused(E.producer_fenced):
                await call
        assert await at.init() == Producer(producer.id, producer.epoch + 2)


async def test_a_transaction_that_ends_in_time_leaves_no_timer(tmp_path: Path):
    async with desk(tmp_path) as at:
        before = at.timers.waiting
        producer = await begun(at, A0)
        assert len(at.timers.waiting) == len(before) + 1
        await at.end(producer)
        await at.settle()
        assert at.timers.waiting == before


async def test_a_timeout_on_a_full_disk_is_tried_again(tmp_path: Path, monkeypatch):
    async with desk(tmp_path) as at:
        await begun(at, A0)
        monkeypatch.setattr(KeptTable, "put", _full)
        at.timers.pass_time(TIMEOUT_MS / 1000)
        assert state(at) is State.ONGOING
        monkeypatch.undo()
        at.timers.pass_time(1)
        await at.settle()
        assert state(at) is State.COMPLETE_ABORT


async def test_a_request_on_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0)
        monkeypatch.setattr(KeptTable, "put", _full)
        for call in (at.add(producer, A1), at.end(producer)):
            with pytest.raises(StorageFull):
                await call
        monkeypatch.undo()
        with refused(E.invalid_txn_state):
            at.write(producer, *A1, "x")
        await at.end(producer)
        await at.settle()
        assert at.committed(*A0) == ["a0"]


async def test_used_up_epochs_lead_to_a_new_producer_id(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("onelog.protocols.kafka.transactions.rules.EPOCH_MAX", 3)
    async with desk(tmp_path) as at:
        given = [await at.init() for _ in range(5)]
        first, second = given[0].id, given[3].id
        assert first != second
        assert given == [
            Producer(first, 0),
            Producer(first, 1),
            Producer(first, 2),
            Producer(second, 0),
            Producer(second, 1),
        ]
    assert EPOCH_MAX == 32_767


# -- after a crash


async def test_an_open_transaction_is_open_after_a_restart_and_times_out_as_before(
    tmp_path: Path,
):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0)
        at.clock.advance(50)
        await at.crash()
        at.write(producer, *A0, "more")
        at.timers.pass_time(9)
        assert state(at) is State.ONGOING
        at.timers.pass_time(1)
        await at.settle()
        assert state(at) is State.COMPLETE_ABORT
        assert at.is_stable(*A0)


@pytest.mark.parametrize("commit", [True, False])
async def test_an_outcome_that_was_decided_is_carried_out_after_a_crash(
    tmp_path: Path, commit: bool
):
    async with desk(tmp_path) as at:
        producer = await at.init()
        await at.add(producer, A0, B0, groups=("g",))
        at.write(producer, *A0, "x")
        at.write(producer, *B0, "y")
        with at.without_markers():
            await at.end(producer, commit=commit)
            await at.settle()
            assert not at.is_stable(*A0)
        await at.crash()
        await at.settle()
        assert at.committed(*A0) == (["x"] if commit else [])
        assert at.committed(*B0) == (["y"] if commit else [])
        assert at.is_stable(*A0) and at.is_stable(*B0)
        assert set(at.offsets.told) == {("g", producer.id, commit)}
        await at.add(producer, A0)  # the producer goes on
        at.write(producer, *A0, "z")


async def test_after_a_crash_a_marker_is_not_written_twice(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0, B0)
        with at.without_markers(at.log(*B0)):
            await at.end(producer)
            await at.settle()
            assert at.log(*A0).end_offset == 2
        await at.crash()
        await at.settle()
        assert at.log(*A0).end_offset == at.log(*B0).end_offset == 2
        assert state(at) is State.COMPLETE_COMMIT


async def test_a_transaction_that_no_row_knows_is_aborted_at_the_start(tmp_path: Path):
    """The log's end was lost, so its marker was: it must not hold the stable end for ever."""
    async with desk(tmp_path) as at:
        known = await begun(at, A0)
        at.coordinator._table.put([(b"t", None)])
        other = await at.init("other")
        await at.add(other, A0, transactional_id="other")
        at.write(other, *A0, "kept", transactional_id="other")
        await at.crash()
        assert set(at.log(*A0).producers.open_transactions()) == {other.id}
        await at.end(other, transactional_id="other")
        await at.settle()
        assert at.committed(*A0) == ["kept"]
        assert at.is_stable(*A0)
        assert known.id != other.id


async def test_a_claimed_higher_epoch_does_not_keep_a_transaction_open(tmp_path: Path):
    """Any client can write any producer id; the marker gets through all the same."""
    async with desk(tmp_path) as at:
        producer = await begun(at, A0)
        log = at.log(*A0)
        log.producers.entry(producer.id).epoch = 900
        await at.end(producer)
        await at.settle()
        assert at.committed(*A0) == ["a0"]
        assert at.is_stable(*A0)


async def test_a_row_that_cannot_be_read_stops_the_start_with_a_reason(tmp_path: Path):
    async with desk(tmp_path) as at:
        await at.coordinator._table.put([(b"t", b"\xc1")])
        with pytest.raises(StateUnknown, match=STREAM):
            await at.crash()


# -- bounds (I8)


async def test_unused_ids_are_forgotten_and_used_ones_are_not(tmp_path: Path):
    settings = KafkaTransactions(id_expiry_ms=3600_000)
    async with desk(tmp_path, settings) as at:
        old = await at.init("old")
        open_ = await at.init("open")
        at.clock.advance(3601)
        await at.init("young")
        await at.add(open_, A0, transactional_id="open")
        at.timers.pass_time(0)  # the sweep is due
        assert [name for name, _ in at.coordinator.listed()] == ["young", "open"]
        with refused(E.invalid_producer_id_mapping):
            await at.add(old, A0, transactional_id="old")
        await at.init("later")  # written behind what is forgotten, and waited for
        await at.crash()
        assert state(at, "old") is None
        assert (await at.init("old")).id != old.id


async def test_many_unused_ids_are_forgotten_in_pieces(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(coordinator_module, "FORGOTTEN_AT_ONCE", 2)
    async with desk(tmp_path, KafkaTransactions(id_expiry_ms=3600_000)) as at:
        for number in range(5):
            await at.init(f"t{number}")
        at.timers.pass_time(4000)
        at.timers.pass_time(1)
        assert len(list(at.coordinator.listed())) == 1
        at.timers.pass_time(1)
        assert not list(at.coordinator.listed())
        at.timers.pass_time(SWEEP_S)
        assert len(at.timers.waiting) == 1


async def test_past_the_bound_the_longest_unused_id_goes(tmp_path: Path):
    async with desk(tmp_path, KafkaTransactions(ids=3)) as at:
        first = await at.init("first")
        await at.add(first, A0, transactional_id="first")
        for name in ("second", "third", "fourth"):
            await at.init(name)
        assert [name for name, _ in at.coordinator.listed()] == ["first", "third", "fourth"]


async def test_past_the_bound_with_every_id_in_a_transaction_a_new_one_is_refused(
    tmp_path: Path,
):
    async with desk(tmp_path, KafkaTransactions(ids=2)) as at:
        for name in ("first", "second"):
            producer = await at.init(name)
            await at.add(producer, A0, transactional_id=name)
        with refused(E.policy_violation):
            await at.init("third")


async def test_a_caller_that_went_away_does_not_take_its_step_back(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0)
        ending = asyncio.ensure_future(at.end(producer))
        await asyncio.sleep(0)
        ending.cancel()
        await at.settle()
        assert at.committed(*A0) == ["a0"]


async def test_the_metrics_count_what_happened(tmp_path: Path):
    async with desk(tmp_path) as at:
        producer = await begun(at, A0)

        def numbers() -> dict[str, float]:
            found = at.coordinator.samples()
            return {row.name.removeprefix("onelog_kafka_"): row.value for row in found}

        assert (numbers()["transactions"], numbers()["transactional_ids"]) == (1, 1)
        await at.end(producer)
        await at.settle()
        await at.add(producer, A0)
        at.timers.pass_time(TIMEOUT_MS / 1000)
        await at.settle()
        assert numbers() == {
            "transactional_ids": 1,
            "transactions": 0,
            "transactions_committed_total": 1,
            "transactions_aborted_total": 1,
            "transactions_timed_out_total": 1,
            "links_total": 0,
            "links_replayed_total": 0,
            "link_marks": 0,
        }
