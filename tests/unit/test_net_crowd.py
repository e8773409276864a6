"""Many connections that come at once: what each costs, and how many one pass of the loop takes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trustme

from onelog.net import accepting, lobby
from tests.support.listening import SERVED, end, listening, run_on, server_tls, write_tls_files

CROWD = 40
KEPT_MAX = 4
"""Objects that the collector walks, of a connection whose peer has said nothing."""


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


@pytest.fixture
def short_pieces(monkeypatch):
    """Whatever the work of one socket takes, a piece has no time for two."""
    monkeypatch.setattr(lobby, "PIECE_S", 1e-9)


async def passes_until(done: asyncio.Event, counted: Counter[int], changes: Callable[[], int]):
    """Count what changes in each pass of the loop."""
    number, before = 0, changes()
    while not done.is_set():
        await asyncio.sleep(0)
        number, now = number + 1, changes()
        counted[number] += now - before
        before = now


@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_a_pass_of_the_loop_accepts_few_and_all_come_in_at_last(
    on_loop, files, secure, short_pieces
):
    async def main():
        accepted: Counter[int] = Counter()
        everybody = asyncio.Event()
        async with listening(
            tls=server_tls(files) if secure else None, speaks_first=False
        ) as running:
            gate = running.gate

            def came() -> int:
                if gate.accepted == CROWD:
                    everybody.set()
                return gate.accepted

            with crowd(running.port):
                await passes_until(everybody, accepted, came)
        assert accepted.total() == CROWD
        assert max(accepted.values()) <= accepting.AT_ONCE < CROWD

    on_loop(main)


def test_a_pass_begins_to_serve_one_newcomer_and_all_are_served_at_last(on_loop, short_pieces):
    async def main():
        served: Counter[int] = Counter()
        everybody = asyncio.Event()
        async with listening(speaks_first=False) as running:
            made = running.book.made

            def begun() -> int:
                if len(made) == CROWD:
                    everybody.set()
                return len(made)

            with crowd(running.port) as clients:
                for client in clients:
                    client.sendall(b"x")
                await passes_until(everybody, served, begun)
        assert max(served.values()) == 1

    on_loop(main)


def test_a_storm_at_one_listener_keeps_nobody_out_of_another(on_loop, short_pieces):
    async def main():
        async with (
            listening(speaks_first=False) as stormed,
            listening(speaks_first=False) as calm,
        ):
            with crowd(stormed.port), socket.create_connection(("127.0.0.1", calm.port)):
                await calm.gate.until_open(1)
                assert stormed.gate.accepted <= 2 * accepting.AT_ONCE < CROWD

    on_loop(main)


def test_a_client_that_is_in_is_answered_while_a_crowd_waits(on_loop, short_pieces):
    """Bytes of newcomers wait; bytes of those who came before do not."""

    async def main():
        async with listening(speaks_first=False) as running:
            reader, writer = await running.stream()
            writer.write(b"first")
            assert await reader.readexactly(5) == b"first"
            with crowd(running.port) as clients:
                for client in clients:
                    client.sendall(b"x")
                await running.gate.until_open(CROWD + 1)
                begun = len(running.book.made)
                writer.write(b"again")
                assert await reader.readexactly(5) == b"again"
                assert len(running.book.made) - begun <= 3
            await end(writer)

    on_loop(main)


async def test_work_of_the_lobby_comes_behind_everything_else_of_its_pass():
    """Whichever socket the loop reports first."""
    loop = asyncio.get_running_loop()
    order: list[str] = []
    room = lobby.Lobby.join()
    ours, theirs = socket.socketpair()
    other, peer = socket.socketpair()
    over = asyncio.Event()

    class Newcomer:
        def woke(self, is_ending: bool) -> None:
            assert not is_ending
            order.append("newcomer")
            room.forget(ours.fileno())
            over.set()

    def read() -> None:
        order.append("client")
        other.recv(1)

    room.wait(ours.fileno(), Newcomer())
    loop.add_reader(other.fileno(), read)
    theirs.send(b"x")
    peer.send(b"x")
    await over.wait()
    assert order == ["client", "newcomer"]
    loop.remove_reader(other.fileno())
    room.leave()
    for sock in (ours, theirs, other, peer):
        sock.close()


async def test_a_long_pass_has_no_piece_unless_all_passes_are_long(monkeypatch):
    monkeypatch.setattr(lobby, "LONG_S", -1.0)  # every pass is too long
    room = lobby.Lobby.join()
    ours, theirs = socket.socketpair()
    passes, woke = 0, []

    class Newcomer:
        def woke(self, is_ending: bool) -> None:
            woke.append(passes)
            room.forget(ours.fileno())

    room.wait(ours.fileno(), Newcomer())
    theirs.send(b"x")
    while not woke:
        await asyncio.sleep(0)
        passes += 1
    assert lobby.LONG_PASSES_MAX <= woke[0] <= 2 * lobby.LONG_PASSES_MAX
    room.leave()
    ours.close()
    theirs.close()


def test_a_protocol_is_made_when_the_first_bytes_are_there(on_loop):
    async def main():
        async with listening(speaks_first=False) as running:
            reader, writer = await running.stream()
            await running.gate.until_open(1)
            assert not running.book.made
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            assert len(running.book.made) == 1
            await end(writer)

    on_loop(main)


def test_a_protocol_that_speaks_first_is_made_at_once(on_loop):
    async def main():
        async with listening(speaks_first=True) as running:
            _reader, writer = await running.stream()
            await running.book.only()
            await end(writer)

    on_loop(main)


def test_last_bytes_of_a_peer_that_sends_no_more_are_served(on_loop):
    async def main():
        async with listening(speaks_first=False) as running:
            reader, writer = await running.stream()
            writer.write(b"all")
            writer.write_eof()
            assert await reader.read() == b"all"
            await end(writer)

    on_loop(main)


def test_a_peer_that_goes_without_a_word_is_counted_out_and_served_by_nobody(on_loop):
    async def main():
        async with listening(speaks_first=False) as running:
            _reader, writer = await running.stream()
            await running.gate.until_open(1)
            await end(writer)
            await running.gate.until_open(0)
            assert not running.book.made
            assert (running.gate.handshakes_failed, running.gate.handshakes_late) == (1, 0)

    on_loop(main)


def test_peers_that_say_nothing_are_closed_at_the_deadline(on_loop, monkeypatch):
    monkeypatch.setattr(accepting, "LATE_AT_ONCE", 3)

    async def main():
        async with listening(speaks_first=False, handshake_timeout_s=0.05) as running:
            with crowd(running.port) as clients:
                await running.gate.until_open(CROWD)
                await running.gate.until_open(0)
                assert running.gate.handshakes_late == CROWD
                for client in clients:
                    assert client.recv(1) == b""

    on_loop(main)


def test_a_listener_that_closes_lets_nobody_wait(on_loop):
    async def main():
        async with listening(speaks_first=False) as running:
            with crowd(running.port) as clients:
                await running.gate.until_open(CROWD)
                running.served.close()
                assert running.gate.open == 0
                assert clients[0].recv(1) == b""

    on_loop(main)


def test_a_silent_connection_keeps_few_objects_for_the_collector():
    """What waits for its first byte is walked by the cycle collector, while everybody waits."""

    async def main():
        async with listening(speaks_first=False) as running:
            gc.collect()
            before = len(gc.get_objects())
            with crowd(running.port) as made:
                await running.gate.until_open(CROWD)
                gc.collect()
                kept = (len(gc.get_objects()) - before) / len(made)
                assert kept <= KEPT_MAX
                del made

    run_on("uvloop", main)
