"""Work that runs at once: it becomes a task only when it has to wait."""

from __future__ import annotations

import asyncio

import pytest

from onelog.net.tasks import OwnedTasks


@pytest.fixture
async def tasks():
    return OwnedTasks(asyncio.get_running_loop())


async def test_work_that_does_not_wait_is_done_in_the_call(tasks):
    done = []

    async def work():
        done.append(asyncio.Lock())
        async with done[0]:
            done.append(1)

    assert tasks.run_at_once(work(), pytest.fail) is None
    assert done[1:] == [1]
    assert len(tasks) == 0


async def test_work_that_waits_goes_on_as_a_task(tasks):
    told = asyncio.get_running_loop().create_future()

    async def work():
        first = await told
        await asyncio.sleep(0)
        return first + await asyncio.sleep(0, 2)

    task = tasks.run_at_once(work(), pytest.fail)
    told.set_result(1)
    assert await task == 3
    assert len(tasks) == 0


async def test_an_error_goes_to_its_handler_before_and_after_a_wait(tasks):
    failures = []

    async def work(wait):
        if wait:
            await asyncio.sleep(0)
        raise ValueError(wait)

    assert tasks.run_at_once(work(wait=False), failures.append) is None
    task = tasks.run_at_once(work(wait=True), failures.append)
    await asyncio.wait([task])
    assert [str(error) for error in failures] == ["False", "True"]


async def test_a_task_that_is_cancelled_ends_its_work(tasks):
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ended.append(1)
            raise

    task = tasks.run_at_once(work(), pytest.fail)
    await asyncio.sleep(0)
    tasks.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert ended == [1]
