"""AMQP's publishes that wait, by both kernels: confirms in order, and the bound of their bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from onelog.kernel import _native
from onelog.kernel import pure as twin

KERNELS: list[Any] = [twin, _native]
both = pytest.mark.parametrize("kernel", KERNELS, ids=["twin", "native"])
UNKNOWN, ACK, NACK = 0, 1, 2


def run_of(kernel: Any, count: int, outcome: int = UNKNOWN) -> Any:
    run = kernel.PublishRun(None, count, None, 10)
    run.outcome = outcome
    return run


@both
def test_confirms_go_out_in_order_as_many_as_possible_in_one(kernel: Any) -> None:
    confirms = kernel.Confirms()
    runs = [run_of(kernel, count) for count in (1, 2, 1, 3)]
    for run in runs:
        confirms.add(run)
    assert (confirms.unconfirmed, confirms.take(5)) == (7, b"")
    runs[1].outcome = ACK
    assert confirms.take(5) == b"", "the first is not known yet"
    runs[0].outcome, runs[2].outcome = ACK, NACK
    found = confirms.take(5)
    assert found == frame.marshal(commands.Basic.Ack(3, True), 5) + frame.marshal(
        commands.Basic.Nack(4, False, False), 5
    )
    assert (confirms.first_tag, confirms.unconfirmed) == (5, 3)


@both
def test_a_run_that_is_written_in_parts_is_confirmed_by_its_parts(kernel: Any) -> None:
    confirms = kernel.Confirms()
    first, whole = run_of(kernel, 1, ACK), run_of(kernel, 2, ACK)
    confirms.add(first)
    confirms.add(whole)
    confirms.replace(whole, [run_of(kernel, 1, NACK), run_of(kernel, 1)])
    assert len(confirms.take(1)) == 2 * 21
    assert (confirms.first_tag, confirms.unconfirmed) == (3, 1)
    confirms.clear()
    assert (confirms.take(1), confirms.unconfirmed) == (b"", 0)


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from((UNKNOWN, ACK, NACK))), max_size=12))
def test_both_kernels_confirm_the_same(rows: list[tuple[int, int]]) -> None:
    found = []
    for kernel in KERNELS:
        confirms = kernel.Confirms()
        for count, outcome in rows:
            confirms.add(run_of(kernel, count, outcome))
        found.append((confirms.take(7), confirms.first_tag, confirms.unconfirmed))
    assert found[0] == found[1]


@both
def test_a_peer_is_not_read_past_the_bound_until_half_of_it_is_free(kernel: Any) -> None:
    said: list[str] = []
    pauses = SimpleNamespace(
        reasons={"why"},
        pause=lambda why: said.append(f"pause {why}"),
        resume=lambda why: said.append(f"resume {why}"),
    )
    bound = kernel.ByteCount(pauses, 100, "why")
    for more in (100, 1, -50, -1):
        bound.add(more)
    assert (said, bound.size_bytes) == (["pause why", "resume why"], 50)


@both
def test_runs_that_became_visible_are_told_together(kernel: Any) -> None:
    soon: list[Any] = []
    told: list[Any] = []
    turn = kernel.PublishPass(soon.append, None, {("s", 0, 0): None}, told.append)
    runs = [run_of(kernel, 1), run_of(kernel, 2)]
    for run in runs:
        turn.took(run)
    assert (len(soon), told) == (1, [])
    soon[0]()
    assert told == [runs]
    turn.took(runs[0])
    assert len(soon) == 2


@both
def test_a_run_of_deliveries_is_cut_at_a_tag(kernel: Any) -> None:
    run = kernel.UnsettledRun(10, 5, "queue", 100, "consumer", 1.5)
    rest = run.cut(12)
    assert (run.tag, run.count, list(run.places)) == (10, 2, [100, 101])
    assert (rest.tag, rest.count, list(rest.places)) == (12, 3, [102, 103, 104])
    assert (rest.queue, rest.consumer, rest.since) == ("queue", "consumer", 1.5)


@both
def test_a_channel_is_plain_while_nothing_waits(kernel: Any) -> None:
    channel = kernel.ChannelEnd()
    for name, value in (("_busy", True), ("_closing", True), ("transaction", 1), ("_publish", 1)):
        channel._busy = channel._closing = False
        channel.transaction = channel._publish = None
        channel._waiting = []
        assert channel.is_plain
        setattr(channel, name, value)
        assert not channel.is_plain, name
    channel._busy = channel._closing = False
    channel.transaction = channel._publish = None
    channel._waiting = ["event"]
    assert not channel.is_plain
