"""Which sockets serve plain TCP, what listeners share of them, and what a fault leaves behind."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
from functools import partial

import msgspec
import pytest

from onelog.base.errors import ConfigError
from onelog.config.model import Net
from onelog.net import accepting, server, sockets
from onelog.net.sockets import BACKENDS, SharedSockets, chosen_backend
from tests.support.listening import LOOPS, end, listening, refused, run_on

needs_epoll = pytest.mark.skipif(not hasattr(select, "epoll"), reason="the system has no epoll")


@pytest.fixture(params=sorted(LOOPS))
def on_epoll(request):
    return partial(run_on, f"{request.param}-epoll")


def test_every_back_end_can_be_configured():
    for name in ("auto", *BACKENDS):
        assert msgspec.convert({"backend": name}, Net).backend == name


@needs_epoll
@pytest.mark.parametrize(
    ("compiled", "chosen"), [(True, "epoll"), (False, "loop")], ids=["compiled", "interpreted"]
)
def test_auto_takes_epoll_with_the_compiled_kernel(monkeypatch, compiled, chosen):
    monkeypatch.setattr(sockets, "COMPILED", compiled)
    assert chosen_backend("auto") == chosen
    assert chosen_backend("epoll") == "epoll"  # who asks for it gets it
    assert chosen_backend("loop") == "loop"


@pytest.mark.parametrize("name", ["loop", pytest.param("epoll", marks=needs_epoll)])
def test_the_log_says_once_which_back_end_serves(monkeypatch, name):
    said: list[str] = []

    class Log:
        def info(self, _event: str, *, backend: str) -> None:
            said.append(backend)

    async def main() -> None:
        monkeypatch.setattr(sockets, "_log", Log())
        opened = [sockets.open_sockets(name) for _listener in range(3)]
        for shared in opened:
            if shared is not None:
                shared.close()

    asyncio.run(main())
    assert said == [name]


@needs_epoll
@pytest.mark.parametrize("works", [True, False])
def test_a_wish_for_a_ring_is_epoll_where_the_system_refuses_rings(monkeypatch, works):
    def probe() -> None:
        if not works:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(sockets, "probe_ring", probe)
    sockets.has_ring.cache_clear()
    try:
        assert chosen_backend("io_uring") == ("io_uring" if works else "epoll")
        assert chosen_backend("auto") != "io_uring"
    finally:
        sockets.has_ring.cache_clear()


def test_without_epoll_the_loop_serves_and_a_wish_for_epoll_is_refused(monkeypatch):
    monkeypatch.delattr(select, "epoll", raising=False)
    assert chosen_backend("auto") == "loop"
    with pytest.raises(ConfigError, match=r"net\.backend = 'epoll' does not work"):
        chosen_backend("epoll")


@needs_epoll
def test_listeners_share_a_set_that_goes_with_the_last_connection(on_epoll):
    async def main():
        async with listening() as first, listening() as second:
            ((shared, listeners),) = SharedSockets._sets.values()
            assert listeners == 2
            _, one = await first.stream()
            _, two = await second.stream()
            await first.book.only()
            echo = await second.book.only()
            assert len(shared) == 2
            for running in (first, second):
                running.served.close()
            assert not SharedSockets._sets
            await end(one)
            assert not shared.is_closed
            await end(two)
            await echo.lost
            await first.gate.until_open(0)
            await asyncio.sleep(0)
            assert shared.is_closed

    on_epoll(main)


@needs_epoll
def test_a_fault_of_a_protocol_ends_its_connection_and_is_registered(on_epoll):
    """I10."""

    async def main():
        async with listening() as running:
            reader, writer = await running.stream()
            echo = await running.book.only()
            echo.received = None  # so that the next read raises
            writer.write(b"x")
            assert await refused(reader)
            assert isinstance(await echo.lost, AttributeError)
            ((kind, count),) = running.served.troubles._counts.items()
            assert (kind, count) == (server.CONNECTION, 1)
            await end(writer)

    on_epoll(main)


@needs_epoll
def test_out_of_open_files_the_listener_rests_and_goes_on(on_epoll, monkeypatch):
    """A full table of files must not end the listener, nor spin the loop."""
    monkeypatch.setattr(accepting, "PAUSE_S", 0.05)

    async def main():
        async with listening() as running:
            client = socket.socket()
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                client.connect(("127.0.0.1", running.port))
                running.accept_now()
                assert running.gate.open == 0
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await running.book.only()
            client.close()

    on_epoll(main)


@needs_epoll
def test_a_socket_that_cannot_be_watched_is_closed_and_counted_out(on_epoll):
    async def main():
        async with listening() as running:

            def full(*_arguments):
                raise OSError(28, "No space left on device")

            add, running.served._sockets.add = running.served._sockets.add, full
            reader, writer = await running.stream()
            assert await refused(reader)
            await running.gate.until_open(0)
            await end(writer)
            running.served._sockets.add = add
            reader, writer = await running.stream()
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            await end(writer)

    on_epoll(main)
