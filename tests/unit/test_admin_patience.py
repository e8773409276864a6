"""Peers of the HTTP listeners that ask for nothing, too slowly or for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from onelog.admin import server
from onelog.admin.server import HttpServer
from onelog.net import bind

CONNECTIONS_MAX = 10
DEADLINE_S = 20.0
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
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
async def serving(busy: asyncio.Event | None = None) -> AsyncIterator[int]:
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
            yield listener.port
    finally:
        await http.close()


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
        ask = ASK.replace(b"/ ", b"/busy ", 1)
        waiting = [await opened(stack, port, ask) for _ in range(CONNECTIONS_MAX - 1)]
        await asyncio.sleep(0.1)
        assert await status(await opened(stack, port, ASK)) == 503
        busy.set()
        assert [await status(reader) for reader in waiting] == [200] * len(waiting)


@pytest.mark.parametrize("kind", [kind for kind in WAITING if kind != "idle"])
async def test_a_request_that_does_not_come_is_not_waited_for(monkeypatch, kind):
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    async with serving() as port, AsyncExitStack() as stack:
        reader = await opened(stack, port, WAITING[kind])
        with pytest.raises(ConnectionResetError):
            assert not await reader.read()
            raise ConnectionResetError


async def test_time_counts_for_each_request_anew(monkeypatch):
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    busy = asyncio.Event()
    async with serving(busy) as port, AsyncExitStack() as stack:
        asked = ASK.replace(b"/ ", b"/busy ", 1) + ASK  # the second one waits for the first
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
