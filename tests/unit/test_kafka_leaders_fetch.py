"""Do fetches of several leaders go on while one of them is gone?

The clients are ours; their connections are pairs of sockets that the test answers at.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping

import pytest

from onelog.base.errors import OnelogError, StorageError, Unavailable
from onelog.kafka_client import Access, Fetched, Leaders, client, codes
from onelog.kafka_client.access import Address
from onelog.kafka_client.messages import Metadata, Part, Topic

A, B = ("a", 1), ("b", 2)
TWO: dict[Part, int] = {("t", 0): 0, ("t", 1): 0}
LATE_S = 30.0


class Net:
    """Which nodes answer, and what."""

    def __init__(self) -> None:
        self.nodes: dict[int, Address] = {1: A, 2: B}
        self.leads = {0: 1, 1: 2}
        self.down: set[Address] = set()
        self.fails: dict[Address, OnelogError] = {}
        self.asked: list[tuple[Address, bytes]] = []

    def open_link(self, access: Access) -> FakeLink:
        for address in access.servers:
            if address not in self.down:
                return FakeLink(self, address)
        raise Unavailable(f"nothing answers at {access}")


class FakeLink:
    """A connection; each fetch is answered at once."""

    def __init__(self, net: Net, address: Address) -> None:
        self._net, self._address = net, address
        self._here, self._there = socket.socketpair()
        self._waiting: list[bytes] = []
        self.broken = False

    def fileno(self) -> int:
        return self._here.fileno()

    def has_more(self) -> bool:
        return False

    def _check(self) -> None:
        if self._address in self._net.down:
            self.broken = True
            raise Unavailable(f"the connection to {self._address[0]} broke")

    def send(self, _api: int, body: bytes) -> None:
        self._check()
        self._net.asked.append((self._address, body))
        self._waiting.append(body)
        self._there.send(b".")

    def answer(self, _wait_s: float) -> bytes:
        self._check()
        self._here.recv(1)
        body = self._waiting.pop(0)
        if self._address in self._net.fails:
            raise self._net.fails[self._address]
        return body

    def ask(self, *_request: object, **_options: object) -> Net:
        self._check()
        return self._net

    def close(self) -> None:
        self._here.close()
        self._there.close()


def asks(rows: Mapping[Part, int]) -> bytes:
    return b" ".join(b"%d" % number for _topic, number in rows)


def read_fetch(body: bytes) -> list[Fetched]:
    return [
        Fetched("t", int(number), 0, 0, 0, [], memoryview(b"record")) for number in body.split()
    ]


def read_metadata(net: Net) -> Metadata:
    return Metadata(dict(net.nodes), [Topic("t", 0, dict(net.leads), False)])


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    made = Net()
    monkeypatch.setattr(client, "open_link", made.open_link)
    monkeypatch.setattr(client.messages, "read_fetch", read_fetch)
    monkeypatch.setattr(client.messages, "read_metadata", read_metadata)
    return made


def opened(answer_s: float) -> Leaders:
    made = Leaders(Access(servers=(A, B), timeout_s=0.0, answer_s=answer_s))
    made.topics(["t"])
    return made


@pytest.fixture
def reading(net: Net) -> Iterator[Leaders]:
    with contextlib.closing(opened(LATE_S)) as made:
        yield made


def fetch_until(reading: Leaders, wanted: set[int], positions: dict[Part, int]) -> None:
    """Fetch until each of these partitions has shown a record anew."""
    left, ends = set(wanted), time.monotonic() + LATE_S
    while left:
        assert time.monotonic() < ends, f"{left} never came"
        left -= {row.partition for row in reading.fetch(positions, asks, 0.1)}


def fetch_for(reading: Leaders, seconds: float) -> set[int]:
    ends, found = time.monotonic() + seconds, set()
    while time.monotonic() < ends:
        found |= {row.partition for row in reading.fetch(TWO, asks, 0.1)}
    return found


def test_a_leader_that_died_does_not_keep_the_next_one_from_being_read(
    net: Net, reading: Leaders
) -> None:
    only = {("t", 0): 0}
    fetch_until(reading, {0}, only)
    net.down, net.leads = {A}, {0: 2, 1: 2}
    fetch_until(reading, {0}, only)
    assert net.asked[-1] == (B, b"0")


def test_a_partition_without_a_leader_stops_no_other(net: Net) -> None:
    net.leads = {0: -1, 1: 2}
    with contextlib.closing(opened(answer_s=0.2)) as reading:
        assert fetch_for(reading, 0.6) == {1}  # longer than everything may fail
        net.leads = {0: 1, 1: 2}
        fetch_until(reading, {0, 1}, TWO)


def test_a_leader_that_refuses_loses_no_answer_of_another(net: Net, reading: Leaders) -> None:
    net.fails = {B: codes.Moved("another broker leads it")}
    assert fetch_for(reading, 0.5) == {0}
    net.fails = {A: codes.Moved("another broker leads it")}
    assert fetch_for(reading, 0.5) == {1}


def test_it_is_an_error_after_a_while_that_nothing_can_be_read(net: Net) -> None:
    net.leads = {0: -1, 1: -1}
    with (
        contextlib.closing(opened(answer_s=0.2)) as reading,
        pytest.raises(Unavailable, match="no node leads t-0"),
    ):
        fetch_for(reading, LATE_S)


def test_what_no_look_mends_is_told_at_once(net: Net, reading: Leaders) -> None:
    net.fails = {B: StorageError("damaged")}
    with pytest.raises(StorageError, match="damaged"):
        fetch_for(reading, LATE_S)


def test_looks_for_leaders_keep_a_pause(
    net: Net, reading: Leaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(reading, "_look_again", lambda _topic: looks.append(time.monotonic()))
    net.leads = {0: -1, 1: 2}
    reading.topics(["t"])
    fetch_for(reading, 0.5)
    assert 0 < len(looks) <= 11


@pytest.mark.usefixtures("net")
def test_a_client_knows_without_waiting_whether_an_answer_has_come(reading: Leaders) -> None:
    asked = reading.client(("t", 0))
    assert not asked.has_come()
    asked.post({("t", 0): b"batch"})
    assert asked.has_come()
