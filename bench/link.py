"""What a frame of an inner link costs: CPU per side, alone and at 16 in flight, TCP and Unix.

`python -m bench.link` starts a second process that sends every frame back. Rules: a frame is an
acknowledgement of one feed, or a piece of 64 KiB. Beside it, in the same run, the same bytes go to
and fro without any link. CPU is the process's own, user and system, between two moments of the run.
Each figure is the median of the rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from onelog.base.clock import SystemClock
from onelog.cluster.forward_frames import LinkFrame
from onelog.cluster.frames import AckFeed, FeedBatches, FeedLane
from onelog.cluster.link.address import LinkAddress, parse_address
from onelog.cluster.link.hello import Sender
from onelog.cluster.link.links import LinkIdentity, Links
from onelog.cluster.link.listening import BoundInner
from onelog.cluster.link.security import LinkSecurity
from onelog.observe import Troubles, configure_logging

ROUNDS = 5
ROUND_S = 1.0
PIECE = bytes(64 * 1024)


class _User:
    """What both sides do with what they hear."""

    def __init__(self) -> None:
        self.links: Links
        self.lanes: set[FeedLane] = set()
        self.standing = asyncio.Event()
        self.frames = 0

    def linked(self, sender: Sender, lane: FeedLane) -> None:
        del sender
        self.lanes.add(lane)
        if len(self.lanes) == len(FeedLane):
            self.standing.set()

    def unlinked(self, sender: Sender, lane: FeedLane) -> None:
        del sender, lane

    def received(self, sender: Sender, lane: FeedLane, frame: LinkFrame) -> None:
        self.frames += 1
        self.links.send(sender.node, lane, frame)

    def has_room(self, node: int, lane: FeedLane) -> None:
        del node, lane

    def suspects(self, node: int, why: str | None) -> None:
        del node, why


class _Bare(asyncio.Protocol):
    """Sends back what comes, or counts it and sends it again."""

    def __init__(self, asks: bool) -> None:
        self.transport: Any = None
        self.is_over = not asks
        self.asks = asks
        self.reads = 0
        self.quiet = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        if self.asks and self.is_over:
            self.quiet.set()
            return
        self.transport.write(data)


async def measure_bare(at: LinkAddress) -> tuple[float, float]:
    """Bytes of one acknowledgement to and fro: per second, and CPU in µs here."""
    loop = asyncio.get_running_loop()
    data = b"x" * 34
    if at.path:
        _, made = await loop.create_unix_connection(lambda: _Bare(asks=True), at.path)
    else:
        _, made = await loop.create_connection(lambda: _Bare(asks=True), at.host, at.port)
    found = []
    for _ in range(ROUNDS):
        made.is_over, reads = False, made.reads
        made.quiet.clear()
        here, begun = time.process_time(), time.perf_counter()
        made.transport.write(data)
        await asyncio.sleep(ROUND_S)
        made.is_over = True
        await asyncio.wait_for(made.quiet.wait(), 5)
        count = made.reads - reads
        took = time.perf_counter() - begun
        found.append((count / took, (time.process_time() - here) / count * 1e6))
    made.transport.abort()
    rate, cpu = map(statistics.median, zip(*found, strict=True))
    return rate, cpu


class _Asker(_User):
    """Sends a frame for each that came back, until the time is over."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = True
        self.under_way = 0
        self.quiet = asyncio.Event()

    def received(self, sender: Sender, lane: FeedLane, frame: LinkFrame) -> None:
        self.frames += 1
        if self.is_over:
            self.under_way -= 1
            if not self.under_way:
                self.quiet.set()
            return
        self.links.send(sender.node, lane, frame)


