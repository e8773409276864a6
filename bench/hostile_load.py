"""Hostile connections: `python -m bench.hostile_load COUNT COMING AGAIN NAME=PORT …`.

Four kinds, the same number of each on every listener: *half-open* connects and says nothing;
*slow-loris* sends a good request byte by byte; *garbage* sends random bytes; *oversize* announces
more than any limit allows and sends the beginning of it. They come at a rate of COMING a second. A
connection that the broker ends is opened again, from then on at most AGAIN of all in a second. A
line of standard output says that they begin, another one that all have come; they go on until
SIGTERM, and then a last line has the numbers as JSON.
"""

from __future__ import annotations

import collections
import errno
import heapq
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator

LORIS_S = 2.0
"""Between two bytes."""
IP_BIND_ADDRESS_NO_PORT = 24
ADDRESSES = 16
"""Addresses of loopback that they come from."""

_HTTP = b"POST /%s HTTP/1.1\r\nHost: localhost\r\n"
_CONNECT = b"\x00\x04MQTT\x04\x02\x00\x00\x00\x20" + b"c" * 32
_START_OK = b"\x01\x00\x00\x00\x00\x01\x00\x00\x0a\x00\x0b"
SLOW = {
    # name of a listener: a request that begins well
    "mqtt": b"\x10\x2c" + _CONNECT,
    "mqtt_tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 500,
    "mqtt_ws": _HTTP % b"mqtt" + b"X-Slow: " + b"x" * 500,
    "kafka": struct.pack(">ihhi", 500, 18, 0, 1) + b"k" * 500,
    "amqp": b"AMQP\x00\x00\x09\x01" + _START_OK + b"a" * 200,
    "admin": _HTTP % b"api/v1/login" + b"X-Slow: " + b"x" * 500,
}
LARGE = {
    # name of a listener: the beginning of a request beyond every limit
    "mqtt": b"\x10\xff\xff\xff\x7f" + _CONNECT + bytes(32_768),
    "mqtt_tls": b"\x16\x03\x01\xff\xff" + bytes(32_768),
    "mqtt_ws": _HTTP % b"mqtt" + b"X-Large: " + b"x" * 262_144,
    "kafka": struct.pack(">i", 2**30) + bytes(32_768),
    "amqp": b"AMQP\x00\x00\x09\x01" + b"\x01\x00\x00\x7f\xff\xff\xff" + bytes(32_768),
    "admin": _HTTP % b"api/v1/login" + b"Content-Length: 9999999999\r\n\r\n" + bytes(262_144),
}
KINDS = ("half-open", "slow-loris", "garbage", "oversize")


class Peer:
    """A place among the hostile connections, opened again whenever it is closed."""

    __slots__ = ("kind", "left", "name", "port", "sock")

    def __init__(self, kind: str, name: str, port: int) -> None:
        self.kind = kind
        self.name = name
        self.port = port
        self.sock: socket.socket | None = None
        self.left = b""

    def open(self, number: int) -> socket.socket:
        """Connect without waiting."""
        sock = self.sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        sock.bind((f"127.0.0.{2 + number % ADDRESSES}", 0))
        reached = sock.connect_ex(("127.0.0.1", self.port))
        if reached not in (0, errno.EINPROGRESS):
            raise OSError(reached, os.strerror(reached))
        slow = {"half-open": b"", "slow-loris": SLOW[self.name], "oversize": LARGE[self.name]}
        self.left = random.randbytes(512) if self.kind == "garbage" else slow[self.kind]
        return sock


class Crowd:
    """All of them."""

    def __init__(self, count: int, coming: float, again: float, ports: dict[str, int]) -> None:
        places = list(self._places(count, ports))
        random.shuffle(places)
        self._waiting = collections.deque(places)
        self._count = count
        self._per_second = coming
        self._again = again
        self._poll = select.epoll()
        self._open: dict[int, Peer] = {}
        self._slow: list[tuple[float, int, Peer]] = []
        self.opened = 0
        self.ended: collections.Counter[str] = collections.Counter()

    @staticmethod
    def _places(count: int, ports: dict[str, int]) -> Iterator[Peer]:
        names = sorted(ports)
        for number in range(count):
            name = names[number // len(KINDS) % len(names)]
            yield Peer(KINDS[number % len(KINDS)], name, ports[name])

    def run(self) -> None:
        """Go on for ever."""
        before, due, stands = time.monotonic(), 0.0, False
        while True:
            now = time.monotonic()
            # What was not due before is not made up for by a burst.
            due = min(due + (now - before) * self._per_second, self._per_second / 10)
            before = now
            while self._waiting and due >= 1:
                due -= 1
                self._open_one(self._waiting.popleft())
            if self.opened >= self._count and not stands:
                stands = True
                self._per_second = self._again
                print(f"{self._count} connections", flush=True)
            while self._slow and self._slow[0][0] <= now:
                self._drip(heapq.heappop(self._slow)[2], now)
            for number, events in self._poll.poll(0.002, 256):
                self._take(number, events)

    def _open_one(self, peer: Peer) -> None:
        self.opened += 1
        sock = peer.open(self.opened)
        self._open[sock.fileno()] = peer
        self._poll.register(sock, select.EPOLLIN | select.EPOLLOUT)

    def _take(self, number: int, events: int) -> None:
        peer = self._open.get(number)
        if peer is None or peer.sock is None:
            return
        if events & (select.EPOLLERR | select.EPOLLHUP):
            self._end(peer)
            return
        if events & select.EPOLLIN:
            try:
                if not peer.sock.recv(65_536):
                    self._end(peer)
                    return
            except BlockingIOError:
                pass
            except OSError:
                self._end(peer)
                return
        if events & select.EPOLLOUT:
            self._write(peer)

    def _write(self, peer: Peer) -> None:
        assert peer.sock is not None
        if peer.kind == "slow-loris":
            heapq.heappush(self._slow, (time.monotonic() + LORIS_S, id(peer), peer))
        elif peer.left:
            try:
                peer.left = peer.left[peer.sock.send(peer.left) :]
            except BlockingIOError:
                return
            except OSError:
                self._end(peer)
                return
            if peer.left:
                return
        self._poll.modify(peer.sock, select.EPOLLIN)

    def _drip(self, peer: Peer, now: float) -> None:
        if peer.sock is None or not peer.left:
            return
        try:
            peer.left = peer.left[peer.sock.send(peer.left[:1]) :]
        except OSError:
            return  # its end is reported by the poll
        heapq.heappush(self._slow, (now + LORIS_S, id(peer), peer))

    def _end(self, peer: Peer) -> None:
        assert peer.sock is not None
        self._poll.unregister(peer.sock)
        del self._open[peer.sock.fileno()]
        peer.sock.close()
        peer.sock = None
        self.ended[peer.kind] += 1
        self._waiting.append(peer)


def main(count: str, coming: str, again: str, *ports: str) -> None:
    """Open them, and keep them open."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # What is measured is the broker's time, not ours: a process of a low priority still has the
    # processor for a slice of 3 ms while the broker waits for it.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    places = {name: int(port) for name, port in (row.split("=") for row in ports)}
    crowd = Crowd(int(count), float(coming), float(again), places)

    def stop(*_args: object) -> None:
        print(json.dumps({"opened": crowd.opened, "ended": crowd.ended}), flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    print("begins", flush=True)
    crowd.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
