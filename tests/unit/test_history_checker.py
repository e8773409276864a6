"""The history checker is able to fail: each broken promise is found, and a kept one is not."""

from __future__ import annotations

import pytest

from tests.support.history import Deed, Event, History, Promise

ONE = {"v": Promise()}


def sent(*texts: str, lane: str = "a") -> History:
    history = History()
    for text in texts:
        history.attempted(text, lane)
        history.acknowledged(text)
    return history


def seen(history: History, *texts: str, view: str = "v") -> History:
    for text in texts:
        history.seen(view, text)
    return history


def only(history: History, views: dict[str, Promise], words: str) -> None:
    found = history.findings(views)
    assert len(found) == 1, found
    assert words in found[0]
    with pytest.raises(AssertionError, match=found[0].split(":")[0]):
        history.prove(views)


def test_a_whole_history_in_order_has_no_finding():
    history = seen(sent("1", "2", "3"), "1", "2", "3")
    history.prove(ONE)
    assert history.count(Deed.SEEN, "v") == 3


def test_a_lost_message_is_found():
    history = seen(sent("1", "2", "3"), "1", "3")
    only(history, ONE, "loss: v lacks 1 acknowledged messages, 2 for one")
    assert history.lacking(ONE) == {"v": {"2"}}


def test_a_message_without_an_answer_may_be_there_or_not():
    history = sent("1")
    history.attempted("2", "a")
    seen(history, "1")
    history.prove(ONE)
    seen(history, "2").prove(ONE)


def test_a_view_lacks_only_what_it_asked_for():
    views = {"v": Promise(wants=lambda text: text != "2")}
    seen(sent("1", "2"), "1").prove(views)
    only(seen(sent("1", "2"), "2"), views, "loss")


def test_a_phantom_is_found():
    only(seen(sent("1"), "1", "9"), ONE, "phantom: v saw 9")


def test_a_message_that_is_seen_before_it_was_sent_is_a_phantom():
    history = History()
    history.seen("v", "1")
    history.attempted("1")
    history.acknowledged("1")
    only(history, ONE, "phantom")


def test_a_refused_message_that_is_seen_is_a_phantom():
    history = sent("1")
    history.attempted("2")
    history.refused("2")
    only(seen(history, "1", "2"), ONE, "which was refused")


def test_an_answer_to_nothing_and_two_answers_are_found():
    history = sent("1")
    history.acknowledged("1")
    only(seen(history, "1"), ONE, "1 was answered 2 times")
    history = seen(sent("1"), "1")
    history.refused("7")
    only(history, ONE, "phantom: 7 was answered, not sent")


def test_a_reordering_within_a_lane_is_found():
    only(seen(sent("1", "2", "3"), "1", "3", "2"), ONE, "order: v saw 2 after 3")


def test_lanes_may_overtake_each_other_and_some_views_promise_no_order():
    history = sent("1", "2")
    for text in ("3", "4"):
        history.attempted(text, "b")
    seen(history, "3", "1", "4", "2").prove(ONE)
    seen(sent("1", "2"), "2", "1").prove({"v": Promise(is_ordered=False)})


def test_a_duplicate_within_a_life_is_found():
    only(seen(sent("1", "2"), "1", "2", "1"), ONE, "twice: v saw 1 again: nothing happened")


def test_what_was_given_back_or_met_a_crash_may_come_again():
    history = seen(sent("1"), "1")
    history.returned("v", "1")
    seen(history, "1").prove(ONE)
    history.broken()
    seen(history, "1").prove(ONE)
    only(seen(history, "1"), ONE, "nothing happened")


def test_exactly_once_holds_over_a_crash():
    history = seen(sent("1"), "1")
    history.broken()
    only(seen(history, "1"), {"v": Promise(is_once=True)}, "promised once")


def test_what_comes_again_must_say_so_where_that_is_promised():
    views = {"v": Promise(is_marked=True)}
    history = seen(sent("1"), "1")
    history.broken()
    history.seen("v", "1", marked=True)
    history.prove(views)
    history.broken()
    only(seen(history, "1"), views, "does not say so")


def test_a_settled_message_that_is_back_is_found():
    history = seen(sent("1"), "1")
    history.settling("v", "1")
    history.settled("v", "1")
    history.broken()
    only(seen(history, "1"), ONE, "it was settled")


def test_a_message_that_is_settled_twice_is_found():
    history = seen(sent("1"), "1")
    history.settled("v", "1")
    history.settled("v", "1")
    only(history, ONE, "settled twice: 1 in v")


@pytest.mark.parametrize(("age_s", "findings"), [(4.0, 1), (2.0, 0)])
def test_a_settlement_without_an_answer_counts_when_it_is_old_enough(age_s, findings):
    rows = [
        Event(Deed.ATTEMPTED, "1"),
        Event(Deed.ACKNOWLEDGED, "1"),
        Event(Deed.SEEN, "1", "v"),
        Event(Deed.SETTLING, "1", "v", 100.0),
        Event(Deed.BROKEN, at_s=100.0 + age_s),
        Event(Deed.SEEN, "1", "v"),
    ]
    views = {"v": Promise(is_complete=False, kept_after_s=3.0)}
    assert len(History(rows).findings(views)) == findings


def test_a_view_that_lost_its_connection_begins_a_life_of_its_own():
    history = seen(sent("1"), "1")
    history.broken("w")
    only(seen(history, "1"), ONE, "nothing happened")
    history = seen(sent("1"), "1")
    history.broken("v")
    seen(history, "1").prove(ONE)


def test_a_view_that_nobody_spoke_of_is_found():
    only(seen(sent("1"), "1", view="w"), {}, "nothing was promised to the view w")
