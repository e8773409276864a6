"""One case of `bench/lone.py` on the tree that is on the path: prints µs of CPU and µs of waiting.

Usage: `lone_child.py FOLDER DURABILITY PARTITIONS PAIRS ROUNDS`. In a round each publisher sends
one message of QoS 1. The round ends when all publishers and subscribers have theirs. It knows
nothing of this tree but what older commits have as well.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.lockstep_child import PAYLOAD, Wire, a_peer, pubacks

BLOCK_ROUNDS = 50
PAUSE_S = 0.0005
"""Between two rounds: as if messages came now and then."""


class Heard(Wire):
    """A wire that tells when something was written."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self._told = told

    def write(self, data: bytes) -> None:
        if not self.written:
            self._told()
        super().write(data)

    def writelines(self, pieces: list[bytes]) -> None:
        if not self.written:
            self._told()
        super().writelines(pieces)


class Round:
    """Waits until every wire was written to."""

    def __init__(self) -> None:
        self._missing = 0
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, wires: int) -> asyncio.Future[None]:
        self._missing = wires
        self._over = asyncio.get_running_loop().create_future()
        return self._over

    def told(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._over.set_result(None)


async def measure(
    folder: Path, durability: str, partitions: int, pairs: int, rounds: int
) -> tuple[float, float]:
    """µs of CPU per message in the cheapest block, and the median µs of a round there."""
    from onelog.broker import BrokerSettings, StreamConfig  # noqa: PLC0415
    from onelog.log.partition import Durability  # noqa: PLC0415
    from onelog.protocols.mqtt import connection as connections  # noqa: PLC0415

    support: Any = importlib.import_module("tests.support.mqtt")
    main = StreamConfig(
        name="main", captures=("#",), partitions=partitions, durability=Durability(durability)
    )
    async with support.serving(folder, settings=BrokerSettings(main=main)) as node:
        hello = support.encode_packet(support.Connect(version=4, client_id="first"), 4)
        peer = await a_peer(connections.Connection, node.port, hello)
        waiting = Round()

        def joined(name: str) -> tuple[Any, Heard]:
            wire = Heard(waiting.told)
            connection = connections.Connection(node.hub, peer)
            connection.connection_made(wire)
            joining = support.Connect(version=4, client_id=name)
            connection.data_received(support.encode_packet(joining, 4))
            return connection.data_received, wire

        over = waiting.begin(2 * pairs)
        publishers = [joined(f"p{number}") for number in range(pairs)]
        consumers = [joined(f"s{number}") for number in range(pairs)]
        await over
        for number, (feed, _wire) in enumerate(consumers):
            wanted = support.Subscribe(1, (support.Subscription(f"b/{number}", 1),))
            feed(support.encode_packet(wanted, 4))
        await asyncio.sleep(0.2)

        async def one_round(packet_id: int) -> float:
            for _feed, wire in (*publishers, *consumers):
                wire.written.clear()
            over = waiting.begin(2 * pairs)
            begun = time.perf_counter()
            for number, (feed, _wire) in enumerate(publishers):
                sent = support.Publish(
                    topic=f"b/{number}", payload=PAYLOAD, qos=1, packet_id=packet_id
                )
                feed(support.encode_packet(sent, 4))
            await over
            took_s = time.perf_counter() - begun
            for feed, wire in consumers:
                feed(pubacks(wire))
            await asyncio.sleep(PAUSE_S)
            return took_s

        gc.collect()
        gc.freeze()
        blocks = []
        for block in range(rounds // BLOCK_ROUNDS):
            cpu = time.process_time()
            took = [await one_round(1 + block * BLOCK_ROUNDS + at) for at in range(BLOCK_ROUNDS)]
            cpu = time.process_time() - cpu
            blocks.append((cpu / (BLOCK_ROUNDS * pairs), statistics.median(took)))
        return min(cpu for cpu, _ in blocks) * 1e6, min(wall for _, wall in blocks) * 1e6


async def main(folder: str, durability: str, *numbers: str) -> None:
    cpu_us, wall_us = await measure(Path(folder), durability, *map(int, numbers))
    print(f"{cpu_us:.2f} {wall_us:.2f}", flush=True)
    os._exit(0)  # connections without sockets do not part in peace


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
