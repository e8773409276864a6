"""The kernel's bars: how fast the hot loops are, beside what could have been used instead.

`run()` returns rows; running the file prints them. The numbers are of one process, best of some
rounds, and say nothing of sockets or disks.
"""

from __future__ import annotations

import random
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

from fastcrc import crc32

from onelog import kernel
from onelog.kernel import pure

MESSAGES = 2000
VALUE = random.Random(1).randbytes(256)
TOPIC = b"sensors/d1/telemetry"
ROWS = [(TOPIC, TOPIC, VALUE, (), 1_700_000_000_000 + n) for n in range(MESSAGES)]


def seconds(work: Callable[[], object], rounds: int = 5) -> float:
    """Best time of one call."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def row(
    name: str,
    value: float,
    unit: str,
    bar: float | None = None,
    *,
    low: bool = False,
    peer: tuple[str, float] | None = None,
) -> dict[str, Any]:
    """One line of the table; `low` means that less is better."""
    holds = None if bar is None else (value <= bar if low else value >= bar)
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "bar": bar,
        "holds": holds,
        "low": low,
        "peer": peer[0] if peer else None,
        "peer_value": round(peer[1], 4) if peer else None,
    }


def crc_rows() -> list[dict[str, Any]]:
    data = random.Random(2).randbytes(1 << 20)
    small = data[:300]

    def rate(call: Callable[..., int]) -> float:
        return 50 * len(data) / seconds(lambda: [call(data) for _ in range(50)]) / 1e9

    short = seconds(lambda: [kernel.crc32c(small) for _ in range(20_000)]) / 20_000 * 1e9
    other = seconds(lambda: [crc32.iscsi(small) for _ in range(20_000)]) / 20_000 * 1e9
    return [
        row(
            "crc32c of 1 MiB",
            rate(kernel.crc32c),
            "GB/s",
            10,
            peer=("zlib.crc32", rate(zlib.crc32)),
        ),
        row("crc32c of 300 B", short, "ns", peer=("fastcrc", other)),
    ]


def batch_rows() -> list[dict[str, Any]]:
    builder, slow = kernel.BatchBuilder(True), pure.BatchBuilder(True)

    def build() -> None:
        for base in range(25):
            builder.extend(ROWS)
            builder.seal(base)

    def build_slowly() -> None:
        slow.extend(ROWS)
        slow.seal(0)

    builder.extend(ROWS)
    batch = builder.seal(0)
    chosen, wild = kernel.TopicFilter(b"other/topic"), kernel.TopicFilter(b"other/+/x")

    def rate(work: Callable[[], object], times: int) -> float:
        return times * MESSAGES / seconds(lambda: [work() for _ in range(times)]) / 1e6

    def slow_rate(work: Callable[[], object]) -> float:
        return MESSAGES / seconds(work, 2) / 1e6

    def to_columns(module: Any) -> object:
        return module.decode_columns([(batch, 0, None)], 0, 1 << 60, 31)

    return [
        row(
            "build and seal, 256 B messages", 25 * MESSAGES / seconds(build) / 1e6, "M msg/s", 5,
            peer=("interpreted", slow_rate(build_slowly)),
        ),
        row(
            "decode into slices", rate(lambda: kernel.decode_batch(batch), 50), "M msg/s", 8,
            peer=("interpreted", slow_rate(lambda: pure.decode_batch(batch))),
        ),
        row(
            "decode into Python tuples",
            rate(lambda: kernel.decode_batch(batch).records(), 10),
            "M msg/s",
            peer=("interpreted", slow_rate(lambda: pure.decode_batch(batch).records())),
        ),
        row(
            "decode into Arrow columns", rate(lambda: to_columns(kernel), 25), "M msg/s",
            peer=("interpreted", slow_rate(lambda: to_columns(pure))),
        ),
        row(
            "select, nothing matches, exact",
            rate(lambda: kernel.select_records(batch, chosen, 0, 1 << 40, 10), 50),
            "M msg/s",
            30,
        ),
        row(
            "select, nothing matches, wildcard",
            rate(lambda: kernel.select_records(batch, wild, 0, 1 << 40, 10), 50),
            "M msg/s",
            30,
        ),
        row(
            "scan and check a 550 KB batch",
            len(batch) / seconds(lambda: kernel.scan_batches(batch), 50) / 1e9,
            "GB/s",
        ),
    ]  # fmt: skip


def filters_of(count: int, chance: random.Random) -> list[bytes]:
    """80 % exact, 15 % `+`, 5 % `#`; 14 to 15 of them match a topic at any count."""
    wild = count * 20 // 100
    sites, devices = max(1, wild // 29), max(1, count // 300)
    out = []
    for n in range(count):
        site, device = chance.randrange(sites), chance.randrange(devices)
        share = n % 20
        if share < 16:
            out.append(b"site%d/dev%d/m%d" % (site, device, chance.randrange(10)))
        elif share < 19:
            out.append(b"site%d/+/m%d" % (site, chance.randrange(3)))
        else:
            out.append(b"site%d/#" % site)
    chance.shuffle(out)
    return out


def fill(count: int, chance: random.Random, *, wild_only: bool = False) -> tuple[Any, list[bytes]]:
    texts = filters_of(count * 5 if wild_only else count, chance)
    if wild_only:
        texts = [text for text in texts if b"+" in text or b"#" in text]
    trie = kernel.TopicTrie()
    for value, text in enumerate(texts):
        trie.add(text, value)
    sites = {text.split(b"/")[0] for text in texts}
    topics = [
        b"%s/dev%d/m%d" % (site, chance.randrange(max(1, count // 300)), chance.randrange(3))
        for site in chance.choices(sorted(sites), k=10_000)
    ]
    return trie, topics


def trie_rows() -> list[dict[str, Any]]:
    chance = random.Random(3)
    trie, topics = fill(100_000, chance, wild_only=True)
    matches = sum(len(trie.match_uncached(topic)) for topic in topics) / len(topics)
    uncached = seconds(lambda: [trie.match_uncached(topic) for topic in topics]) / len(topics)
    hot = topics[:1000]
    cached = seconds(lambda: [trie.match(topic) for _ in range(10) for topic in hot]) / 10_000
    start = time.perf_counter()
    large, _ = fill(1_000_000, chance)
    insert = (time.perf_counter() - start) / 1_000_000
    return [
        row("matches per topic, 100 k wildcard filters", matches, "filters"),
        row("topic match, cached", cached * 1e6, "us", 0.15, low=True),
        row("topic match, uncached", uncached * 1e6, "us", 1.5, low=True),
        row("memory per filter, 1 M filters", large.memory_bytes() / 1e6, "B", 200, low=True),
        row("insert, with making the filter", insert * 1e6, "us"),
    ]


def index_rows() -> list[dict[str, Any]]:
    """10 M entries of 100 000 topics in chunks of 16384."""
    chance = random.Random(4)
    hashes = [chance.getrandbits(32) for _ in range(100_000)]
    chunks: list[bytes] = []
    rel = 0
    sample = [
        kernel.sort_topic_entries(
            b"".join(
                struct.pack("<II", key, n)
                for n, key in enumerate(chance.choices(hashes, k=16_384))
            )
        )
        for _ in range(10)
    ]  # fmt: skip
    while rel < 10_000_000:
        entries = kernel.sort_topic_entries(sample[len(chunks) % 10], rel)
        chunks.append(kernel.make_topic_chunk(entries))
        rel += 16_384
    index = b"".join(chunks)
    keys = chance.sample(hashes, 200)

    def look_up() -> int:
        """Different topics in turn, so that no lookup finds its path warm."""
        return sum(len(kernel.lookup_topic_chunks(index, len(index), key, 0, 1000)) for key in keys)

    assert 200 * 50 < look_up() < 200 * 200
    return [
        row(
            "topic index lookup, 10 M entries",
            seconds(look_up, 2) / len(keys) * 1e3,
            "ms", 5, low=True,
        ),
        row(
            "sort and seal one chunk of 16384",
            seconds(lambda: kernel.make_topic_chunk(kernel.sort_topic_entries(sample[0]))) * 1e3,
            "ms",
        ),
        row(
            "check the CRCs of 80 MB of index",
            len(index) / seconds(lambda: kernel.check_topic_chunks(index, len(index)), 2) / 1e9,
            "GB/s",
        ),
    ]  # fmt: skip


def run() -> list[dict[str, Any]]:
    """Every row of the kernel's table."""
    return [*crc_rows(), *batch_rows(), *trie_rows(), *index_rows()]


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    print(f"kernel: {'compiled' if kernel.COMPILED else 'interpreted'}")
    for line in rows:
        bar = (
            "" if line["bar"] is None else f"bar {line['bar']:g}  {'ok' if line['holds'] else 'NO'}"
        )
        peer = f"{line['peer']} {line['peer_value']:g}" if line["peer"] else ""
        print(f"{line['name']:<44}{line['value']:>10.3f} {line['unit']:<11}{bar:<18}{peer}")


if __name__ == "__main__":
    show(run())
