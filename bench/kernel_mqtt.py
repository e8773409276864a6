"""The bars of MQTT's hot path in the kernel: packets to records, records to packets, idle memory.

`run()` returns rows; running the file prints them. No socket and no disk: what is left for those.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

from bench.kernel import VALUE, row, seconds, show
from onelog import kernel
from onelog.kernel import pure

READ_BYTES = 65_536
TOPIC = b"sensors/d1/telemetry"
NOW_MS = 1_700_000_000_000
RECORDS = 200
FEEDS = 20


def packets(topics: list[bytes], qos: int) -> tuple[bytes, int]:
    """One read full of PUBLISH packets, the topics in turn, and how many they are."""
    out: list[bytes] = []
    size = 0
    while size < READ_BYTES:
        number = len(out)
        packet_id = number % 65_535 + 1 if qos else 0
        topic = topics[number % len(topics)]
        out.append(kernel.encode_publish(4, topic, VALUE, qos << 1, packet_id))
        size += len(out[-1])
    return b"".join(out), len(out)


def connection(module: Any, topics: list[bytes]) -> tuple[Any, Any]:
    """A connection with routes, and its stage."""
    stage = module.Stage(None, module.BatchBuilder(True), [])
    routes = {topic: module.MqttRoute(topic, stage, 1 << 20) for topic in topics}
    way_in = module.MqttInput(module.MqttOutput(None, 4, 1), routes, lambda _topic: None, 1 << 20)
    way_in.version = 4
    return way_in, stage


def feed_ns(module: Any, topics: list[bytes], qos: int, *, seal: bool = False) -> float:
    """Nanoseconds per message; without `seal` that time is taken off."""
    data, count = packets(topics, qos)
    way_in, stage = connection(module, topics)
    builder = stage.builder

    def work() -> None:
        for _ in range(FEEDS):
            assert way_in.feed(data, NOW_MS) is None
            builder.seal(0)
            way_in.take_acks()

    def fed() -> float:
        return seconds(lambda: way_in.feed(data, NOW_MS), 1)

    if seal:
        return seconds(work, 20) / FEEDS / count * 1e9
    best = float("inf")
    for _ in range(100):
        best = min(best, fed())
        builder.seal(0)
        way_in.take_acks()
    return best / count * 1e9


def batch(module: Any, topics: list[bytes], qos: int) -> bytes:
    """A batch of records as they are staged."""
    builder = module.BatchBuilder(True)
    headers = ((b"~q", b"1"),) if qos else ()
    for number in range(RECORDS):
        topic = topics[number % len(topics)]
        builder.add(topic, topic, VALUE, headers, NOW_MS)
    return bytes(builder.seal(0))


def fanout_ns(module: Any, topics: list[bytes], qos: int, subscribers: int) -> float:
    """Nanoseconds per message and subscriber, with taking the bytes and the acknowledgements."""
    data = batch(module, topics, qos)
    fanout = module.MqttFanout(lambda _headers, _now_ms: b"")
    outputs = [module.MqttOutput(None, 4, 1000) for _ in range(subscribers)]
    for output in outputs:
        fanout.subscribe(b"sensors/#", output, qos)
        output.live = True
    pubacks = [module.MqttInput(output, {}, lambda _topic: None, 1 << 20) for output in outputs]
    for way_in in pubacks:
        way_in.version = 4
    answer = b"".join(b"\x40\x02" + n.to_bytes(2, "big") for n in range(1, RECORDS + 1))

    def work() -> None:
        for _ in range(FEEDS):
            _, touched, _ = fanout.deliver(data, 0, 0, NOW_MS)
            for output in touched:
                output.take()
            if qos:
                # All PUBACKs in one read, as a fast subscriber sends them; ids begin at 1 again.
                for way_in, output in zip(pubacks, outputs, strict=True):
                    way_in.feed(answer, NOW_MS)
                    output.restore([], 1)

    work()
    assert all(output.live and output.pending == 0 for output in outputs)
    return seconds(work, 20) / FEEDS / RECORDS / subscribers * 1e9


def acks_ns(module: Any) -> float:
    acks = b"".join(n.to_bytes(2, "big") + b"\0\0" for n in range(1, 1001))
    return seconds(lambda: [module.encode_acks(acks) for _ in range(100)]) / 100_000 * 1e9


def idle_bytes() -> float:
    """Memory of a connection that has sent, received and gone quiet."""
    data = kernel.encode_publish(4, TOPIC, VALUE, 2, 1)
    stage = kernel.Stage(None, kernel.BatchBuilder(True), [])
    routes = {TOPIC: kernel.MqttRoute(TOPIC, stage, 1 << 20)}
    rows: list[Any] = [None] * 10_000

    def resolve(_topic: bytes) -> None:
        return None

    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(len(rows)):
        output = kernel.MqttOutput(None, 4, 1000)
        way_in = kernel.MqttInput(output, routes, resolve, 1 << 20)
        way_in.version = 4
        way_in.feed(data[:100], NOW_MS)
        way_in.feed(data[100:], NOW_MS)
        way_in.take_acks()
        rows[number] = way_in
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown / len(rows)


def run() -> list[dict[str, Any]]:
    """Every row of the table."""
    one, many = [TOPIC], [b"sensors/d%d/telemetry" % n for n in range(100)]
    feed_0 = feed_ns(kernel, one, 0)
    sealed_0 = feed_ns(kernel, one, 0, seal=True)
    sealed_1 = feed_ns(kernel, one, 1, seal=True)
    out_0, out_1 = fanout_ns(kernel, one, 0, 1), fanout_ns(kernel, one, 1, 1)
    slow = ("interpreted", feed_ns(pure, one, 0))
    slow_out = ("interpreted", fanout_ns(pure, one, 0, 1))
    return [
        row("feed, QoS 0", feed_0, "ns/msg", 83, low=True, peer=slow),
        row("feed, QoS 1", feed_ns(kernel, one, 1), "ns/msg"),
        row("feed, QoS 0, 100 topics in turn", feed_ns(kernel, many, 0), "ns/msg"),
        row("feed and seal, QoS 0", sealed_0, "ns/msg"),
        row("feed and seal, QoS 1", sealed_1, "ns/msg"),
        row("fan-out to 1, QoS 0", out_0, "ns/msg", peer=slow_out),
        row("fan-out to 1, QoS 0, 100 topics in turn", fanout_ns(kernel, many, 0, 1), "ns/msg"),
        row("fan-out to 1, QoS 1, with PUBACKs", out_1, "ns/msg"),
        row("fan-out to 100, QoS 0, each", fanout_ns(kernel, one, 0, 100), "ns/msg"),
        row("fan-out to 100, QoS 1, each", fanout_ns(kernel, one, 1, 100), "ns/msg"),
        row("encode PUBACKs", acks_ns(kernel), "ns/msg"),
        row("in, sealed and out, QoS 0", sealed_0 + out_0, "ns/msg", 100, low=True),
        row("in, sealed and out, QoS 1", sealed_1 + out_1 + acks_ns(kernel), "ns/msg", 130,
            low=True),
        row("idle connection, Python's memory", idle_bytes(), "B"),
    ]  # fmt: skip


if __name__ == "__main__":
    show(run())
