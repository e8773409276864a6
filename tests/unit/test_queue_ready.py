"""The ready list: what waits in a queue goes out in its order, whatever came back when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onelog.queues.ready import CHUNK, ReadyList, pack, unpack

sources = st.lists(st.integers(0, 2), max_size=40)


def arrivals(numbers: list[int]) -> list[int]:
    """Places of partitions as messages come, each partition counting by itself."""
    seen: dict[int, int] = {}
    found = []
    for number in numbers:
        found.append(pack(number, seen.get(number, 0)))
        seen[number] = seen.get(number, 0) + 1
    return found


@given(sources, st.data())
def test_what_comes_back_goes_to_where_it_was(numbers, data):
    places = arrivals(numbers)
    ready = ReadyList()
    for place in places:
        ready.append(place)
    out = [ready.take() for _ in range(data.draw(st.integers(0, len(places))))]
    gone = set(data.draw(st.lists(st.sampled_from(out), unique=True)) if out else [])
    for place in data.draw(st.permutations(out)):
        if place in gone:
            ready.forget(place)
        else:
            ready.put_back(place)
    assert ready.places() == [place for place in places if place not in gone]
    assert [ready.take() for _ in range(len(ready))] == [
        place for place in places if place not in gone
    ]


@given(st.lists(st.integers(0, 12), max_size=30))
def test_higher_priorities_go_first(priorities):
    ready = ReadyList(5)
    for offset, priority in enumerate(priorities):
        ready.append(pack(0, offset), priority)
    found = [ready.take() for _ in range(len(ready))]
    wanted = sorted(range(len(priorities)), key=lambda at: (-min(priorities[at], 5), at))
    assert found == [pack(0, offset) for offset in wanted]


def test_a_cut_takes_what_waits_and_knows_what_is_out():
    ready = ReadyList()
    places = arrivals([0, 1] * CHUNK)
    for place in places:
        ready.append(place)
    out = [ready.take() for _ in range(3)]
    gone = ready.cut()
    assert (ready.size, gone.size) == (0, len(places) - 3)
    ready.append(pack(0, CHUNK))
    for place in reversed(out):
        ready.put_back(place)
    assert ready.places() == [*out, pack(0, CHUNK)]
    assert gone.places() == places[3:]
    assert unpack(gone.take()) == (1, 1)
