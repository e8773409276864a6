"""An append wakes exactly the waiters below its end, in order, in the same pass of the loop."""

import asyncio

import pytest

from onelog.base.errors import OnelogError, PartitionStopped
from onelog.base.ids import Offset
from onelog.log.wakeup import Callback, Waiter, Waiters, as_future


def unexpected(_offset: Offset, error: Exception) -> None:
    raise error


def note(calls: list[int], number: int) -> Callback:
    def callback(error: OnelogError | None) -> None:
        assert error is None
        calls.append(number)

    return callback


def test_advance_calls_exactly_the_waiters_below_the_end_lowest_first() -> None:
    waiters, calls = Waiters(unexpected), list[int]()
    for offset in (7, 3, 5, 9, 5):
        waiters.add(Offset(offset), note(calls, offset))
    waiters.advance(Offset(7))
    assert calls == [3, 5, 5]
    assert len(waiters) == 2
    waiters.advance(Offset(8))
    assert calls == [3, 5, 5, 7]


def test_waiters_of_one_offset_are_called_in_the_order_they_came() -> None:
    waiters, calls = Waiters(unexpected), list[int]()
    for number in range(10):
        waiters.add(Offset(1), note(calls, number))
    waiters.advance(Offset(2))
    assert calls == list(range(10))


def test_a_cancelled_waiter_is_never_called_and_not_counted() -> None:
    waiters, calls = Waiters(unexpected), list[int]()
    kept = waiters.add(Offset(1), note(calls, 1))
    gone = waiters.add(Offset(1), note(calls, 2))
    gone.cancel()
    gone.cancel()
    assert len(waiters) == 1
    waiters.advance(Offset(5))
    assert calls == [1]
    kept.cancel()  # after the call: nothing to forget
    assert len(waiters) == 0


def test_cancelled_waiters_of_an_idle_partition_cost_bounded_memory() -> None:
    """I8: long polls that time out again and again leave nothing behind."""
    waiters, calls = Waiters(unexpected), list[int]()
    waiters.add(Offset(4), note(calls, 4))
    for _ in range(10_000):
        waiters.add(Offset(3), note(calls, 3)).cancel()
    assert len(waiters.rows) < 200
    waiters.advance(Offset(10))
    assert calls == [4]


def test_when_the_last_waiter_is_cancelled_no_append_looks_for_anybody() -> None:
    waiters = Waiters(unexpected)
    rows = [waiters.add(Offset(offset), note([], offset)) for offset in range(5)]
    for row in rows:
        assert waiters.rows
        row.cancel()
    assert not waiters.rows


def test_a_callback_may_wait_again_and_cancel_others_while_advance_runs() -> None:
    waiters, calls = Waiters(unexpected), list[int]()
    others = [waiters.add(Offset(2), note(calls, 2)) for _ in range(200)]

    def first(error: OnelogError | None) -> None:
        calls.append(1)
        for other in others[:150]:
            other.cancel()
        waiters.add(Offset(9), note(calls, 9))

    waiters.add(Offset(1), first)
    waiters.advance(Offset(3))
    assert calls == [1] + [2] * 50
    assert len(waiters) == 1
    waiters.advance(Offset(10))
    assert calls[-1] == 9


def test_fail_tells_everybody_in_order_and_forgets_them() -> None:
    waiters, errors = Waiters(unexpected), list[tuple[int, OnelogError | None]]()

    def hear(offset: int) -> Callback:
        return lambda error: errors.append((offset, error))

    for offset in (8, 2, 5):
        waiters.add(Offset(offset), hear(offset))
    waiters.add(Offset(1), hear(1)).cancel()
    stopped = PartitionStopped("it is stopped")
    waiters.fail(stopped)
    assert errors == [(2, stopped), (5, stopped), (8, stopped)]
    waiters.advance(Offset(100))
    assert len(errors) == 3
    assert len(waiters) == 0


async def test_a_future_is_done_in_the_same_pass_as_the_advance() -> None:
    waiters = Waiters(unexpected)
    future = as_future(lambda callback: waiters.add(Offset(3), callback))
    waiters.advance(Offset(3))
    assert not future.done()
    waiters.advance(Offset(4))
    assert future.done()
    await future


async def test_cancelling_a_future_cancels_its_wait() -> None:
    waiters = Waiters(unexpected)
    future = as_future(lambda callback: waiters.add(Offset(3), callback))
    future.cancel()
    await asyncio.sleep(0)
    assert len(waiters) == 0


async def test_a_failed_wait_raises_in_whoever_awaits_it() -> None:
    waiters = Waiters(unexpected)
    future = as_future(lambda callback: waiters.add(Offset(3), callback))
    waiters.fail(PartitionStopped("it is stopped"))
    with pytest.raises(PartitionStopped):
        await future


async def test_a_wait_that_was_answered_at_once_gives_a_done_future() -> None:
    def register(callback: Callback) -> Waiter:
        callback(None)
        return Waiter(Offset(0), callback)

    assert as_future(register).done()
