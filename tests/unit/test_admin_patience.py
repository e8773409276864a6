"""Peers of the HTTP listeners that ask for nothing, too slowly or for ever."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from onelog.admin import admission, door, server
from onelog.admin.bodies import body_bound
from onelog.admin.server import HttpServer
from onelog.net import bind
from tests.support.backups import until

CONNECTIONS_MAX = 10
DEADLINE_S = 20.0
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ASK_BUSY = ASK.replace(b"/ ", b"/busy ", 1)
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
WAITING = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nHos",
    "half a body": HEAD + b"Content-Length: 1000\r\n\r\n{",
    "idle": ASK,
}
ENDLESS = {
    "headers": (b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 1000),
    "a header": (b"GET / HTTP/1.1\r\nX: ", b"y" * 6000),
    "trailers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 1000),
}


@asynccontextmanager
async def listening(busy: asyncio.Event | None = None) -> AsyncIterator[tuple[HttpServer, int]]:
    """A listener whose path /busy is answered when the event says so."""

    async def application(scope, receive, send) -> None:
        while (await receive()).get("more_body"):
            pass
        if busy is not None and scope["path"] == "/busy":
            await busy.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    listener = bind("admin", "127.0.0.1", 0)
    http = HttpServer(listener, application, CONNECTIONS_MAX)
    http.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield http, listener.port
    finally:
        await http.close()


async def test_a_body_that_announces_too_much_is_refused_by_its_head():
    asked = 0

    async def application(scope, receive, send) -> None:
        nonlocal asked
        asked += 1
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    bound = body_bound(1000, "413 Content Too Large", {"error": {"code": "too_large"}})
    listener = bind("admin", "127.0.0.1", 0)
    http = HttpServer(listener, application, CONNECTIONS_MAX, body=bound)
    http.start()
    try:
        async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as stack:
            # More peers than there are places: they take none, and each has its answer though it
            # sends on.
            for _ in range(3 * CONNECTIONS_MAX):
                body = bytes(200_000)
                refused = await opened(
                    stack, listener.port, HEAD + b"Content-Length: 9999999999\r\n\r\n" + body
                )
                assert await status(refused) == 413
                assert b'{"error":{"code":"too_large"}}' in await refused.read()
            assert (asked, http.admission.refused) == (0, 0)
            whole = HEAD + b"Content-Length: 1000\r\n\r\n" + bytes(1000)
            assert await status(await opened(stack, listener.port, whole)) == 200
            # Behind a request that is served, nothing gets in between its answer.
            both = whole + HEAD + b"Content-Length: 1001\r\n\r\n" + bytes(1001)
            reader = await opened(stack, listener.port, both)
            assert await status(reader) == 200
    finally:
        await http.close()


@asynccontextmanager
async def serving(busy: asyncio.Event | None = None) -> AsyncIterator[int]:
    """Its port alone."""
    async with listening(busy) as (_http, port):
        yield port


async def opened(stack: AsyncExitStack, port: int, data: bytes) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    writer.write(data)
    return reader


async def status(reader: asyncio.StreamReader) -> int:
    return int((await reader.readline()).split()[1])


@pytest.mark.parametrize("data", WAITING.values(), ids=WAITING)
async def test_who_asks_for_nothing_keeps_nobody_out(data):
    async with serving() as port, AsyncExitStack() as stack:
        for _ in range(3 * CONNECTIONS_MAX):
            reader = await opened(stack, port, data)
            if data == ASK:
                assert await status(reader) == 200
        await asyncio.sleep(0.1)  # they all stand
        for _ in range(3):
            assert await status(await opened(stack, port, ASK)) == 200


async def test_who_is_answered_makes_no_room():
    busy = asyncio.Event()
    async with serving(busy) as port, AsyncExitStack() as stack:
        waiting = [await opened(stack, port, ASK_BUSY) for _ in range(CONNECTIONS_MAX)]
        await asyncio.sleep(0.1)
        assert await status(await opened(stack, port, ASK)) == 503
        busy.set()
        assert [await status(reader) for reader in waiting] == [200] * len(waiting)


def crowd(port: int, count: int, asked: bytes) -> list[socket.socket]:
    """Connections that asked before the listener could accept the first: no turn of the loop."""
    rows = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for row in rows:
        row.sendall(asked)
        row.setblocking(False)
    return rows


async def answers(rows: list[socket.socket]) -> list[bytes]:
    """All that each of them is told until its end; an end without an answer is an error."""
    loop = asyncio.get_running_loop()

    async def answer(row: socket.socket) -> bytes:
        said = b""
        while part := await loop.sock_recv(row, 65536):
            said += part
        row.close()
        return said

    return await asyncio.gather(*map(answer, rows))


@pytest.mark.parametrize("asked", [b"", b"Content-Length: 5\r\n"], ids=["head", "body to come"])
async def test_every_request_of_a_crowd_is_answered(asked):
    busy = asyncio.Event()
    ask = ASK_BUSY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n" + asked + b"\r\n", 1)
    async with listening(busy) as (http, port):
        rows = crowd(port, 300, ask)
        telling = asyncio.create_task(answers(rows))
        await until(lambda: http.admission.refused == 300 - CONNECTIONS_MAX)
        busy.set()
        if asked:
            for row in rows:
                with suppress(OSError):  # most of them are refused and closed
                    row.send(b"12345")
        told = await telling
        refused = [row for row in told if row.startswith(b"HTTP/1.1 503 ")]
        assert sum(row.startswith(b"HTTP/1.1 200 ") for row in told) == CONNECTIONS_MAX
        assert len(refused) == 300 - CONNECTIONS_MAX
        assert all(b"connection: close\r\n" in row for row in refused)


async def test_a_refusal_is_not_lost_with_a_body_that_is_still_sent():
    busy = asyncio.Event()
    async with serving(busy) as port, AsyncExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            await opened(stack, port, ASK_BUSY)
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        stack.callback(writer.close)
        writer.write(HEAD + b"Content-Length: 2000000\r\n\r\n")
        for _ in range(20):
            writer.write(bytes(100_000))
            await writer.drain()
        assert await status(reader) == 503
        busy.set()


async def test_refused_connections_are_bounded_too(monkeypatch):
    monkeypatch.setattr(admission, "PARTING_MAX", 5)
    monkeypatch.setattr(server, "PARTING_S", 60.0)
    async with listening() as (http, port):
        rows = crowd(port, 6 * CONNECTIONS_MAX, b"G")  # they ask for nothing, and stay
        await until(lambda: http.admission.refused == 2 * CONNECTIONS_MAX)
        await until(lambda: len(http.admission.parting) == 5)
        assert http.samples()[0].value == 2 * CONNECTIONS_MAX
        for row in rows:
            row.close()


async def test_of_connections_that_say_nothing_the_longest_makes_room():
    async with listening() as (http, port):
        rows = crowd(port, 5 * CONNECTIONS_MAX, b"")
        await until(lambda: http.admission.refused == CONNECTIONS_MAX)
        assert http.samples()[0].value == CONNECTIONS_MAX
        for row in rows[:CONNECTIONS_MAX]:
            row.settimeout(5)
            assert row.recv(12) == b"HTTP/1.1 503"
        for row in rows:
            row.close()


@pytest.mark.parametrize("first", [b"\x16\x03\x01", b"\x10\x0e\x00\x04MQTT", b"\xff" * 512])
async def test_bytes_that_are_no_http_are_answered_before_anything_is_made_for_them(first):
    async with listening() as (http, port), AsyncExitStack() as stack:
        reader = await opened(stack, port, first)
        assert await status(reader) == 400
        assert not http._server.server_state.connections


@pytest.mark.parametrize("kind", [kind for kind in WAITING if kind != "idle"])
async def test_a_request_that_does_not_come_is_not_waited_for(monkeypatch, kind):
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(door, "REQUEST_TIMEOUT_S", 0.2)
    async with serving() as port, AsyncExitStack() as stack:
        reader = await opened(stack, port, WAITING[kind])
        with pytest.raises(ConnectionResetError):
            assert not await reader.read()
            raise ConnectionResetError


async def test_time_counts_for_each_request_anew(monkeypatch):
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    busy = asyncio.Event()
    async with serving(busy) as port, AsyncExitStack() as stack:
        asked = ASK_BUSY + ASK  # the second one waits for the first
        reader = await opened(stack, port, asked)
        await asyncio.sleep(0.5)
        busy.set()
        assert await status(reader) == 200
        rest = await reader.readuntil(b"200 OK")
        assert rest.endswith(b"200 OK")


@pytest.mark.parametrize(("head", "more"), ENDLESS.values(), ids=ENDLESS)
async def test_a_head_without_end_costs_bounded_memory(head, more):
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        with pytest.raises(ConnectionError):
            for _ in range(20_000_000 // len(more)):
                writer.write(more)
                await writer.drain()
        writer.close()
        del reader
