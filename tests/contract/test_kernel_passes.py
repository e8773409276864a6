"""What both kernels promise about the pass of a loop: which calls it makes, in which order."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
import uvloop


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


class SoonLoop:
    """A loop that notes what it is to call, and what was raised."""

    def __init__(self) -> None:
        self.soon: list = []
        self.raised: list[str] = []

    def call_soon(self, call, *arguments) -> None:
        if arguments:
            with pytest.raises(ValueError) as raised:
                call(*arguments)
            self.raised.append(str(raised.value))
        else:
            self.soon.append(call)


def test_a_pass_makes_soon_calls_then_last_calls_behind_its_function(kernel):
    loop, done = SoonLoop(), []
    passing = kernel.LoopPass(loop)

    def wake_up() -> None:
        passing.call_last(lambda: done.append("flush"))
        passing.call_soon(lambda: done.append("tick"))
        passing.call_soon(lambda: done.append("another tick"))
        done.append("reads")

    passing.run(wake_up)
    assert done == ["reads", "tick", "another tick", "flush"]
    assert loop.soon == []


def test_what_is_asked_for_outside_of_a_pass_is_the_loops(kernel):
    loop = SoonLoop()
    passing = kernel.LoopPass(loop)
    passing.call_soon(print)
    passing.call_last(len)
    passing.run(lambda: None)
    assert loop.soon == [print, len]


def test_a_pass_ends_although_its_calls_ask_for_more(kernel):
    loop, done = SoonLoop(), []
    passing = kernel.LoopPass(loop)

    def tick() -> None:
        done.append("tick")
        passing.call_soon(tick)
        passing.call_last(flush)

    def flush() -> None:
        done.append("flush")
        passing.call_soon(tick)
        passing.call_last(flush)

    passing.run(lambda: passing.call_soon(tick))
    assert done == ["tick", "flush"]
    assert loop.soon == [tick, tick, flush]


def test_a_pass_within_a_pass_is_a_part_of_it(kernel):
    loop, done = SoonLoop(), []
    passing = kernel.LoopPass(loop)

    def wake_up() -> None:
        passing.run(lambda: passing.call_soon(lambda: done.append("tick")))
        done.append("reads")

    passing.run(wake_up)
    assert done == ["reads", "tick"]


def test_a_tick_that_raises_does_not_lose_the_flush(kernel):
    loop, done = SoonLoop(), []
    passing = kernel.LoopPass(loop)

    def tick() -> None:
        raise ValueError("a fault in the tick")

    def wake_up() -> None:
        passing.call_last(lambda: done.append("flush"))
        passing.call_soon(tick)
        passing.call_soon(lambda: done.append("another tick"))
        raise KeyError("a fault in the reads")

    with pytest.raises(KeyError):
        passing.run(wake_up)
    assert done == ["another tick", "flush"]
    assert loop.raised == ["a fault in the tick"]
    passing.run(lambda: passing.call_soon(lambda: done.append("later")))
    assert done[-1] == "later"


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_has_one_pass_and_is_not_kept_by_it(kernel, make):
    loop, other = make(), make()
    passing = kernel.pass_of(loop)
    assert kernel.pass_of(loop) is passing
    assert kernel.pass_of(other) is not passing
    gone = weakref.ref(loop)
    loop.close()
    other.close()
    del loop, passing
    gc.collect()
    assert gone() is None
