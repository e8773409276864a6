"""Credit of inner links: how much waits at most, and peers that lie about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.cluster.link.credit import WINDOW_BYTES_MAX, ReceiveCredit, SendCredit
from onelog.cluster.link.layout import LinkViolation


def test_a_frame_larger_than_the_window_may_be_sent_when_any_credit_is_left():
    credit = SendCredit(10)
    credit.spend(1000)
    assert credit.left < 0
    with pytest.raises(AssertionError):
        credit.spend(1)
    credit.grant(1001)
    assert credit.left == 1


@pytest.mark.parametrize("total", [9, 0, 5 + WINDOW_BYTES_MAX + 1])
def test_a_grant_that_falls_or_leaps_is_refused(total):
    credit = SendCredit(10)
    credit.spend(5)
    with pytest.raises(LinkViolation, match="grant"):
        credit.grant(total)


def test_bytes_without_credit_are_refused():
    credit = ReceiveCredit(10)
    credit.take(9)
    credit.take(100)
    with pytest.raises(LinkViolation, match="used up"):
        credit.take(1)


def test_a_small_part_of_the_window_is_not_granted_at_once():
    credit = ReceiveCredit(100)
    credit.take(30)
    assert credit.free(30) is None
    credit.take(30)
    assert credit.free(30) == 160


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3))))
def test_a_sender_with_frames_to_send_never_waits_for_ever_and_never_sends_too_much(window, steps):
    """Frames of any size; the receiver deals with some of what came after each."""
    sending, receiving = SendCredit(window), ReceiveCredit(window)
    undealt: list[int] = []
    for size, deals in steps:
        if sending.left > 0:
            sending.spend(size)
            receiving.take(size)
            undealt.append(size)
            assert receiving.held <= window + size
        for _ in range(min(deals, len(undealt))):
            total = receiving.free(undealt.pop(0))
            if total is not None:
                sending.grant(total)
    while undealt:
        total = receiving.free(undealt.pop(0))
        if total is not None:
            sending.grant(total)
    assert sending.left > 0
