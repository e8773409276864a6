"""Does every protocol work on each kind of sockets that can serve plain TCP?"""

from __future__ import annotations

import urllib.request

import pytest

from onelog.net.sockets import BACKENDS
from tests.cross.clients import NAMES, Clients, Said
from tests.support.served import Served

LARGE = bytes(range(256)) * 3500
"""More than a socket takes at once."""


@pytest.mark.parametrize("backend", sorted(row for row, (_, works) in BACKENDS.items() if works()))
def test_every_protocol_carries_small_and_large_messages(tmp_path, backend):
    with Served(tmp_path, f'net.backend="{backend}"', "listeners.mqtt_ws.port=0") as server:
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            assert f'sockets="{backend}"' in answer.read().decode()
        clients = Clients(server.ports)
        try:
            for name in NAMES:
                for payload in (b"small", LARGE):
                    assert clients.carry(name, name, Said(payload)).payload == payload
        finally:
            clients.close()
