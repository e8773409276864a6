"""Do the runs of pieces hold every wanted batch once, in order, whatever bounds and topics?"""

from __future__ import annotations

from itertools import count

import pytest

from onelog.base.errors import NotFound
from onelog.kernel import scan_batches
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.spark.source import cold_runs
from onelog.spark.source.cold_runs import RunsAhead
from tests.batches import make_batch
from tests.support.pieces import put_piece

NAMES = count()
TOPICS = (b"a/x", b"a/y", b"a/z")


@pytest.fixture
def store() -> ObjectStore:
    return open_store(StoreSettings(url=f"memory://runs-{next(NAMES)}"))


def pieces(store: ObjectStore, number: int, batches: int, size: int = 3000) -> list[Row]:
    """Pieces of batches of ten records; the rare topic is in the last batch of every fourth."""
    rows = []
    for piece in range(number):
        base = piece * batches * 10
        made = [
            make_batch(base + at * 10, 10, topic=topic_of(piece, at, batches), size=size)
            for at in range(batches)
        ]
        end = base + batches * 10
        rows.append(put_piece(store, f"t/{piece}", base, end, made, before=b"x" * piece))
    return rows


def topic_of(piece: int, at: int, batches: int) -> bytes:
    rare = at == batches - 1 and piece % 4 == 0
    return b"a/rare" if rare else TOPICS[at % 3]


def bases(store: ObjectStore, rows: list[Row], start: int, end: int, topic: bytes | None = None):
    """The base offsets of all batches that come, and where reading was after each run."""
    found, reached = [], []
    with RunsAhead(store, rows, start, end, topic) as runs:
        for run in runs:
            reached.append(run.reached)
            if run.fetched is not None:
                found += [info.base_offset for info in scan_batches(run.fetched.result())]
    return found, reached


@pytest.mark.parametrize("whole", [0, 16 << 20])
@pytest.mark.parametrize(("start", "end"), [(0, 1600), (5, 1599), (399, 401), (777, 778)])
def test_every_batch_of_the_bounds_comes_once_and_in_order(
    store, monkeypatch, start, end, whole
) -> None:
    monkeypatch.setattr(cold_runs, "RUN_BYTES", 50_000)
    monkeypatch.setattr(cold_runs, "WHOLE_BYTES", whole)
    rows = pieces(store, 4, 40)
    asked = [row for row in rows if row.base < end and row.end > start]
    found, reached = bases(store, asked, start, end)
    assert found == sorted(set(found))
    wanted = range(start // 10 * 10, end, 10)
    assert set(wanted) <= set(found)
    assert len(found) <= len(wanted) + 2 * (65536 // 30_000 + 2)  # an index entry's worth more
    assert reached == sorted(reached)
    assert reached[-1] == end


def test_a_topic_costs_only_what_has_it(store) -> None:
    rows = pieces(store, 8, 60, size=10_000)
    got = store.counts.get
    found, reached = bases(store, rows, 0, 4800, b"a/rare")
    with_it = {590, 2990}
    assert with_it <= set(found)
    assert len(found) < 10
    assert reached[-1] == 4800
    assert store.counts.get - got == 8 + 2 * 2  # index parts; then a posting and a run each
    nothing, reached = bases(store, rows, 0, 4800, b"a/nothing")
    assert nothing == []
    assert reached[-1] == 4800
    everywhere, _ = bases(store, rows, 0, 4800, b"a/x")
    assert {
        at for at in range(0, 4800, 10) if topic_of(at // 600, at % 600 // 10, 60) == b"a/x"
    } <= {*everywhere}


def test_a_small_piece_is_one_get(store) -> None:
    rows = pieces(store, 5, 10)
    got = store.counts.get
    found, _ = bases(store, rows, 0, 500)
    assert found == list(range(0, 500, 10))
    assert store.counts.get - got == 5


def test_an_error_appears_behind_the_runs_before_it(store) -> None:
    rows = pieces(store, 5, 10)
    store.delete([rows[2].object])
    seen = []
    with RunsAhead(store, rows, 0, 500) as runs, pytest.raises(NotFound):
        for run in runs:
            seen.append(run.row.base)
            assert run.fetched is not None
            run.fetched.result()
    assert seen == [0, 100, 200]


def test_a_piece_without_batches_is_passed(store) -> None:
    rows = [
        *pieces(store, 1, 10),
        put_piece(store, "t/empty", 100, 150, []),
        put_piece(store, "t/more", 150, 160, [make_batch(150, 10)]),
    ]
    found, reached = bases(store, rows, 0, 160)
    assert found == [*range(0, 100, 10), 150]
    assert reached == [100, 150, 160]
