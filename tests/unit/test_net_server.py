"""Listeners over real sockets, on asyncio and on uvloop: limits, TLS and the PROXY header."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import sys
from functools import partial

import pytest
import trustme

from onelog.net import GateLimits, ProxySettings, accepting, bind
from onelog.net.proxy import SIGNATURE
from tests.support.listening import (
    SERVED,
    client_tls,
    end,
    listening,
    proxied,
    refused,
    run_on,
    server_tls,
    write_tls_files,
)


@pytest.fixture(params=SERVED)
def on_loop(request):
    return partial(run_on, request.param)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def files(tmp_path_factory, authority):
    return write_tls_files(tmp_path_factory.mktemp("tls"), authority)


# ---- plain TCP ----


def test_a_plain_connection_reaches_its_protocol_and_is_counted(on_loop):
    async def main():
        async with listening() as running:
            reader, writer = await running.stream()
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            echo = await running.book.only()
            assert echo.peer.host == "127.0.0.1"
            assert echo.peer.port == writer.get_extra_info("sockname")[1]
            assert (echo.peer.via, echo.peer.listener) == ("tcp", "test")
            assert echo.peer.listener_is_loopback
            assert (running.gate.open, running.gate.accepted) == (1, 1)
            await end(writer)
            assert await echo.lost is None
            assert running.gate.open == 0

    on_loop(main)


def test_a_read_calls_the_protocol_without_a_layer_of_ours(on_loop):
    """The hot path: what the loop calls is the protocol's own method."""

    async def main():
        async with listening() as running:
            callers: list[str] = []
            reader, writer = await running.stream()
            echo = await running.book.only()
            assert echo.transport.get_protocol().data_received == echo.data_received

            def look(frame, event, _argument):
                if event == "call" and frame.f_code.co_name == "data_received":
                    back = frame.f_back
                    callers.append(back.f_code.co_filename if back else "")

            sys.setprofile(look)
            try:
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
            finally:
                sys.setprofile(None)
            ours = [name for name in callers if "onelog/net" in name]
            assert callers
            assert not ours
            await end(writer)

    on_loop(main)


def test_over_the_total_a_connection_is_closed_at_once(on_loop):
    async def main():
        async with listening(GateLimits(total_max=1)) as running:
            _, first = await running.stream()
            echo = await running.book.only()
            reader, second = await running.stream()
            assert await refused(reader)
            assert (running.gate.open, running.gate.refused_total) == (1, 1)
            await end(second)
            await end(first)
            await echo.lost
            reader, third = await running.stream()
            third.write(b"x")
            assert await reader.readexactly(1) == b"x"
            await end(third)

    on_loop(main)


def test_over_the_limit_of_a_host_a_connection_is_closed_at_once(on_loop):
    async def main():
        async with listening(GateLimits(per_host_max=2)) as running:
            kept = [await running.stream() for _ in range(2)]
            for reader, writer in kept:
                writer.write(b"x")
                await reader.readexactly(1)
            reader, writer = await running.stream()
            assert await refused(reader)
            assert (running.gate.open, running.gate.refused_host) == (2, 1)
            for _, writer_ in [*kept, (reader, writer)]:
                await end(writer_)

    on_loop(main)


def test_over_the_rate_a_connection_is_closed_at_once(on_loop):
    async def main():
        async with listening(GateLimits(per_second_max=1)) as running:
            _, first = await running.stream()
            reader, second = await running.stream()
            assert await refused(reader)
            assert running.gate.refused_rate == 1
            await end(second)
            await end(first)

    on_loop(main)


def test_a_closed_listener_takes_nobody_and_leaves_connections_alone(on_loop):
    async def main():
        async with listening() as running:
            reader, writer = await running.stream()
            await running.book.only()
            running.served.close()
            running.served.close()
            with pytest.raises(ConnectionError):
                await running.stream()
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            await end(writer)

    on_loop(main)


# ---- TLS ----


def test_tls_carries_both_ways_in_large_pieces(on_loop, files, authority):
    async def main():
        async with listening(tls=server_tls(files)) as running:
            reader, writer = await running.stream(ssl=client_tls(authority))
            blob = bytes(range(256)) * 4096
            writer.write(blob)
            assert await reader.readexactly(len(blob)) == blob
            echo = await running.book.only()
            assert (echo.peer.via, echo.peer.certificate) == ("tls", None)
            assert running.gate.open == 1
            await end(writer)
            await echo.lost
            assert running.gate.open == 0

    on_loop(main)


