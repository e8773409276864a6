"""What a channel holds: runs of tags, taken one by one, up to one or all, as a plain list would."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.protocols.amqp.held import HeldRuns, UnsettledRun
from onelog.queues.queue import Queue

QUEUE = cast(Queue, "queue")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("one"), st.integers(0, 40)),
        st.tuples(st.just("upto"), st.integers(0, 40)),
        st.tuples(st.just("oldest"), st.integers(0, 40)),
        st.tuples(st.just("all"), st.just(0)),
        st.tuples(st.just("back"), st.just(0)),
    ),
    max_size=40,
)


def spread(runs: list[UnsettledRun]) -> list[tuple[int, int]]:
    return [(run.tag + at, run.place + at) for run in runs for at in range(run.count)]


@given(steps)
def test_runs_hold_what_a_plain_list_would(done) -> None:
    held, model, next_tag = HeldRuns(), cast(dict[int, int], {}), 1
    aside: list[UnsettledRun] = []
    for kind, number in done:
        taken: list[UnsettledRun]
        expected: list[int]
        if kind == "add":
            place = 1000 * next_tag
            held.add(UnsettledRun(next_tag, number, QUEUE, place, None, 0.0))
            model |= {next_tag + at: place + at for at in range(number)}
            next_tag += number
            continue
        if kind == "back":
            held.put_back(aside)
            model = dict(sorted([*model.items(), *spread(aside)]))
            aside = []
            check(held, model)
            continue
        if kind == "all":
            taken, expected = held.take_all(), list(model)
        elif kind == "oldest":
            run = held.take_oldest(number, multiple=True)
            taken, expected = ([run], [tag for tag in model if tag <= number]) if run else ([], [])
        elif number not in model:
            with pytest.raises(KeyError):
                held.take(number) if kind == "one" else held.take_upto(number)
            continue
        elif kind == "one":
            taken, expected = [held.take(number)], [number]
        else:
            taken, expected = held.take_upto(number), [tag for tag in model if tag <= number]
        assert spread(taken) == [(tag, model.pop(tag)) for tag in expected]
        aside += taken
        check(held, model)


def check(held: HeldRuns, model: dict[int, int]) -> None:
    assert held.size == len(model)
    first: Any = held.oldest
    assert (first is None) == (not model)
    if first is not None:
        assert first.tag == min(model)
    # What is held can be taken, all of it in order, and nothing else.
    everything = held.take_all()
    assert spread(everything) == list(model.items())
    held.put_back(everything)
