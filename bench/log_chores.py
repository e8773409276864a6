"""What messages feel of a compaction: latency at 1,000 messages a second, without and with one.

Rules: a process of its own sends over a socket and takes the time, so that it sees what a client
sees: the loop that cannot run because a thread holds the interpreter. It waits for each answer
before it sends again, and makes up for no time that was lost: one pause of a busy machine is then
one slow message. The speed of the compaction is shown beside: who sleeps more disturbs less.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

from bench.report import Row, child_environment, data_dir, median, row, run_loop, say
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.base.ids import Offset
from onelog.broker import LOCAL, Broker, BrokerSettings, Durability, Message, Notice, StreamConfig
from onelog.kernel import scan_batches
from onelog.log.config import Cleanup
from onelog.record.batch import build_batch

RATE = 1000
QUIET_S = 5.0
ROUNDS = 3
STREAM_BYTES = 100 * 1024 * 1024
KEYS = 50_000
RECORDS_PER_BATCH = 100
VALUE = bytes(range(256))
RATIO_MAX = 1.2


# -- the process that sends


def send(file_descriptor: int) -> None:
    """Send until the other side closes, then print each message's latency in microseconds."""
    found: list[int] = []
    with socket.socket(fileno=file_descriptor) as peer:
        due = time.perf_counter()
        try:
            while True:
                due = max(due + 1 / RATE, time.perf_counter())
                time.sleep(max(0.0, due - time.perf_counter()))
                sent = time.perf_counter()
                peer.sendall(b"x")
                if not peer.recv(1):
                    break
                found.append(int((time.perf_counter() - sent) * 1e6))
        except ConnectionError:
            pass
    print(*found)


class _Answering(asyncio.Protocol):
    """Publishes a message for each byte, and answers when it is durable."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._publisher = broker.publisher
        self._messages = [Message(topic, VALUE)]
        self._transport: asyncio.WriteTransport
        self.begun = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        del data
        self.begun.set()
        self._publisher.publish(self._messages, Notice(self._done), principal=LOCAL)

    def _done(self, error: BaseException | None) -> None:
        assert error is None, error
        if not self._transport.is_closing():
            self._transport.write(b"x")


class Sender:
    """A process that sends, from `start` to `stop`."""

    def __init__(self, process: subprocess.Popen[bytes], transport: asyncio.Transport) -> None:
        self._process = process
        self._transport = transport

    @classmethod
    async def start(cls, broker: Broker, topic: str) -> Sender:
        """Begin to send to a topic."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = _spawn(theirs.fileno())
        answering = _Answering(broker, topic)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: answering, sock=ours)
        await answering.begun.wait()
        return cls(process, transport)

    async def stop(self) -> list[int]:
        """The latencies in microseconds, in order of size."""
        self._transport.abort()
        out, _ = await asyncio.to_thread(self._process.communicate)
        return sorted(map(int, out.split()))


def _spawn(file_descriptor: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.log_chores", str(file_descriptor)],
        env=child_environment(),
        pass_fds=[file_descriptor],
        stdout=subprocess.PIPE,
    )


# -- the broker


async def _fill(broker: Broker, name: str) -> None:
    """A stream of `STREAM_BYTES` in which most records are older ones of their key."""
    stream = broker.streams.get(name)
    log = stream.partition(0)
    number = size = 0
    while size < STREAM_BYTES:
        rows = [
            (None, b"key-%d" % (at * 7919 % KEYS), VALUE, (), 1_700_000_000_000)
            for at in range(number, number + RECORDS_PER_BATCH)
        ]
        data = bytearray(build_batch(rows))
        broker.publisher.publish_batch(
            stream, log, data, scan_batches(data, 0, False)[0], principal=LOCAL
        )
        await log.wait_visible(Offset(log.end_offset - 1))
        number += RECORDS_PER_BATCH
        size += len(data)


async def _round(
    broker: Broker, level: Durability, name: str
) -> tuple[list[int], list[int], float]:
    """Latencies without and with a compaction, and how long that took."""
    await broker.streams.create(
        StreamConfig(
            name=name,
            captures=(name,),
            cleanup=Cleanup.COMPACT,
            segment_bytes=16 * 1024 * 1024,
            durability=Durability.OS,
        )
    )
    await _fill(broker, name)
    for partition in broker.streams.get(name).local:
        await partition.flush()
    topic = f"bench/{level}/t"
    sender = await Sender.start(broker, topic)
    await asyncio.sleep(QUIET_S)
    quiet = await sender.stop()
    sender = await Sender.start(broker, topic)
    before, start = broker.maintenance.counters.compactions, time.perf_counter()
    await broker.maintenance.compact_once()
    took_s = time.perf_counter() - start
    busy = await sender.stop()
    assert broker.maintenance.counters.compactions == before + 1
    await broker.streams.delete(name)
    return quiet, busy, took_s


async def _measure(directory: Path) -> list[Row]:
    settings = BrokerSettings(maintenance_interval_s=3600.0, helper_bytes_min=1)
    broker = await open_broker(directory, settings, SystemClock())
    rows: list[Row] = []
    try:
        for level in (Durability.OS, Durability.FSYNC):
            captures = (f"bench/{level}/#",)
            await broker.streams.create(
                StreamConfig(name=level.value, captures=captures, durability=level)
            )
            rounds = []
            for number in range(ROUNDS):
                say(f"publishes at {RATE}/s, durability {level}, round {number + 1}")
                rounds.append(await _round(broker, level, f"compacted-{level}-{number}"))
            rows += _rows(level, rounds)
    finally:
        await broker.close()
    return rows


def _rows(level: Durability, rounds: list[tuple[list[int], list[int], float]]) -> list[Row]:
    rows: list[Row] = []
    for name, share, bar in (("p50", 0.5, RATIO_MAX), ("p99", 0.99, None)):
        quiet = median([_at(one[0], share) for one in rounds])
        busy = median([_at(one[1], share) for one in rounds])
        ratio = median([_at(one[1], share) / _at(one[0], share) for one in rounds])
        peer = ("without", quiet)
        rows.append(row(f"{level}: {name} while compacting", busy, "us", peer=peer))
        rows.append(row(f"{level}: {name} with / without", ratio, "x", bar, low=True))
    megabytes = STREAM_BYTES / 1024 / 1024
    speed = median([megabytes / one[2] for one in rounds])
    return [*rows, row(f"{level}: compaction", speed, "MB/s")]


def _at(sorted_us: list[int], share: float) -> float:
    return float(sorted_us[int(len(sorted_us) * share)])


def run() -> list[Row]:
    """Measure both levels that wait for a disk or do not."""
    with data_dir("chores") as directory:
        return run_loop(_measure(directory))


if __name__ == "__main__":
    send(int(sys.argv[1]))
