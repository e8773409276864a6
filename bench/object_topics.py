"""Requests that a reader of one exact topic costs over a thousand cold pieces.

Rules: the index parts are here already, as they are for a log that is read now and then. Each piece
has three topics; the topic that is read is in every tenth piece. Pieces of another log have more
topics than a directory lists (8,192): a piece that lacks the topic costs a request there.
"""

from __future__ import annotations

from functools import partial

from bench.object_store import bench_server, store_of
from bench.report import Row, data_dir, row
from onelog.base.ids import Offset
from onelog.kernel import topic_hash
from onelog.objects.postings import POSTINGS_LISTED_MAX
from onelog.objects.rows import Row as PieceRow
from onelog.objects.store import ObjectStore
from onelog.record.batch import build_batch
from onelog.storage.cold import ColdRows, RunCache
from onelog.storage.engine import in_place
from tests.batches import make_batch
from tests.support.pieces import put_piece

PIECES, EVERY, BATCHES = 1_000, 10, 3
WIDE_PIECES, WIDE_TOPICS = 50, POSTINGS_LISTED_MAX + 100
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


def narrow_pieces(store: ObjectStore) -> list[PieceRow]:
    """Pieces of three topics."""
    pieces = []
    for number in range(PIECES):
        base = number * BATCHES
        made = [make_batch(base + at, topic=t) for at, t in enumerate(topics_of(number))]
        pieces.append(put_piece(store, f"t/{number}", base, base + BATCHES, made))
    return pieces


def wide_pieces(store: ObjectStore) -> list[PieceRow]:
    """Pieces of more topics than a directory lists, one record each."""
    pieces = []
    for number in range(WIDE_PIECES):
        base = number * WIDE_TOPICS
        topics = [b"wide/%d" % at for at in range(1, WIDE_TOPICS)]
        topics.append(READ if number % EVERY == 0 else b"wide/0")
        records = [(topic, topic, b"x", (), 1) for topic in topics]
        made = build_batch(records, base_offset=base, tag_topics=True)
        pieces.append(put_piece(store, f"w/{number}", base, base + WIDE_TOPICS, [made]))
    return pieces


def measure() -> list[Row]:
    """The rows of the table."""
    with data_dir("object-topics") as folder, bench_server(folder / "s3") as server:
        store = store_of(server)
        cache = RunCache(folder / "cache")

        def gets(rows: ColdRows, topic: bytes, wanted: int) -> int:
            """Requests for one look, which has to find so many records."""
            before = store.counts.get
            assert look(rows, topic) == wanted
            return store.counts.get - before

        try:
            rows = ColdRows("bench", store, cache, narrow_pieces(store), start=Offset(0))
            warm(rows)
            narrow = gets(rows, READ, PIECES // EVERY)
            wide = ColdRows("bench-wide", store, cache, wide_pieces(store), start=Offset(0))
            warm(wide)
            others = gets(wide, b"b/nothing", 0)
            both = gets(wide, READ, WIDE_PIECES // EVERY)
        finally:
            cache.close()
    with_it, wide_with_it = PIECES // EVERY, WIDE_PIECES // EVERY
    most = 2 * wide_with_it + WIDE_PIECES - wide_with_it
    return [
        row("exact topic: gets for each piece that has it", narrow / with_it, "gets", 2.0,
            low=True),
        row(f"a topic that no piece of {WIDE_TOPICS:,} topics has: gets for each piece",
            others / WIDE_PIECES, "gets", 1.0, low=True),
        row(f"exact topic in pieces of {WIDE_TOPICS:,} topics: gets / 2 per piece that has it, 1"
            " per other", both / most, "ratio", 1.0, low=True),
    ]  # fmt: skip
