"""The one timer of all connections that have to log in."""

import asyncio

from onelog.net import LoginClock


async def test_only_those_who_did_not_log_in_are_late_and_in_their_order():
    clock = LoginClock(asyncio.get_running_loop(), 0.02)
    late: list[str] = []
    over = asyncio.Event()
    for name in ("a", "b", "c"):
        clock.begin(name, lambda name=name: late.append(name))
    clock.end("b")
    clock.end("b")
    await asyncio.sleep(0.01)
    clock.begin("d", over.set)
    await asyncio.wait_for(over.wait(), 5)
    assert late == ["a", "c"]
    assert len(clock) == 0


async def test_a_clock_that_stood_still_goes_on():
    clock = LoginClock(asyncio.get_running_loop(), 0.005)
    for _ in range(2):
        over = asyncio.Event()
        clock.begin("a", over.set)
        await asyncio.wait_for(over.wait(), 5)


async def test_nobody_is_late_after_the_end():
    clock = LoginClock(asyncio.get_running_loop(), 0.005)
    late: list[str] = []
    clock.begin("a", lambda: late.append("a"))
    clock.close()
    clock.close()
    await asyncio.sleep(0.02)
    assert late == []


async def test_a_connection_that_is_late_may_end_others():
    clock = LoginClock(asyncio.get_running_loop(), 0.005)
    late: list[str] = []
    over = asyncio.Event()
    clock.begin("a", lambda: (late.append("a"), clock.end("b")))
    clock.begin("b", lambda: late.append("b"))
    clock.begin("c", over.set)
    await asyncio.wait_for(over.wait(), 5)
    assert late == ["a"]
