"""The door of the admin listener: TLS handshakes that do not go on are bounded."""

from __future__ import annotations

import asyncio
import socket

import pytest
import trustme

from onelog.admin.admission import OPEN_PER_PLACE, Admission
from onelog.admin.door import HttpDoor
from onelog.net import bind
from tests.support.listening import server_tls, write_tls_files
from tests.support.mqtt import until
from tests.unit.test_net_client_hello import hello

PLACES = 2


@pytest.fixture
def tls(tmp_path):
    write_tls_files(tmp_path, trustme.CA())
    return server_tls(tmp_path)


async def test_handshakes_that_do_not_go_on_are_bounded_and_the_next_peer_is_sent_away(tls):
    listener = bind("admin", "127.0.0.1", 0)
    admission = Admission(PLACES)
    door = HttpDoor(listener, asyncio.Protocol, admission, tls)
    most = PLACES * OPEN_PER_PLACE
    peers = []
    try:
        for _number in range(most):
            peer = socket.create_connection(("127.0.0.1", listener.port))
            peer.sendall(hello())
            peers.append(peer)
        await until(lambda: len(door._entering) == most)
        for number in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(hello())
            assert await _rest(reader) == b""
            assert admission.refused == number + 1
            assert len(door._entering) == most
            writer.close()
        peers.pop().close()  # one gives up: the next has its place
        await until(lambda: len(door._entering) < most)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(hello())
        assert len(await asyncio.wait_for(reader.read(5), 30)) == 5  # the server's handshake
        writer.close()
    finally:
        door.close()
        listener.close()
        for peer in peers:
            peer.close()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return b""