async def echo(at: str) -> None:
    """The second process: node 2."""
    user = _User()
    where = LinkAddress(path=at) if "/" in at else LinkAddress(host="127.0.0.1")
    async with _node(2, user, where) as bound:
        user.links.know(1, LinkAddress(host="127.0.0.1", port=1))

        async def cpu(_node: int, _raw: msgspec.Raw) -> float:
            return time.process_time()

        user.links.handlers["cpu"] = cpu
        loop = asyncio.get_running_loop()
        bare = LinkAddress(path=f"{where.path}.bare")
        if where.path:
            server = await loop.create_unix_server(lambda: _Bare(asks=False), bare.path)
        else:
            server = await loop.create_server(lambda: _Bare(asks=False), where.host, 0)
            bare = LinkAddress(host=where.host, port=server.sockets[0].getsockname()[1])
        sys.stdout.write(f"{bound.address} {bare}\n")
        sys.stdout.flush()
        await loop.run_in_executor(None, sys.stdin.read)
        server.close()


@contextlib.asynccontextmanager
async def _node(number: int, user: _User, at: LinkAddress) -> AsyncIterator[BoundInner]:
    clock = SystemClock()
    troubles = Troubles(clock)
    who = LinkIdentity(cluster_id="bench", node=number, epoch=1, data_uuid="")
    user.links = Links(who, user, LinkSecurity(), troubles, clock)
    bound = BoundInner(at, LinkSecurity(), clock)
    await bound.serve(user.links, troubles)
    try:
        yield bound
    finally:
        await bound.close()
        await user.links.close()


async def measure(at: LinkAddress) -> list[tuple[str, int, float, float, float, float]]:
    """Name, frames in flight, frames per second, CPU in µs per frame here and there, and a round
    trip in µs."""
    user, rows = _Asker(), []
    async with _node(1, user, LinkAddress(host="127.0.0.1")):
        user.links.know(2, at)
        await asyncio.wait_for(user.standing.wait(), 10)
        ack: LinkFrame = AckFeed(1, 1, 1, 1)
        piece: LinkFrame = FeedBatches(1, 1, 1, 1, 0, 0, PIECE)
        for name, frame, flight in (("ack", ack, 1), ("ack", ack, 16), ("64 KiB", piece, 4)):
            found = [await one_round(user, frame, flight) for _ in range(ROUNDS)]
            medians = map(statistics.median, zip(*found, strict=True))
            rows.append((name, flight, *medians))
    return rows


async def one_round(
    user: _Asker, frame: LinkFrame, flight: int
) -> tuple[float, float, float, float]:
    """Frames per second, CPU per frame on both sides, time per frame in flight."""
    there = await user.links.call(2, "cpu", None, float, 5.0)
    here, begun, frames = time.process_time(), time.perf_counter(), user.frames
    user.is_over, user.under_way = False, flight
    user.quiet.clear()
    for _ in range(flight):
        user.links.send(2, FeedLane.LIVE, frame)
    await asyncio.sleep(ROUND_S)
    user.is_over = True
    await asyncio.wait_for(user.quiet.wait(), 10)
    took, count = time.perf_counter() - begun, user.frames - frames
    here = time.process_time() - here
    there = await user.links.call(2, "cpu", None, float, 5.0) - there
    return count / took, here / count * 1e6, there / count * 1e6, took / count * flight * 1e6


def main() -> None:
    """Both kinds of sockets, one after the other."""
    configure_logging("error", "console")
    if len(sys.argv) > 1:
        uvloop.run(echo(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for kind, at in (("tcp", "loopback"), ("unix", str(Path(folder) / "n.sock"))):
            child = subprocess.Popen(
                [sys.executable, "-m", "bench.link", at],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert child.stdout is not None
            address, bare = map(parse_address, child.stdout.readline().split())
            rate, cpu = uvloop.run(measure_bare(bare))
            sys.stdout.write(
                f"{kind:5} bare      1 in flight: {rate:9.0f} writes/s, CPU {cpu:5.1f} µs each\n"
            )
            for name, flight, rate, here, there, trip in uvloop.run(measure(address)):
                sys.stdout.write(
                    f"{kind:5} {name:7} {flight:3} in flight: {rate:9.0f} frames/s,"
                    f" CPU {here:5.1f} and {there:5.1f} µs per frame, round trip {trip:6.1f} µs\n"
                )
            child.communicate("")


if __name__ == "__main__":
    main()
