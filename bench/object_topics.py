"""Requests that a reader of one exact topic costs over a thousand cold pieces.

Rules: the index parts are here already, as they are for a log that is read now and then. Each piece
has three topics; the topic that is read is in every tenth piece.
"""

from __future__ import annotations

from functools import partial

from bench.object_store import bench_server, store_of
from bench.report import Row, data_dir, row
from onelog.base.ids import Offset
from onelog.kernel import topic_hash
from onelog.storage.cold import ColdRows, RunCache
from onelog.storage.engine import in_place
from tests.batches import make_batch
from tests.support.pieces import put_piece

PIECES, EVERY, BATCHES = 1_000, 10, 3
READ = b"plant/7/temperature"


def topics_of(piece: int) -> list[bytes]:
    """The topics of a piece's batches."""
    return [READ if piece % EVERY == 0 else b"a/x", b"a/y", b"a/z"]


def warm(rows: ColdRows) -> None:
    """Bring every index part: a topic that nobody has is looked for in each."""
    look(rows, b"a/nothing")


def look(rows: ColdRows, topic: bytes) -> int:
    """How many records of a topic there are; each is read."""
    offset, found = rows.start_offset, 0
    while offset < rows.end_offset:
        ask = partial(rows.offsets_of_topic, topic_hash(topic), offset, rows.end_offset, 100)
        offsets = in_place(rows, ask)
        assert offsets is not None, "these pieces have topic indexes"
        if not offsets:
            break
        for one in offsets:
            in_place(rows, partial(rows.read, one, 1, rows.end_offset))
        found += len(offsets)
        offset = Offset(offsets[-1] + 1)
    return found


def measure() -> list[Row]:
    """The rows of the table."""
    with data_dir("object-topics") as folder, bench_server(folder / "s3") as server:
        store = store_of(server)
        pieces = []
        for number in range(PIECES):
            base = number * BATCHES
            made = [make_batch(base + at, topic=t) for at, t in enumerate(topics_of(number))]
            pieces.append(put_piece(store, f"t/{number}", base, base + BATCHES, made))
        cache = RunCache(folder / "cache")
        try:
            rows = ColdRows("bench", store, cache, pieces, start=Offset(0))
            warm(rows)
            before = store.counts.get
            assert look(rows, READ) == PIECES // EVERY
            gets = store.counts.get - before
        finally:
            cache.close()
    with_it = PIECES // EVERY
    return [
        row("exact topic: gets for each piece that has it", gets / with_it, "gets", 2.0, low=True),
    ]
