"""The routed queue cursor: places, counts, parts that are kept, what it pins."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from onelog.cursors.cursor import Position
from onelog.cursors.routed import RoutedCursor

KEY = ("s-1", 0)
OTHER = ("s-1", 1)


def reopened(cursor: RoutedCursor, parts: dict[str, bytes]) -> RoutedCursor:
    """The cursor as it comes back; `parts` is what the store holds."""
    for name, blob in cursor.take_parts().items():
        if blob is None:
            parts.pop(name, None)
        else:
            parts[name] = blob
    return RoutedCursor.restore(cursor.state(), parts)


def test_a_place_is_held_until_it_is_settled_and_settled_once() -> None:
    cursor = RoutedCursor("q", ("#",))
    cursor.note(KEY, 7)
    assert cursor.holds(KEY, 7)
    assert cursor.count == 1
    assert cursor.settle(KEY, 7)
    assert not cursor.settle(KEY, 7)
    assert not cursor.holds(KEY, 7)
    assert cursor.count == 0


def test_the_lowest_unsettled_place_pins_and_without_one_the_routed_end_does() -> None:
    cursor = RoutedCursor("q", ("#",))
    cursor.set_routed_to(KEY, 10)
    assert cursor.positions() == [Position(*KEY, 10)]
    for offset in (70_000, 5, 9):
        cursor.note(KEY, offset)
    assert cursor.positions() == [Position(*KEY, 5)]
    cursor.settle(KEY, 5)
    cursor.settle(KEY, 9)
    assert cursor.positions() == [Position(*KEY, 70_000)]


def test_only_chunks_that_changed_are_written() -> None:
    cursor = RoutedCursor("q", ("#",))
    cursor.note(KEY, 1)
    cursor.note(KEY, 200_000)
    assert set(cursor.take_parts()) == {"s-1/0/0", "s-1/0/3"}
    assert cursor.take_parts() == {}
    cursor.settle(KEY, 1)
    assert cursor.take_parts() == {"s-1/0/0": None}
    cursor.put_back(["s-1/0/0"])
    assert cursor.take_parts() == {"s-1/0/0": None}


def test_hand_outs_are_counted_and_kept() -> None:
    cursor = RoutedCursor("q", ("#",), b"settings")
    cursor.note(KEY, 3)
    assert cursor.handed_out(KEY, 3) == 0
    assert cursor.handed_out(KEY, 3) == 1
    again = reopened(cursor, {})
    assert again.times_handed_out(KEY, 3) == 2
    assert again.pending() == 1


places = st.tuples(st.sampled_from([KEY, OTHER]), st.integers(0, 300_000))


@given(st.lists(st.tuples(st.sampled_from(["note", "settle", "reopen"]), places), max_size=60))
def test_it_is_a_set_of_places_whatever_happens(steps) -> None:
    cursor = RoutedCursor("q", ("#",))
    model: set[tuple[tuple[str, int], int]] = set()
    parts: dict[str, bytes] = {}
    for step, place in steps:
        if step == "note" and place not in model:
            cursor.note(*place)
            model.add(place)
        elif step == "settle":
            assert cursor.settle(*place) == (place in model)
            model.discard(place)
        elif step == "reopen":
            cursor = reopened(cursor, parts)
    assert set(cursor.places()) == model
    assert cursor.count == len(model)
    lowest: Mapping[tuple[str, int], int] = {
        key: min(offset for found, offset in model if found == key)
        for key in {key for key, _offset in model}
    }
    for row in cursor.positions():
        key = (row.stream_id, row.partition)
        if key in lowest:
            assert row.offset == lowest[key]


def test_partitions_and_their_offsets_are_those_that_are_not_settled():
    cursor = RoutedCursor("q", ("/q",))
    for partition, offset in ((1, 70_000), (1, 5), (2, 9)):
        cursor.note(("s", partition), offset)
    cursor.settle(("s", 2), 9)
    assert cursor.partitions() == [("s", 1)]
    assert list(cursor.offsets(("s", 1))) == [5, 70_000]
    assert list(cursor.offsets(("s", 7))) == []
