"""Events that are made when somebody waits."""

import asyncio

from onelog.base.late_event import LateEvent


async def test_who_waits_goes_on_when_it_happens():
    event = LateEvent()
    waiting = [asyncio.ensure_future(event.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not event.is_set()
    assert not any(task.done() for task in waiting)
    event.set()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert event.is_set()


async def test_nobody_waits_for_what_has_happened():
    await asyncio.wait_for(LateEvent(is_set=True).wait(), 5)
    event = LateEvent()
    event.set()
    await asyncio.wait_for(event.wait(), 5)


async def test_who_waited_goes_on_although_it_is_to_happen_again():
    event = LateEvent()
    early = asyncio.ensure_future(event.wait())
    await asyncio.sleep(0)
    event.set()
    event.clear()
    await asyncio.wait_for(early, 5)
    assert not event.is_set()
    late = asyncio.ensure_future(event.wait())
    await asyncio.sleep(0)
    assert not late.done()
    event.set()
    await asyncio.wait_for(late, 5)