def test_a_client_certificate_is_shown_to_the_protocol(on_loop, files, authority):
    async def main():
        async with listening(tls=server_tls(files, client_cert="required")) as running:
            reader, writer = await running.stream(ssl=client_tls(authority, "device-7"))
            writer.write(b"x")
            await reader.readexactly(1)
            echo = await running.book.only()
            assert ((("commonName", "device-7"),)) in echo.peer.certificate["subject"]
            await end(writer)

    on_loop(main)


@pytest.mark.parametrize("client", ["without", "of-another-ca"])
def test_a_client_without_a_good_certificate_never_reaches_the_protocol(
    on_loop, files, authority, client
):
    async def main():
        context = client_tls(authority)
        if client == "of-another-ca":
            trustme.CA().issue_cert("x.example", common_name="root").configure_cert(context)
        async with listening(tls=server_tls(files, client_cert="required")) as running:
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                reader, writer = await running.stream(ssl=context)
                try:
                    assert await reader.read(1) == b""
                finally:
                    await end(writer)
            await running.gate.until_open(0)
            assert running.gate.handshakes_failed == 1
            assert not running.book.made

    on_loop(main)


def test_an_optional_certificate_may_be_missing_but_not_wrong(on_loop, files, authority):
    async def main():
        async with listening(tls=server_tls(files, client_cert="optional")) as running:
            reader, writer = await running.stream(ssl=client_tls(authority))
            writer.write(b"x")
            await reader.readexactly(1)
            assert (await running.book.only()).peer.certificate is None
            await end(writer)

    on_loop(main)


def test_plain_bytes_on_a_tls_listener_end_that_connection_only(on_loop, files, authority):
    """I10."""

    async def main():
        async with listening(tls=server_tls(files)) as running:
            reader, writer = await running.stream()
            writer.write(b"\x10\x0e\x00\x04MQTT\x04\x02\x00<\x00\x02ab")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            await end(writer)
            reader, writer = await running.stream(ssl=client_tls(authority))
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            assert running.gate.handshakes_failed == 1
            await end(writer)

    on_loop(main)


def test_a_peer_that_never_shakes_hands_is_cut_off_at_the_deadline(on_loop, files):
    async def main():
        async with listening(tls=server_tls(files), handshake_timeout_s=0.2) as running:
            reader, writer = await running.stream()
            assert await refused(reader)
            await end(writer)
            await running.gate.until_open(0)
            assert (running.gate.handshakes_failed, running.gate.handshakes_late) == (1, 1)

    on_loop(main)


def test_limits_hold_before_the_tls_handshake(on_loop, files, authority):
    async def main():
        async with listening(GateLimits(total_max=1), tls=server_tls(files)) as running:
            _, idle = await running.stream()  # it is counted though it never shakes hands
            await running.gate.until_open(1)
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await running.stream(ssl=client_tls(authority))
            assert running.gate.refused_total == 1
            await end(idle)

    on_loop(main)


def test_closing_the_listener_ends_handshakes(on_loop, files):
    async def main():
        async with listening(tls=server_tls(files), handshake_timeout_s=60) as running:
            reader, writer = await running.stream()
            await running.gate.until_open(1)
            running.served.close()
            await running.served.wait_closed()
            assert await refused(reader)
            assert running.gate.open == 0
            await end(writer)

    on_loop(main)


# ---- PROXY ----


def test_the_proxy_header_gives_the_real_peer_and_the_rest_reaches_the_protocol(on_loop):
    async def main():
        async with listening(proxy=ProxySettings()) as running:
            reader, writer = await running.stream()
            writer.write(proxied("203.0.113.9") + b"right behind")
            assert await reader.readexactly(12) == b"right behind"
            peer = (await running.book.only()).peer
            assert (peer.host, peer.port, peer.proxy_host) == ("203.0.113.9", 4711, "127.0.0.1")
            await end(writer)

    on_loop(main)


def test_the_proxy_header_comes_before_tls(on_loop, files, authority):
    async def main():
        async with listening(proxy=ProxySettings(), tls=server_tls(files)) as running:
            reader, writer = await running.stream()
            writer.write(proxied("203.0.113.9"))
            await writer.start_tls(client_tls(authority), server_hostname="localhost")
            writer.write(b"secret")
            assert await reader.readexactly(6) == b"secret"
            assert (await running.book.only()).peer.host == "203.0.113.9"
            await end(writer)

    on_loop(main)


