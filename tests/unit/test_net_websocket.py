"""WebSocket over real sockets, on asyncio and on uvloop, with a client that is not ours."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from functools import partial

import pytest
import trustme
import websockets
from hypothesis import given
from hypothesis import strategies as st

from onelog.net import ProxySettings
from onelog.net.origins import may_connect
from onelog.net.websocket import SEND_FRAME_BYTES_MAX, UPGRADE_BYTES_MAX, WebSocketServer
from tests.support.listening import (
    LOOPS,
    client_tls,
    end,
    listening,
    over_websocket,
    proxied,
    refused,
    run_on,
    server_tls,
    write_tls_files,
)


@pytest.fixture(params=sorted(LOOPS))
def on_loop(request):
    return partial(run_on, request.param)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def files(tmp_path_factory, authority):
    return write_tls_files(tmp_path_factory.mktemp("tls"), authority)


# ---- WebSocket ----


def test_a_websocket_carries_a_stream_of_bytes(on_loop):
    async def main():
        async with listening(websocket=over_websocket()) as running:
            async with running.websocket() as client:
                assert client.subprotocol == "mqtt"
                await client.send(b"hello")
                assert await client.recv() == b"hello"
                echo = await running.book.only()
                assert echo.peer.via == "ws"
                assert echo.transport.get_extra_info("subprotocol") == "mqtt"
            await echo.lost
            assert running.gate.open == 0
            assert running.gate.handshakes_failed == 0

    on_loop(main)


def test_a_websocket_over_tls_with_a_client_certificate(on_loop, files, authority):
    async def main():
        tls = server_tls(files, client_cert="required")
        async with listening(tls=tls, websocket=over_websocket()) as running:
            context = client_tls(authority, "device-8")
            async with running.websocket("wss", ssl=context) as client:
                await client.send(b"x")
                assert await client.recv() == b"x"
                peer = (await running.book.only()).peer
                assert peer.via == "wss"
                assert ((("commonName", "device-8"),)) in peer.certificate["subject"]

    on_loop(main)


def test_a_websocket_behind_a_proxy(on_loop):
    async def main():
        async with listening(proxy=ProxySettings(), websocket=over_websocket()) as running:
            raw = socket.create_connection(("127.0.0.1", running.port))
            raw.sendall(proxied("203.0.113.9"))
            async with running.websocket(sock=raw) as client:
                await client.send(b"x")
                assert await client.recv() == b"x"
                assert (await running.book.only()).peer.host == "203.0.113.9"

    on_loop(main)


def test_a_packet_may_span_frames_and_fragments(on_loop):
    async def main():
        async with (
            listening(websocket=over_websocket()) as running,
            running.websocket() as client,
        ):
            echo = await running.book.only()
            echo.echo = False
            await client.send([b"a", b"b", b"", b"c"])  # one message of four fragments
            await client.send(b"d")
            await client.send(b"end")
            while b"".join(echo.received) != b"abcdend":
                running.book.got.clear()
                await running.book.got.wait()

    on_loop(main)


def test_frames_that_come_in_one_read_are_one_call(on_loop):
    async def main():
        async with listening(websocket=over_websocket()) as running:
            reader, writer = await running.stream()
            await upgrade(reader, writer)
            echo = await running.book.only()
            echo.echo = False
            writer.write(masked(b"one") + masked(b"two") + masked(b"three"))
            await running.book.got.wait()
            assert echo.received == [b"onetwothree"]
            await end(writer)

    on_loop(main)


def test_a_large_write_reaches_the_client_whole(on_loop):
    async def main():
        async with (
            listening(websocket=over_websocket()) as running,
            running.websocket() as client,
        ):
            echo = await running.book.only()
            blob = bytes(range(256)) * (SEND_FRAME_BYTES_MAX // 256 * 2 + 1)
            echo.transport.write(blob)
            echo.transport.writelines([b"a" * 200, bytearray(b"b" * 70_000)])
            got = b""
            while len(got) < len(blob) + 70_200:
                got += await client.recv()
            assert got == blob + b"a" * 200 + b"b" * 70_000

    on_loop(main)


def test_a_text_frame_ends_the_connection_with_1003(on_loop):
    async def main():
        async with (
            listening(websocket=over_websocket()) as running,
            running.websocket() as client,
        ):
            echo = await running.book.only()
            await client.send("text")
            with pytest.raises(websockets.ConnectionClosedError) as closed:
                await client.recv()
            assert closed.value.rcvd.code == 1003
            await echo.lost
            assert echo.received == []

    on_loop(main)


def test_a_frame_over_the_limit_ends_the_connection_with_1009(on_loop):
    async def main():
        async with (
            listening(websocket=over_websocket(frame_bytes_max=1000)) as running,
            running.websocket() as client,
        ):
            await client.send(b"x" * 1000)
            assert len(await client.recv()) == 1000
            await client.send(b"x" * 1001)
            with pytest.raises(websockets.ConnectionClosedError) as closed:
                await client.recv()
            assert closed.value.rcvd.code == 1009

    on_loop(main)


def test_a_message_over_its_own_limit_ends_the_connection_with_1009(on_loop):
    async def main():
        settings = over_websocket(message_bytes_max=1000)
        async with listening(websocket=settings) as running, running.websocket() as client:
            await client.send([b"x" * 600, b"x" * 600])
            with pytest.raises(websockets.ConnectionClosedError) as closed:
                while True:
                    await client.recv()
            assert closed.value.rcvd.code == 1009

    on_loop(main)


def test_a_ping_is_answered(on_loop):
    async def main():
        async with (
            listening(websocket=over_websocket()) as running,
            running.websocket() as client,
        ):
            await (await client.ping(b"there?"))
            assert (await running.book.only()).received == []

    on_loop(main)


def test_closing_from_above_sends_a_close_frame_after_the_data(on_loop):
    async def main():
        async with listening(websocket=over_websocket()) as running:
            async with running.websocket() as client:
                echo = await running.book.only()
                echo.transport.write(b"last words")
                echo.transport.close()
                echo.transport.close()
                assert echo.transport.is_closing()
                echo.transport.write(b"never sent")
                assert await client.recv() == b"last words"
                with pytest.raises(websockets.ConnectionClosedOK) as closed:
                    await client.recv()
                assert closed.value.rcvd.code == 1000
            assert await echo.lost is None

    on_loop(main)


def test_data_before_a_close_frame_of_the_peer_still_counts(on_loop):
    async def main():
        async with listening(websocket=over_websocket()) as running:
            reader, writer = await running.stream()
            await upgrade(reader, writer)
            echo = await running.book.only()
            writer.write(masked(b"bye") + masked(struct.pack("!H", 1000), opcode=8))
            await echo.lost
            assert echo.received == [b"bye"]
            await end(writer)

    on_loop(main)


def test_a_slow_reader_pauses_the_protocol_above(on_loop):
    """I8: the protocol learns that its peer does not read."""

    async def main():
        async with listening(websocket=over_websocket()) as running:
            reader, writer = await running.stream(limit=1024)
            await upgrade(reader, writer)
            echo = await running.book.only()
            echo.transport.set_write_buffer_limits(high=65_536)
            sent = 0
            while not echo.paused:
                echo.transport.write(b"x" * 60_000)
                sent += 60_000
                await asyncio.sleep(0)
            assert echo.transport.get_write_buffer_size() > 0
            while not echo.resumed.is_set():
                await reader.read(1 << 20)
            await end(writer)

    on_loop(main)


def test_a_peer_that_pings_and_never_reads_is_cut_off(on_loop):
    """I8."""

    async def main():
        async with listening(websocket=over_websocket()) as running:
            reader, writer = await running.stream(limit=1024)
            await upgrade(reader, writer)
            echo = await running.book.only()
            writer.transport.pause_reading()
            pings = masked(b"p" * 125, opcode=9) * 500
            with contextlib.suppress(ConnectionError):
                while not echo.lost.done():
                    writer.write(pings)
                    await writer.drain()
            await echo.lost
            assert echo.received == []
            writer.transport.abort()

    on_loop(main)


def test_reading_can_be_paused_through_the_websocket(on_loop):
    async def main():
        async with (
            listening(websocket=over_websocket()) as running,
            running.websocket() as client,
        ):
            echo = await running.book.only()
            echo.transport.pause_reading()
            await client.send(b"later")
            waiter = asyncio.ensure_future(client.recv())
            for _ in range(20):
                await asyncio.sleep(0)
            assert echo.received == []
            echo.transport.resume_reading()
            assert await waiter == b"later"

    on_loop(main)


REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


async def upgrade(reader, writer) -> None:
    writer.write(REQUEST)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101 ")


def masked(payload: bytes, opcode: int = 2) -> bytes:
    assert len(payload) < 126
    return bytes((0x80 | opcode, 0x80 | len(payload))) + bytes(4) + payload


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", b"426"),
        (REQUEST.replace(b"GET", b"POST"), b"405"),
        (REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"), b"505"),
        (REQUEST.replace(b": mqtt\r\n", b": chat\r\n"), b"400"),
        (REQUEST.replace(b"Sec-WebSocket-Protocol: mqtt\r\n", b""), b"400"),
        (REQUEST.replace(b"Version: 13", b"Version: 8"), b"400"),
        (REQUEST.replace(b"AAAA==", b"A=="), b"400"),
        (REQUEST.replace(b"Host:", b"Origin: https://evil.example\r\nHost:"), b"403"),
        (REQUEST.replace(b"Host:", b"Origin: null\r\nHost:"), b"403"),
        (REQUEST.replace(b"/mqtt", b"/other"), b"404"),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", b"414"),
    ],
)
def test_what_is_no_upgrade_gets_an_http_error(on_loop, request_, status):
    async def main():
        settings = over_websocket(paths=("/mqtt",), origins=("https://good.example",))
        async with listening(websocket=settings) as running:
            reader, writer = await running.stream()
            writer.write(request_)
            answer = await reader.read()
            assert answer.split(b" ")[1] == status, answer
            await end(writer)
            await running.gate.until_open(0)
            assert running.gate.handshakes_failed == 1
            assert not running.book.made

    on_loop(main)


@pytest.mark.parametrize("headers", [b"", b"Origin: https://good.example\r\n"])
def test_a_program_or_a_good_page_passes_the_origin_check(on_loop, headers):
    async def main():
        settings = over_websocket(origins=("https://good.example",))
        async with listening(websocket=settings) as running:
            reader, writer = await running.stream()
            writer.write(REQUEST.replace(b"Host:", headers + b"Host:"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 101")
            await end(writer)

    on_loop(main)


def _asks(origin: str, host: str, origins: tuple[str, ...] = (), *, names: bool = False) -> bool:
    return may_connect([origin] if origin else [], [host], origins, trusts_names=names)


def test_a_page_of_elsewhere_does_not_reach_the_broker():
    assert not _asks("https://evil.example", "127.0.0.1:8083")
    assert not _asks("null", "127.0.0.1:8083")
    assert not _asks("http://127.0.0.1:3000", "127.0.0.1:8083")  # another server's page
    assert not _asks("http://127.0.0.1:8083.evil.example", "127.0.0.1:8083")
    assert not _asks("http://127.0.0.1:99999", "127.0.0.1:8083")
    assert _asks("", "127.0.0.1:8083")  # a program


def test_a_name_that_was_pointed_at_this_machine_does_not_make_a_page_ours():
    """DNS rebinding: the page and the host that it names agree."""
    assert not _asks("http://evil.example:8083", "evil.example:8083")
    assert _asks("http://evil.example:8083", "evil.example:8083", names=True)
    assert not _asks("http://evil.example:8083", "127.0.0.1:8083", names=True)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8083", "127.0.0.1:8083"),
        ("https://127.0.0.1:8083", "127.0.0.1:8083"),  # as paho says
        ("http://localhost:8083", "LOCALHOST:8083"),
        ("http://[::1]:8083", "[::1]:8083"),
        ("http://192.0.2.7", "192.0.2.7"),
        ("https://192.0.2.7", "192.0.2.7:443"),
    ],
)
def test_a_page_that_was_loaded_from_the_listener_itself_may_connect(origin, host):
    assert _asks(origin, host)


def test_two_origins_or_hosts_are_nobodys():
    pages, hosts = ["http://127.0.0.1", "https://good.example"], ["127.0.0.1", "localhost"]
    assert not may_connect(pages, hosts[:1], pages, trusts_names=True)
    assert not may_connect(pages[:1], hosts, (), trusts_names=True)
    assert not may_connect(pages[:1], [], (), trusts_names=True)
    assert may_connect(pages, hosts, ("*",), trusts_names=False)


@pytest.mark.parametrize(
    "garbage",
    [b"\x10\x0e\x00\x04MQTT\x04\x02\x00<\x00\x02ab\r\n", b"\r\n\r\n", b"GET\r\n\r\n"],
    ids=["mqtt", "empty", "half"],
)
def test_garbage_instead_of_an_upgrade_ends_that_connection_only(on_loop, garbage):
    """I10."""

    async def main():
        async with listening(websocket=over_websocket()) as running:
            reader, writer = await running.stream()
            writer.write(garbage)
            with contextlib.suppress(ConnectionError):
                said = await reader.read()  # up to the end
                assert said == b"" or said.startswith(b"HTTP/1.1 400 ")
            await end(writer)
            async with running.websocket() as client:
                await client.send(b"x")
                assert await client.recv() == b"x"

    on_loop(main)


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\x82\x05hello", b"\x80\x80\0\0\0\0"])
def test_bad_frames_end_that_connection_with_1002(on_loop, frame):
    """I10."""

    async def main():
        async with listening(websocket=over_websocket()) as running:
            reader, writer = await running.stream()
            await upgrade(reader, writer)
            writer.write(frame)
            answer = await reader.read()
            assert answer[0] == 0x88
            assert struct.unpack("!H", answer[2:4])[0] == 1002
            await end(writer)

    on_loop(main)


def test_bad_frames_right_behind_the_request_harm_nobody(on_loop):
    """I10."""

    async def main():
        async with listening(websocket=over_websocket()) as running:
            reader, writer = await running.stream()
            writer.write(REQUEST + b"\xff\xff\xff\xff")
            await reader.read()
            await end(writer)
            await running.gate.until_open(0)

    on_loop(main)


def test_an_endless_upgrade_request_is_cut_off(on_loop):
    """I8: before the upgrade a peer costs few bytes."""

    async def main():
        async with listening(websocket=over_websocket()) as running:
            reader, writer = await running.stream()
            writer.write(
                b"GET / HTTP/1.1\r\n" + b"X: yyyyyyyyyyyyyy\r\n" * (UPGRADE_BYTES_MAX // 19)
            )
            writer.write(b"X: yyyyyyyyyyyyyy\r\n" * 100)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            await end(writer)
            await running.gate.until_open(0)
            assert running.gate.handshakes_failed == 1

    on_loop(main)


def test_an_upgrade_that_does_not_come_is_waited_for_until_the_deadline(on_loop):
    async def main():
        async with listening(websocket=over_websocket(), handshake_timeout_s=0.2) as running:
            reader, writer = await running.stream()
            writer.write(REQUEST[:40])
            assert await refused(reader)
            await end(writer)
            await running.gate.until_open(0)
            assert (running.gate.handshakes_failed, running.gate.handshakes_late) == (1, 1)

    on_loop(main)


class Wire:
    """A transport that only remembers; no socket, so that many inputs can be tried."""

    def __init__(self) -> None:
        self.sent = b""
        self.ended = False

    def write(self, data) -> None:
        assert not self.ended
        self.sent += data

    def close(self) -> None:
        self.ended = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def resume_reading(self) -> None:
        pass


class Sink(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data) -> None:
        self.received += data


FRAMES = st.one_of(
    st.binary(max_size=20),
    st.builds(masked, st.binary(max_size=125), st.integers(0, 15)),
    st.builds(lambda payload: masked(payload)[:-1], st.binary(min_size=1, max_size=50)),
)


@given(
    st.sampled_from([b"", REQUEST, REQUEST.replace(b"mqtt", b"chat"), REQUEST[:-3]]),
    st.lists(FRAMES, max_size=6),
    st.integers(1, 400),
)
def test_any_bytes_end_in_data_or_in_a_closed_connection(request_, frames, step):
    """I10: whatever comes in whatever pieces, nothing is raised and nothing follows an end."""

    async def main():
        wire, sink, failed = Wire(), Sink(), []
        server = WebSocketServer(over_websocket(), lambda: sink, 60.0, failed.append)
        server.connection_made(wire)
        data = request_ + b"".join(frames)
        for start in range(0, len(data), step):
            server.data_received(data[start : start + step])
        server.connection_lost(None)
        assert len(failed) == (0 if wire.sent.startswith(b"HTTP/1.1 101") else 1)

    asyncio.run(main())
