"""The load of `object_latency`: one producer, and readers of cold rows.

Rules: a process of its own, at idle priority, because what is measured is the broker's time. Every
reader has a connection and a partition of its own and reads at a set pace, and so does the producer
write. It prints `ready` when everybody has had an answer, and its numbers at its end (SIGTERM).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from types import FrameType

from bench.object_broker import pool_of
from onelog.kafka_client import Access, Client
from onelog.kafka_client.messages import fetch_request
from onelog.kernel import scan_valid

FETCH_BYTES = 256 << 10
READ_BYTES_PER_S = 1 << 20
"""Of each reader."""
WRITE_BYTES_PER_S = 4 << 20


class Crowd:
    """Threads, each with a client of its own."""

    def __init__(self, port: int, begun: float) -> None:
        self._access = Access(servers=(("127.0.0.1", port),), timeout_s=60.0)
        self._begun = begun
        """Which part of a partition readers leave out."""
        self.stop = threading.Event()
        self.read_bytes = self.written_bytes = 0
        self._lock = threading.Lock()

    def _pace(self, begun: float, done: int, per_s: int) -> bool:
        """Wait until more is due. False: it is over."""
        return not self.stop.wait(max(0.0, begun + done / per_s - time.monotonic()))

    def read(self, topic: str, partition: int, end: int, ready: threading.Barrier) -> None:
        """Read a partition at the pace, from `begun` of it on, and again from its beginning."""
        offset, done = int(end * self._begun), 0
        with Client(self._access) as client:
            begun = time.monotonic()
            while self._pace(begun, done, READ_BYTES_PER_S):
                request = fetch_request(
                    {(topic, partition): offset},
                    bytes_max=FETCH_BYTES, part_bytes_max=FETCH_BYTES, wait_ms=500,
                )  # fmt: skip
                (got,) = client.fetch(request, 0.5)
                assert got.code == 0, got.code
                batches, stop, _why = scan_valid(got.records, 0, False, -1)
                offset = batches[-1].last_offset + 1 if batches else offset
                offset = offset if offset < end else 0
                done += stop
                with self._lock:
                    self.read_bytes += stop
                if done == stop:
                    ready.wait()

    def write(self, topic: str, ready: threading.Barrier) -> None:
        """Write at the pace."""
        pool = pool_of(1024)
        done = number = 0
        with Client(self._access) as client:
            begun = time.monotonic()
            while self._pace(begun, done, WRITE_BYTES_PER_S):
                data = pool[number % len(pool)]
                number += 1
                client.produce({(topic, 0): data})
                done += len(data)
                self.written_bytes = done
                if number == 1:
                    ready.wait()


def main(port: int, cold: str, ends: dict[str, int], hot: str, begun: float) -> None:
    """Run until it is told to end."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    crowd = Crowd(port, begun)

    def end(_number: int, _frame: FrameType | None) -> None:
        crowd.stop.set()

    signal.signal(signal.SIGTERM, end)
    ready = threading.Barrier(len(ends) + 2)
    threads = [
        threading.Thread(target=crowd.read, args=(cold, int(part), last, ready))
        for part, last in ends.items()
    ]
    threads.append(threading.Thread(target=crowd.write, args=(hot, ready)))
    for thread in threads:
        thread.start()
    ready.wait(60)
    print("ready", flush=True)
    for thread in threads:
        thread.join()
    print(json.dumps({"read_bytes": crowd.read_bytes, "written_bytes": crowd.written_bytes}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
