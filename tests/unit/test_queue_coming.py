"""Dead letters on their way: who looks into a queue waits for those so far, for no later ones."""

from __future__ import annotations

import asyncio

from onelog.queues.coming import Coming


async def test_who_waits_is_told_when_every_letter_so_far_is_there() -> None:
    coming = Coming(asyncio.get_running_loop())
    assert coming.to("q") is None
    first, second = coming.begin(("q", "other")), coming.begin(("q",))
    waiting = asyncio.ensure_future(coming.to("q") or asyncio.sleep(0))
    later = coming.begin(("q",))
    coming.end(second, ("q",))
    await asyncio.sleep(0)
    assert not waiting.done()
    coming.end(first, ("q", "other"))
    await asyncio.wait_for(waiting, 5)
    assert coming.to("other") is None
    assert coming.to("q") is not None
    coming.end(later, ("q",))
    assert coming.to("q") is None


async def test_who_left_is_not_told() -> None:
    coming = Coming(asyncio.get_running_loop())
    number = coming.begin(("q",))
    waiting = asyncio.ensure_future(coming.to("q") or asyncio.sleep(0))
    waiting.cancel()
    coming.end(number, ("q",))
    assert coming.to("q") is None
