"""The places of a queue as one line after a restart: by time, and every topic in its order."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from onelog.log.moves import Move, SourceKey
from onelog.queues.lining_up import QueuedMessage, line_up


def lined(
    lines: dict[str, list[tuple[int, int]]], moves: dict[str, tuple[Move, ...]] | None = None
) -> list[tuple[str, int]]:
    """What comes of lines of (time, offset), as (stream, offset)."""

    def places(rows: list[tuple[int, int]]) -> Iterator[QueuedMessage]:
        return (QueuedMessage(time, offset, is_new=False) for time, offset in rows)

    keyed: dict[SourceKey, Iterator[QueuedMessage]] = {
        (name, 0): places(rows) for name, rows in lines.items()
    }
    found = line_up(keyed, lambda key: (moves or {}).get(key[0], ()))
    return [(key[0], place.offset) for key, place in found]


def test_the_older_record_comes_first():
    assert lined({"a": [(1, 0), (4, 1)], "b": [(2, 0), (3, 1)]}) == [
        ("a", 0), ("b", 0), ("b", 1), ("a", 1),
    ]  # fmt: skip


def test_a_partition_keeps_its_order_whatever_times_its_records_have():
    assert lined({"a": [(9, 0), (1, 1)], "b": [(5, 0)]}) == [("b", 0), ("a", 0), ("a", 1)]


def test_what_was_taken_over_comes_after_what_its_old_home_held_then():
    """I5: also when both were written in one millisecond, or by a producer's clock."""
    moves = {"new": (Move((), ((("old", 0), 3),)),)}
    lines = {"new": [(1, 0), (1, 1)], "old": [(7, 0), (7, 2), (7, 5)]}
    assert lined(lines, moves) == [("old", 0), ("old", 2), ("new", 0), ("new", 1), ("old", 5)]


def test_what_a_stream_held_before_it_took_over_does_not_wait():
    moves = {"new": (Move((1,), ((("old", 0), 3),)),)}
    lines = {"new": [(1, 0), (1, 1)], "old": [(7, 0)]}
    assert lined(lines, moves) == [("new", 0), ("old", 0), ("new", 1)]


def test_there_and_back():
    moves = {
        "b": (Move((0,), ((("a", 0), 2),)),),
        "a": (Move((2,), ((("b", 0), 2),)),),
    }
    lines = {"a": [(5, 0), (5, 1), (1, 2)], "b": [(3, 0), (3, 1), (1, 2)]}
    assert lined(lines, moves) == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2), ("b", 2),
    ] or lined(lines, moves) == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("a", 2),
    ]  # fmt: skip


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.lists(st.integers(0, 5), min_size=60, max_size=60),
    st.sets(st.integers(0, 59)),
)
def test_one_topic_that_moves_at_random_is_always_in_order(homes, times, gone):
    """I5: every message of it was written to where it lived then; some are settled since."""
    ends = [0, 0, 0, 0]
    moves: dict[str, tuple[Move, ...]] = {}
    lines: dict[str, list[tuple[int, int]]] = {str(number): [] for number in range(4)}
    written: list[tuple[str, int]] = []
    before: int | None = None
    for step, home in enumerate(homes):
        if before is not None and before != home:
            after = tuple(((str(n), 0), ends[n]) for n in range(4) if n != home and ends[n])
            moves[str(home)] = (*moves.get(str(home), ()), Move((ends[home],), after))
        before = home
        if step not in gone:
            lines[str(home)].append((times[step], ends[home]))
            written.append((str(home), ends[home]))
        ends[home] += 1
    assert lined(lines, moves) == written
