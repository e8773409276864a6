"""The bars of Kafka's hot path in the kernel: requests read, batches checked, answers written.

`run()` returns rows; running the file prints them. No socket and no disk: what is left for those.
"""

from __future__ import annotations

import struct
from typing import Any

from bench.kernel import row, seconds, show
from onelog import kernel
from onelog.kernel import pure
from onelog.record.batch import build_batch

ROUNDS = 1000
FLEXIBLE_FROM = bytes([9, 12])
NAME = struct.pack(">h", 9) + b"telemetry"


def framed(key: int, version: int, body: bytes) -> bytes:
    """A request of a client."""
    data = struct.pack(">hhih", key, version, 7, 5) + b"bench" + body
    return struct.pack(">i", len(data)) + data


def produce_request(records: int) -> bytes:
    """One batch of 100-byte records."""
    rows = [(None, None, b"x" * 100, (), 1_700_000_000_000)] * records
    batch = build_batch(rows, base_offset=0, tag_topics=False)
    head = struct.pack(">hhii", -1, -1, 30_000, 1) + NAME
    return framed(0, 8, head + struct.pack(">iii", 1, 0, len(batch)) + batch)


def fetch_request(partitions: int) -> bytes:
    """A request of a consumer of many partitions of one topic."""
    head = struct.pack(">iiiibiii", -1, 500, 1, 1 << 20, 0, 0, -1, 1) + NAME
    rows = b"".join(struct.pack(">iiqqi", n, -1, n, -1, 1 << 20) for n in range(partitions))
    return framed(1, 11, head + struct.pack(">i", partitions) + rows + struct.pack(">ih", 0, 0))


def produce_us(module: Any, records: int) -> float:
    """A read with one request, from its bytes to the bytes of its answer."""
    data = produce_request(records)

    def work() -> None:
        for _ in range(ROUNDS):
            frames, _rest, _needed = module.split_frames(data, 0, 1 << 20)
            for start, end in frames:
                _key, version, number, _client, at = module.parse_request_header(
                    data, start, end, FLEXIBLE_FROM
                )
                answers = []
                for topic, partitions in module.parse_produce(data, at, end, version).topics:
                    rows = []
                    for index, first, last in partitions:
                        info, _ = module.check_produce_batch(data, first, last)
                        rows.append((index, 0, info.base_offset, -1, 0, None))
                    answers.append((topic, rows))
                module.encode_produce_response(number, version, answers, 0)

    return seconds(work) / ROUNDS * 1e6


def fetch_us(module: Any, partitions: int) -> float:
    """A request and its answer with 64 KB of records for each partition."""
    data, records = fetch_request(partitions), memoryview(bytes(65_536))
    rounds = max(ROUNDS // partitions, 1)

    def work() -> None:
        for _ in range(rounds):
            at = module.parse_request_header(data, 4, len(data), FLEXIBLE_FROM)[4]
            request = module.parse_fetch(data, at, len(data), 11)
            answers = [
                (topic, [(asked[0], 0, 9, 9, 0, None, -1, records) for asked in rows])
                for topic, rows in request.topics
            ]
            module.encode_fetch_response(7, 11, 0, 0, 0, answers)

    return seconds(work) / rounds * 1e6


def run() -> list[dict[str, Any]]:
    """Every row of the table."""
    slow = ("interpreted", produce_us(pure, 1))
    slow_fetch = ("interpreted", fetch_us(pure, 1))
    return [
        row("produce, 1 record", produce_us(kernel, 1), "us/request", 2, low=True, peer=slow),
        row("produce, 140 records of 100 B", produce_us(kernel, 140), "us/request"),
        row("fetch, 1 partition", fetch_us(kernel, 1), "us/request", peer=slow_fetch),
        row("fetch, 1000 partitions", fetch_us(kernel, 1000), "us/request"),
    ]


if __name__ == "__main__":
    show(run())