def test_the_limit_of_a_host_counts_the_real_peer(on_loop):
    async def main():
        limits = GateLimits(per_host_max=1)
        async with listening(limits, proxy=ProxySettings()) as running:
            streams = []
            for host in ("203.0.113.1", "203.0.113.2"):
                reader, writer = await running.stream()
                writer.write(proxied(host) + b"x")
                assert await reader.readexactly(1) == b"x"
                streams.append(writer)
            reader, writer = await running.stream()
            writer.write(proxied("203.0.113.2") + b"x")
            assert await refused(reader)
            assert running.gate.refused_host == 1
            for item in [*streams, writer]:
                await end(item)

    on_loop(main)


@pytest.mark.parametrize(
    "first",
    [b"PROXY TCP4 203.0.113.9 127.0.0.1 1 2\r\n", b"\x10\x0e\x00\x04MQTT", SIGNATURE + b"\xff" * 9],
    ids=["version-1", "no-header", "bad-header"],
)
def test_a_wrong_proxy_header_ends_that_connection_only(on_loop, first):
    """I10."""

    async def main():
        async with listening(proxy=ProxySettings()) as running:
            reader, writer = await running.stream()
            writer.write(first)
            assert await refused(reader)
            await end(writer)
            assert running.gate.handshakes_failed == 1
            assert not running.book.made

    on_loop(main)


def test_a_proxy_header_that_does_not_come_is_waited_for_until_the_deadline(on_loop):
    async def main():
        async with listening(proxy=ProxySettings(), handshake_timeout_s=0.2) as running:
            reader, writer = await running.stream()
            writer.write(SIGNATURE[:5])
            assert await refused(reader)
            await end(writer)
            assert running.gate.handshakes_late == 1

    on_loop(main)


def test_only_a_trusted_proxy_is_believed(on_loop):
    async def main():
        async with listening(proxy=ProxySettings(trusted=("192.0.2.0/24",))) as running:
            reader, writer = await running.stream()
            writer.write(proxied("203.0.113.9"))
            assert await refused(reader)
            await end(writer)
            assert running.gate.handshakes_failed == 1

    on_loop(main)


def test_out_of_open_files_the_listener_rests_and_goes_on(on_loop, monkeypatch):
    """A full table of files must not end the listener, nor spin the loop."""
    monkeypatch.setattr(accepting, "PAUSE_S", 0.05)

    async def main():
        async with listening(proxy=ProxySettings()) as running:
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
            client.sendall(proxied("203.0.113.9"))
            assert (await running.book.only()).peer.host == "203.0.113.9"
            client.close()

    on_loop(main)


def test_a_handshake_that_is_ended_before_its_first_step_is_counted_out(on_loop):
    async def main():
        async with listening(proxy=ProxySettings()) as running:
            with socket.create_connection(("127.0.0.1", running.port)) as client:
                running.accept_now()
                assert running.gate.open == 1
                running.served.close()
                await running.served.wait_closed()
                await running.gate.until_open(0)
                assert client.recv(1) == b""

    on_loop(main)


@pytest.mark.parametrize("proxy", [None, ProxySettings()], ids=["plain", "proxy"])
def test_a_protocol_that_cannot_be_made_ends_that_connection_only(on_loop, proxy):
    """I10."""

    async def main():
        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: problems.append(seen))
        async with listening(proxy=proxy) as running:
            broken, running.served._factory = running.served._factory, broken_factory
            reader, writer = await running.stream()
            writer.write(proxied("203.0.113.9"))
            assert await refused(reader)
            await end(writer)
            await running.gate.until_open(0)
            running.served._factory = broken
            reader, writer = await running.stream()
            writer.write((b"" if proxy is None else proxied("203.0.113.9")) + b"x")
            assert await reader.readexactly(1) == b"x"
            await end(writer)
        assert len(problems) == 1

    on_loop(main)


def broken_factory(_peer):
    raise RuntimeError("no protocol today")


def test_two_colons_are_every_address_of_both_families():
    """As its page says: an IPv4 peer comes in, too, and keeps its own address."""
    listener = bind("test", "::", 0)
    try:
        assert not listener.is_loopback
        families = {sock.family for sock in listener.sockets}
        assert socket.AF_INET in families
        assert (socket.AF_INET6 in families) == socket.has_dualstack_ipv6()
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            if family in families:
                with socket.create_connection((host, listener.port), 5) as caller:
                    assert caller.family == family
    finally:
        listener.close()
