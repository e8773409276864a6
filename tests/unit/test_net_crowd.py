"""Many connections that come at once: what each costs, and how many one pass of the loop takes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import socket
from collections.abc import Iterator
from functools import partial

import pytest
import trustme

from onelog.net import accepting, server
from onelog.net.accepting import AcceptTurns
from tests.support.listening import SERVED, listening, run_on, server_tls, write_tls_files

CROWD = 40
KEPT_MAX = 22
"""Objects that the collector walks, of a silent connection on uvloop with the tests' protocol: the
loop's own, the rim's, and ten of the protocol."""


@contextlib.contextmanager
def crowd(port: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing; all are in the backlog before the loop runs again."""
    made = [socket.create_connection(("127.0.0.1", port)) for _ in range(CROWD)]
    try:
        yield made
    finally:
        for sock in made:
            sock.close()


@pytest.fixture(params=SERVED)
def on_loop(request):
    return partial(run_on, request.param)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_tls_files(tmp_path_factory.mktemp("tls"), trustme.CA())


@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_a_pass_of_the_loop_accepts_few_and_all_come_in_at_last(
    on_loop, files, secure, monkeypatch
):
    monkeypatch.setattr(accepting, "PASS_S", 1e-9)  # whatever one takes, there is no time for two

    async def main():
        passes = 0
        accepted: collections.Counter[int] = collections.Counter()
        loop = asyncio.get_running_loop()
        everybody = asyncio.Event()

        def tick() -> None:
            nonlocal passes
            passes += 1
            if not everybody.is_set():
                loop.call_soon(tick)

        async with listening(tls=server_tls(files) if secure else None) as running:
            enter = running.gate.enter

            def counted() -> bool:
                accepted[passes] += 1
                if accepted.total() == CROWD:
                    everybody.set()
                return enter()

            running.gate.enter = counted
            with crowd(running.port):
                loop.call_soon(tick)
                await everybody.wait()
        assert max(accepted.values()) <= server.LOOP_ACCEPTS < CROWD

    on_loop(main)


async def test_all_listeners_of_a_loop_share_the_time_of_a_pass(monkeypatch):
    monkeypatch.setattr(accepting, "PASS_S", 1e-9)
    loop = asyncio.get_running_loop()
    turns = AcceptTurns.of(loop)
    assert AcceptTurns.of(loop) is turns
    served = []
    for _ in range(6):  # a storm at both: the one that went without comes first in the next pass
        for name in ("first", "second"):
            while turns.begin(name, loop):
                served.append(name)
                turns.end()
        await asyncio.sleep(0)
    assert served == ["first", "second"] * 3


async def test_a_listener_that_has_gone_keeps_no_other_one_waiting(monkeypatch):
    monkeypatch.setattr(accepting, "PASS_S", 1e-9)
    loop = asyncio.get_running_loop()
    turns = AcceptTurns.of(loop)
    assert turns.begin("here", loop)
    turns.end()
    assert not turns.begin("gone", loop)
    await asyncio.sleep(0)
    passes = 0
    while not turns.begin("here", loop):
        await asyncio.sleep(0)
        passes += 1
    assert passes == 1


def test_a_silent_connection_keeps_few_objects_for_the_collector():
    """What waits for its first byte is walked by the cycle collector, while everybody waits."""

    async def main():
        async with listening() as running:
            gc.collect()
            before = len(gc.get_objects())
            with crowd(running.port) as made:
                await running.gate.until_open(CROWD)
                gc.collect()
                kept = (len(gc.get_objects()) - before) / len(made)
                assert kept <= KEPT_MAX
                del made

    run_on("uvloop", main)
