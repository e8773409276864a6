"""TLS begins when a ClientHello is there: a peer that sends none costs a socket."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl

import pytest

from onelog.base.errors import ProtocolViolation
from onelog.net.client_hello import has_hello, wait_for_hello


def hello() -> bytes:
    """What a real client sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _address = server.accept()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def within(seconds: float = 30.0) -> float:
    return asyncio.get_running_loop().time() + seconds


async def passes(times: int = 20) -> None:
    for _pass in range(times):
        await asyncio.sleep(0.001)


async def test_it_returns_when_the_whole_record_is_there_and_leaves_the_bytes(pair):
    ours, theirs = pair
    data = hello()
    waiting = asyncio.create_task(wait_for_hello(ours, within()))
    for start, end in ((0, 1), (1, 4), (4, 5), (5, 6), (6, len(data) - 1)):
        theirs.sendall(data[start:end])
        await passes(5)
        assert not waiting.done()
    theirs.sendall(data[-1:])
    await asyncio.wait_for(waiting, 30)
    assert ours.recv(65_536) == data
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n", bytes(512), b"\x16\x03\x01\xff\xff" + bytes(64), b"\x16\x03\x01\0\0"],
    ids=["http", "zeros", "oversize", "empty"],
)
async def test_what_begins_no_handshake_is_refused(pair, data):
    ours, theirs = pair
    theirs.sendall(data)
    with pytest.raises(ProtocolViolation):
        await wait_for_hello(ours, within())


@pytest.mark.parametrize("size", [0, 3, 5, 100])
async def test_a_peer_that_goes_in_between_is_refused(pair, size):
    ours, theirs = pair
    theirs.sendall(hello()[:size])
    waiting = asyncio.create_task(wait_for_hello(ours, within()))
    await passes(3)
    theirs.close()
    with pytest.raises(ProtocolViolation):
        await waiting


async def test_a_peer_that_sends_nothing_is_late_and_leaves_no_reader(pair):
    ours, _theirs = pair
    with pytest.raises(TimeoutError):
        await wait_for_hello(ours, within(0.02))
    assert asyncio.get_running_loop().remove_reader(ours.fileno()) is False


async def test_a_slow_peer_wakes_the_loop_for_the_record_and_not_for_each_byte(pair, monkeypatch):
    ours, theirs = pair
    loop, woken = asyncio.get_running_loop(), 0
    add = loop.add_reader

    def counted(fd, act, *said):
        def woke(*found):
            nonlocal woken
            woken += 1
            act(*found)

        add(fd, woke, *said)

    monkeypatch.setattr(loop, "add_reader", counted)
    data = hello()
    waiting = asyncio.create_task(wait_for_hello(ours, within()))
    for at in range(len(data)):
        theirs.sendall(data[at : at + 1])
        await asyncio.sleep(0)
    await waiting
    assert woken <= 2


@pytest.mark.parametrize("size", [1, 4, 5, 100])
def test_a_stream_that_ends_inside_of_the_record_is_refused_at_the_second_look(pair, size):
    ours, theirs = pair
    theirs.sendall(hello()[:size])
    _readable(ours, expected=True)
    assert not has_hello(ours)
    theirs.shutdown(socket.SHUT_WR)
    _readable(ours, expected=True)  # and for ever
    with pytest.raises(ProtocolViolation):
        for _look in range(3):
            assert not has_hello(ours)


def test_urgent_data_inside_of_the_record_is_refused_at_the_second_look(pair):
    ours, theirs = pair
    data = hello()
    theirs.sendall(data[:40])
    _readable(ours, expected=True)
    assert not has_hello(ours)
    theirs.send(data[40:41], socket.MSG_OOB)
    theirs.sendall(data[41:])
    _readable(ours, expected=True)
    with pytest.raises(ProtocolViolation):
        for _look in range(3):
            assert not has_hello(ours)


def test_a_record_that_comes_in_pieces_is_enough_when_it_is_whole(pair):
    ours, theirs = pair
    data = hello()
    theirs.sendall(data[:40])
    _readable(ours, expected=True)
    assert not has_hello(ours)
    theirs.sendall(data[40:80])
    _readable(ours, expected=False)
    theirs.sendall(data[80:])
    _readable(ours, expected=True)
    assert has_hello(ours)
    assert ours.recv(65_536) == data


def _readable(sock: socket.socket, *, expected: bool) -> None:
    found, _, _ = select.select([sock], [], [], 30 if expected else 0.05)
    assert bool(found) is expected
