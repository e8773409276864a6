"""How long a start on a chain with 128 MiB that no row has takes, beside raw gets of its objects.

Rules: the broker before it was killed in effect: nothing was settled. The time is that of opening
the engine, until it takes appends. Raw gets are of the same objects, whole, by as many threads, in
turns; medians count. Every start leaves the objects as they are, so the next one reads them again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bench.object_answers import OBJECT_BYTES, OBJECTS, engine_of, fill, log_of
from bench.object_store import bench_server, store_of
from bench.report import Row, data_dir, median, row, say, seconds
from onelog.objects import names
from onelog.objects.chain_requests import READERS

ROUNDS = 7
BAR = 2.0


def measure() -> list[Row]:
    """The rows of the table."""
    opened, gets = [], []
    with data_dir("object-recovery") as folder, bench_server(folder / "s3") as server:
        store = store_of(server)
        engine = engine_of(store, folder)
        log = log_of(engine)
        fill(log, OBJECTS * OBJECT_BYTES)
        log.sync()
        end = log.end_offset
        objects = [
            found.name
            for found in store.list(names.chains_of("0"))
            if found.size_bytes > OBJECT_BYTES // 2
        ]
        engine.close()
        for _ in range(ROUNDS):
            with ThreadPoolExecutor(READERS) as threads:
                gets.append(seconds(lambda: list(threads.map(store.get_view, objects))))
            engine = engine_of(store, folder)
            opened.append(engine.opening_s)
            assert log_of(engine).end_offset == end
            engine.close()
    say(f"recovery: {', '.join(f'{took * 1e3:.0f}' for took in opened)} ms, raw gets"
        f" {', '.join(f'{took * 1e3:.0f}' for took in gets)} ms")  # fmt: skip
    return [
        row("object: recovery of 128 MiB", median(opened) / median(gets), "ratio", BAR, low=True,
            peer=("raw gets, s", median(gets)))
    ]  # fmt: skip
