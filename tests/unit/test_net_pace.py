"""What does a peer cost that sends and does not read, and how does a connection end? (I8)"""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import pytest
import trustme

from onelog.net.pace import LINGER_S
from tests.support.listening import (
    SERVED,
    Echo,
    client_tls,
    end,
    listening,
    run_on,
    server_tls,
)

HIGH = 64 * 1024
CHUNK = bytes(64 * 1024)


@pytest.fixture(params=SERVED)
def on_loop(request):
    return partial(run_on, request.param)


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_files(tmp_path, ca):
    leaf = ca.issue_cert("localhost")
    leaf.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for blob in leaf.cert_chain_pems:
        blob.write_to_path(str(tmp_path / "cert.pem"), append=True)
    return tmp_path


async def caller(port: int, **options) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A peer whose own buffers are small, so that it is soon known that it does not read."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    return await asyncio.open_connection(sock=sock, limit=1024, **options)


def narrow(echo: Echo, high: int = HIGH) -> None:
    echo.transport.set_write_buffer_limits(high=high)
    sock = echo.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)


async def fill(writer: asyncio.StreamWriter) -> int:
    """Send until the other side takes no more; how much went."""
    sent = 0
    while True:
        writer.write(CHUNK)
        sent += len(CHUNK)
        try:
            async with asyncio.timeout(0.3):
                await writer.drain()
        except TimeoutError:
            return sent


@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_a_peer_that_sends_and_never_reads_costs_bounded_memory(on_loop, secure, tls_files, ca):
    async def main():
        tls = server_tls(tls_files) if secure else None
        async with listening(tls=tls) as running:
            options = {"ssl": client_tls(ca), "server_hostname": "localhost"} if secure else {}
            reader, writer = await caller(running.port, **options)
            echo = await running.book.only()
            narrow(echo)
            sent = await fill(writer)
            waiting = echo.transport.get_write_buffer_size()
            assert waiting <= 2 * HIGH + 2 * 256 * 1024  # and what one read brought
            assert not echo.transport.is_reading()
            got = 0  # now it reads: everything comes, in order, and it is read again
            while got < sent:
                got += len(await reader.read(65_536))
            assert echo.transport.is_reading()
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            await end(writer)

    on_loop(main)


def test_a_peer_that_takes_no_bytes_is_cut_off(on_loop):
    async def main():
        async with listening(write_timeout_s=0.2) as running:
            _reader, writer = await caller(running.port)
            echo = await running.book.only()
            narrow(echo)
            echo.transport.write(bytes(8_000_000))
            await echo.lost
            assert running.gate.writes_stuck == 1
            await end(writer)

    on_loop(main)


def test_bytes_that_are_added_do_not_hide_that_a_peer_takes_none(on_loop):
    """Heartbeats, for one: a look would see that the bytes that wait are others than before."""

    async def main():
        async with listening(write_timeout_s=0.2) as running:
            _reader, writer = await caller(running.port)
            echo = await running.book.only()
            narrow(echo)
            echo.transport.write(bytes(8_000_000))
            async with asyncio.timeout(10):
                while not echo.lost.done():
                    echo.transport.write(b"beat")
                    await asyncio.wait([echo.lost], timeout=0.05)
            assert running.gate.writes_stuck == 1
            await end(writer)

    on_loop(main)


def test_a_peer_that_reads_slowly_is_not_cut_off(on_loop):
    async def main():
        async with listening(write_timeout_s=0.3) as running:
            reader, writer = await caller(running.port)
            echo = await running.book.only()
            narrow(echo)
            echo.echo = False
            echo.transport.write(bytes(3_000_000))
            got = 0
            while got < 3_000_000:
                got += len(await reader.readexactly(200_000))
                await asyncio.sleep(0.1)
                echo.transport.write(b"")
            assert running.gate.writes_stuck == 0
            await end(writer)

    on_loop(main)


def test_the_protocols_own_pause_outlasts_that_of_a_full_connection(on_loop):
    async def main():
        async with listening() as running:
            reader, writer = await caller(running.port)
            echo = await running.book.only()
            narrow(echo)
            sent = await fill(writer)
            echo.transport.pause_reading()
            received = sum(map(len, echo.received))
            got = 0
            while got < received:
                got += len(await reader.read(65_536))
            await echo.resumed.wait()
            await asyncio.sleep(0.05)
            assert sum(map(len, echo.received)) == received < sent
            echo.transport.resume_reading()
            while got < sent:
                got += len(await reader.read(65_536))
            await end(writer)

    on_loop(main)


def test_the_protocol_cannot_read_a_peer_that_does_not(on_loop):
    async def main():
        async with listening() as running:
            _reader, writer = await caller(running.port)
            echo = await running.book.only()
            narrow(echo)
            await fill(writer)
            received = len(echo.received)
            echo.transport.pause_reading()
            echo.transport.resume_reading()
            await asyncio.sleep(0.05)
            assert len(echo.received) == received
            writer.transport.abort()

    on_loop(main)


@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_a_peer_that_still_sends_reads_the_last_words(on_loop, secure, tls_files, ca):
    """A close with unread input is a reset, and takes with it what the peer did not read yet."""

    async def main():
        tls = server_tls(tls_files) if secure else None
        async with listening(tls=tls) as running:
            options = {"ssl": client_tls(ca), "server_hostname": "localhost"} if secure else {}
            sock = socket.create_connection(("127.0.0.1", running.port))
            reader, writer = await asyncio.open_connection(sock=sock, **options)
            echo = await running.book.only()
            echo.echo = False
            for _ in range(20):
                writer.write(CHUNK)
            echo.transport.write(b"good bye")
            echo.transport.part()
            before = len(echo.received)
            for _ in range(20):
                writer.write(CHUNK)
            await writer.drain()
            assert await reader.readexactly(8) == b"good bye"
            assert len(echo.received) == before  # nobody is interested any more
            writer.close()
            await writer.wait_closed()
            await echo.lost

    on_loop(main)


def test_a_peer_that_does_not_leave_is_gone_after_a_moment(on_loop):
    async def main():
        async with listening() as running:
            reader, writer = await running.stream()
            echo = await running.book.only()
            echo.transport.part()
            echo.transport.part()
            assert await reader.read() == b""
            async with asyncio.timeout(LINGER_S + 3):
                await echo.lost
            await end(writer)

    on_loop(main)


@pytest.mark.parametrize("size", [40_000, 8_000_000], ids=["few", "many"])
def test_a_closed_connection_whose_peer_takes_no_bytes_ends(on_loop, size):
    """Few bytes are no reason to watch an open connection, but one that is closed waits for them.

    Else who logs in too late, or is idle for too long, would stay for ever. (Over TLS the loops
    have a timeout of their own for this.)
    """

    async def main():
        async with listening(write_timeout_s=0.2) as running:
            _reader, writer = await caller(running.port)
            writer.transport.pause_reading()
            echo = await running.book.only()
            sock = echo.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            while not echo.transport.get_write_buffer_size():
                echo.transport.write(bytes(16_384))
                await asyncio.sleep(0.01)  # the system takes what it can
            echo.transport.write(bytes(size))
            echo.transport.close()
            try:
                async with asyncio.timeout(5):
                    await echo.lost
            finally:
                writer.transport.abort()
            assert running.gate.open == 0

    on_loop(main)
