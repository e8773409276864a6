"""Whom RabbitMQ's default user lets in: clients of this machine, or nobody if one wants so."""

from __future__ import annotations

import base64
import http.client
import socket
from collections.abc import Iterator

import pytest

from tests.conformance.amqp_raw import Raw, Refused
from tests.conformance.mqtt_brokers import Onelog
from tests.support.listening import proxied

ELSEWHERE = "203.0.113.9"
ALICE = {"user": "alice", "password": "secret-1"}


def own_address() -> str | None:
    """An address of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((ELSEWHERE, 9))
        except OSError:
            return None
        found = str(asked.getsockname()[0])
    return None if found.startswith("127.") else found


def is_let_in(port: int, host: str = "127.0.0.1", source: str = "", **login: str) -> bool:
    """Log in, as guest if nobody else is named; a proxy may say where the client comes from."""
    with Raw(port, host=host) as raw:
        if source:
            raw.send_bytes(proxied(source))
        try:
            raw.open(**login)
        except Refused as refused:
            assert refused.short == "connection 403"
            return False
        return True


@pytest.fixture(scope="module", params=["loopback", "never"])
def proxied_server(request, tmp_path_factory) -> Iterator[tuple[Onelog, bool]]:
    """A broker behind a proxy, and whether guest is let in."""
    made = Onelog(
        tmp_path_factory.mktemp(request.param),
        f"security.anonymous={request.param}",
        "listeners.amqp.proxy_protocol=true",
        "listeners.amqp_management.enabled=true",
        listeners=("amqp_management",),
    ).start()
    made.user("alice", "secret-1")
    yield made, request.param == "loopback"
    assert made.stop() == 0
    assert not made.errors()


def test_guest_is_let_in_from_this_machine_unless_that_is_turned_off(proxied_server):
    server, is_on = proxied_server
    assert is_let_in(server.ports["amqp"], source="127.0.0.1") == is_on
    assert is_let_in(server.ports["amqp"], source="127.0.0.1", **ALICE)


def test_guest_is_refused_from_another_machine(proxied_server):
    server, _is_on = proxied_server
    assert not is_let_in(server.ports["amqp"], source=ELSEWHERE)
    assert is_let_in(server.ports["amqp"], source=ELSEWHERE, **ALICE)


def test_the_management_api_lets_guest_in_where_amqp_does(proxied_server):
    server, is_on = proxied_server
    port = server.ports["amqp_management"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    login = base64.b64encode(b"guest:guest").decode()
    connection.request("GET", "/api/whoami", headers={"authorization": f"Basic {login}"})
    assert connection.getresponse().status == (200 if is_on else 401)
    connection.close()


@pytest.mark.skipif(own_address() is None, reason="this machine has only loopback addresses")
@pytest.mark.parametrize("bound", ["its own address", "every address"])
def test_guest_is_refused_by_a_listener_that_other_machines_reach(tmp_path, bound):
    """Also from this machine: what a port forwards comes from loopback, too."""
    own = str(own_address())
    host = own if bound == "its own address" else "0.0.0.0"
    server = Onelog(tmp_path, f"listeners.amqp.host={host}")
    server.start()
    server.user("alice", "secret-1")
    hosts = {own} if host == own else {own, "127.0.0.1"}
    for each in hosts:
        assert not is_let_in(server.ports["amqp"], host=each)
        assert is_let_in(server.ports["amqp"], host=each, **ALICE)
    assert server.stop() == 0
