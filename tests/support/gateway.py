"""Between a test and etcd: a proxy whose streams fall silent, and a gateway that answers badly.

The second one answers as etcd's gateway does, from nothing, so that a test can break each answer.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator

import msgspec

HEADER = {"cluster_id": "17", "member_id": "1", "revision": "5"}


class Gateway:
    """One listening socket."""

    def __init__(self) -> None:
        self.url = ""
        self.version = "3.4.23"
        self.bad = ""
        """How answers that are no status are spoiled; empty: they are not."""
        self.sent_bytes = 0
        self.connections = self.connections_max = 0
        self.streams: list[asyncio.StreamWriter] = []
        self._is_mute: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def before(cls, port: int) -> AsyncIterator[Gateway]:
        """A proxy in front of an etcd."""
        gateway = cls()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            up_reader, up = await asyncio.open_connection("127.0.0.1", port)
            both = [
                asyncio.create_task(gateway._pump(reader, up, writer)),
                asyncio.create_task(gateway._pump(up_reader, writer, None)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in both:
                    task.cancel()
                await asyncio.wait(both)
                for end in (up, writer):
                    end.close()
                    with contextlib.suppress(ConnectionError):
                        await end.wait_closed()

        async with gateway._listening(serve):
            yield gateway

    @classmethod
    @contextlib.asynccontextmanager
    async def answering(cls, version: str = "3.4.23") -> AsyncIterator[Gateway]:
        """A gateway without an etcd: it holds no keys, and takes every change."""
        gateway = cls()
        gateway.version = version
        async with gateway._listening(gateway._serve):
            yield gateway

    @contextlib.asynccontextmanager
    async def _listening(self, serve) -> AsyncIterator[None]:  # type: ignore[no-untyped-def]
        async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            self.connections += 1
            self.connections_max = max(self.connections_max, self.connections)
            try:
                await serve(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                self.connections -= 1
                self._tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(kept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()
            for task in tuple(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(tuple(self._tasks))

    # -- the proxy

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked_by: asyncio.StreamWriter | None,
    ) -> None:
        while data := await reader.read(65536):
            if asked_by is not None and b"/v3/watch" in data:
                self.streams.append(asked_by)
            if writer not in self._is_mute:
                writer.write(data)
                await writer.drain()

    def mute_streams(self) -> None:
        """Streams that are open say nothing any more; their connections stay."""
        self._is_mute.update(self.streams)
        self.streams.clear()

    # -- the gateway

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            size = next(
                int(line.split(":")[1])
                for line in head.split("\r\n")
                if "ontent-" in line and "ength" in line
            )
            await reader.readexactly(size)
            path = head.split(" ")[1]
            if path == "/v3/watch":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                writer.write(_chunk(_line({"header": HEADER, "created": True})))
                self.streams.append(writer)
                await reader.read()
                return
            if not await self._answer(writer, path):
                return

    async def _answer(self, writer: asyncio.StreamWriter, path: str) -> bool:
        """Whether the connection stays."""
        if path == "/v3/maintenance/status":
            return self._send(writer, {"header": HEADER, "version": self.version})
        match self.bad:
            case "not http":
                writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
                return True
            case "not json":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html")
                return True
            case "wrong types":
                return self._send(writer, {"header": {"revision": [1]}, "kvs": 7})
            case "cut":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{")
                return False
            case "endless headers":
                writer.write(b"HTTP/1.1 200 OK\r\n" + b"X-More: and more\r\n" * 10_000)
                return True
            case "endless body":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
                while True:
                    writer.write(bytes(1_000_000))
                    self.sent_bytes += 1_000_000
                    await writer.drain()
        return self._send(writer, {"header": HEADER, "succeeded": True})

    def _send(self, writer: asyncio.StreamWriter, answer: object) -> bool:
        body = msgspec.json.encode(answer)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return True

    def event(self, key: str, value: bytes, revision: int, *, fragment: bool = False) -> bytes:
        """A line of a watch: a key was written."""
        row = {
            "key": base64.b64encode(f"/onelog/test/{key}".encode()).decode(),
            "value": base64.b64encode(value).decode(),
            "mod_revision": str(revision),
            "create_revision": str(revision),
            "version": "1",
        }
        return _line({"header": HEADER, "events": [{"kv": row}], "fragment": fragment})

    def tell_streams(self, line: bytes) -> None:
        """Write a line into every stream that is open."""
        for writer in tuple(self.streams):
            if writer.is_closing():
                self.streams.remove(writer)
            else:
                writer.write(_chunk(line))


def _line(frame: object) -> bytes:
    return msgspec.json.encode({"result": frame}) + b"\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
