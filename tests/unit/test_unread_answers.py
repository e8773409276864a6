"""A Kafka client and an HTTP client that ask and never read cost bounded memory and time (I8)."""

from __future__ import annotations

import asyncio
import socket

import uvloop

from onelog.admin import server
from onelog.admin.server import HttpServer, WatchedHttp
from onelog.base.clock import SystemClock
from onelog.net import Gate, GateLimits, bind, start_listener
from onelog.protocols.kafka.connection import Connection
from tests.support.kafka_hub import batch, desk
from tests.unit.test_kafka_fetch import fetch

FETCHES = 300


async def asking(port: int, data: bytes) -> socket.socket:
    """A peer that sends and does not read, with small buffers."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, data)
    return sock


async def test_a_kafka_client_that_pipelines_fetches_and_never_reads(tmp_path):
    async with desk(tmp_path) as here:
        made = here.client()
        made.send(made.produce(batch(bytes(900_000))))
        await made.wait_for(1)
        connections: list[Connection] = []

        def serve(peer):
            connections.append(Connection(here.hub, peer, here.hub.config.listeners.kafka))
            return connections[-1]

        listener = bind("kafka", "127.0.0.1", 0)
        gate = Gate(GateLimits(), SystemClock())
        served = await start_listener(listener, serve, gate, write_timeout_s=1.0)
        frames = b"".join(fetch(made, 0) for _ in range(FETCHES))
        sock = await asking(listener.port, frames)
        most = 0
        async with asyncio.timeout(20):
            while not gate.writes_stuck:
                await asyncio.sleep(0.05)
                if connections and connections[0]._transport is not None:
                    most = max(most, connections[0]._transport.get_write_buffer_size())
        assert 0 < most < 6 * 1024 * 1024  # of 270 MB that it asked for
        sock.close()
        served.close()
        await served.wait_closed()


def test_an_http_client_that_never_reads_is_cut_off(monkeypatch):
    monkeypatch.setattr(server, "WRITE_TIMEOUT_S", 0.3)

    async def application(scope, receive, send):
        del scope
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(20_000_000)})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    lost = asyncio.Event()

    class Told(WatchedHttp):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    monkeypatch.setattr(server, "WatchedHttp", Told)

    async def main() -> None:
        listener = bind("admin", "127.0.0.1", 0)
        http = HttpServer(listener, application, 10)
        http.start()
        sock = await asking(listener.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        async with asyncio.timeout(20):
            await lost.wait()
        sock.close()
        await http.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
