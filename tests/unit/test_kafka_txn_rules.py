"""What each transactional request does in each state, without a broker."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.transactions import rules
from onelog.protocols.kafka.transactions.state import (
    ENDINGS,
    EPOCH_MAX,
    NEXT,
    OUTCOMES,
    Facts,
    Producer,
    State,
    decode,
    encode,
)
from tests.support.kafka_txn import refused

E = ErrorCode
S = State
A0, B0 = ("a", 0), ("b", 0)
OWNER = Producer(7, 3)


def facts(state: State, **changes: object) -> Facts:
    return msgspec.structs.replace(Facts(7, 3, state, 1000, 50), **changes)


def add(before: Facts, *partitions: tuple[str, int], groups=(), most: int = 10) -> Facts:
    return rules.added(before, frozenset(partitions), frozenset(groups), 99, partitions_max=most)


def again(before: Facts, expected: Producer | None = None, new_id: int = 100) -> Facts:
    return rules.next_producer(before, expected, 2000, 99, lambda: new_id)


# -- the tables


def test_the_tables_know_every_state() -> None:
    assert set(NEXT) == set(State)
    assert set(ENDINGS) == set(itertools.product(State, (True, False)))


def test_every_state_but_dead_leads_on_and_every_state_can_be_reached() -> None:
    assert {state for state, then in NEXT.items() if not then} == {S.DEAD}
    reached, left = set(), [S.EMPTY]
    while left:
        state = left.pop()
        if state not in reached:
            reached.add(state)
            left += NEXT[state]
    assert reached == set(State)


def test_endings_and_outcomes_are_steps_of_the_table() -> None:
    for (state, _commit), what in ENDINGS.items():
        if isinstance(what, State):
            assert what in NEXT[state]
    for state, (_marker, done) in OUTCOMES.items():
        assert NEXT[state] == {done}


def test_a_row_survives_its_encoding() -> None:
    full = facts(
        S.PREPARE_ABORT,
        partitions=frozenset({A0, B0, ("a", 1)}),
        groups=frozenset({"g", "h"}),
        started_ms=5,
        replaced=Producer(7, 2),
    )
    assert decode(encode(full)) == full
    assert decode(encode(facts(S.EMPTY))) == facts(S.EMPTY)


# -- who may act


def test_another_producer_id_is_no_mapping_and_another_epoch_is_fenced() -> None:
    rules.check_owner(facts(S.ONGOING), OWNER)
    with refused(E.invalid_producer_id_mapping):
        rules.check_owner(facts(S.ONGOING), Producer(8, 3))
    for epoch in (2, 4):
        with refused(E.producer_fenced):
            rules.check_owner(facts(S.ONGOING), Producer(7, epoch))


@pytest.mark.parametrize("state", [state for state in State if state is not S.ONGOING])
def test_nothing_is_written_outside_an_ongoing_transaction(state: State) -> None:
    with refused(E.invalid_txn_state):
        rules.check_writable(facts(state), OWNER, E.invalid_txn_state)


def test_a_write_of_another_epoch_has_the_code_that_produce_knows() -> None:
    rules.check_writable(facts(S.ONGOING), OWNER, E.invalid_txn_state)
    with refused(E.invalid_producer_epoch):
        rules.check_writable(facts(S.ONGOING), Producer(7, 2), E.invalid_txn_state)


# -- InitProducerId


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_a_new_instance_gets_the_next_epoch(state: State) -> None:
    after = again(facts(state))
    assert (after.producer, after.state, after.timeout_ms) == (Producer(7, 4), S.EMPTY, 2000)


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_nobody_takes_over_while_an_end_is_in_progress(state: State) -> None:
    for expected in (None, OWNER):
        with refused(E.concurrent_transactions):
            again(facts(state), expected)


def test_taking_over_an_open_transaction_aborts_it_under_a_fencing_epoch() -> None:
    after = again(facts(S.ONGOING, partitions=frozenset({A0})))
    assert (after.state, after.producer) == (S.PREPARE_ABORT, Producer(7, 4))
    assert after.partitions == {A0}
    then = again(rules.completed(after, 99))
    assert then.producer == Producer(7, 5)


def test_the_producer_itself_gets_a_new_epoch_and_the_same_again_when_it_asks_again() -> None:
    """KIP-360: a bump whose answer was lost is not a second bump."""
    after = again(facts(S.COMPLETE_ABORT), OWNER)
    assert after.producer == Producer(7, 4)
    assert again(after, OWNER).producer == Producer(7, 4)
    assert again(after, Producer(7, 4)).producer == Producer(7, 5)


def test_after_the_next_transaction_the_given_up_epoch_is_fenced() -> None:
    after = add(again(facts(S.COMPLETE_ABORT), OWNER), A0)
    with refused(E.producer_fenced):
        again(after, OWNER)
    done = rules.completed(rules.ended(after, 99, commit=True), 99)
    with refused(E.producer_fenced):
        again(done, OWNER)


@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT])
def test_a_zombie_that_wants_its_epoch_bumped_is_fenced(state: State) -> None:
    for expected in (Producer(7, 2), Producer(7, 4), Producer(6, 3)):
        with refused(E.producer_fenced):
            again(facts(state), expected)


def test_a_new_instance_leaves_no_way_back_to_the_one_before() -> None:
    bumped = again(facts(S.EMPTY), OWNER)
    taken = again(bumped)
    with refused(E.producer_fenced):
        again(taken, OWNER)


def test_a_producer_that_bumps_with_its_transaction_open_gets_the_epoch_after_the_abort() -> None:
    after = again(facts(S.ONGOING, partitions=frozenset({A0})), OWNER)
    assert (after.state, after.epoch) == (S.PREPARE_ABORT, 4)
    assert again(rules.completed(after, 99), OWNER).producer == Producer(7, 4)


def test_when_the_epochs_are_used_up_a_new_producer_id_begins() -> None:
    last = facts(S.COMPLETE_COMMIT, epoch=EPOCH_MAX - 2)
    given = again(last)
    assert given.producer == Producer(7, EPOCH_MAX - 1)
    assert again(given).producer == Producer(100, 0)


def test_the_last_epoch_only_fences() -> None:
    full = facts(S.ONGOING, epoch=EPOCH_MAX - 1)
    aborted = rules.fenced(full, 99)
    assert aborted.epoch == EPOCH_MAX
    assert again(rules.completed(aborted, 99)).producer == Producer(100, 0)


def test_a_new_producer_id_too_is_given_again_when_its_answer_was_lost() -> None:
    used_up = Producer(7, EPOCH_MAX - 1)
    after = again(facts(S.EMPTY, epoch=used_up.epoch), used_up)
    assert after.producer == Producer(100, 0)
    assert again(after, used_up, new_id=200).producer == Producer(100, 0)
    aborted = again(facts(S.ONGOING, epoch=used_up.epoch), used_up)
    after = again(rules.completed(aborted, 99), used_up)
    assert after.producer == Producer(100, 0)
    assert again(after, used_up, new_id=200).producer == Producer(100, 0)


def test_the_last_epoch_that_is_given_is_given_again_when_its_answer_was_lost() -> None:
    before = Producer(7, EPOCH_MAX - 2)
    after = again(facts(S.EMPTY, epoch=before.epoch), before)
    assert after.producer == Producer(7, EPOCH_MAX - 1)
    assert again(after, before).producer == Producer(7, EPOCH_MAX - 1)


# -- AddPartitionsToTxn, AddOffsetsToTxn


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_the_first_addition_begins_a_transaction(state: State) -> None:
    after = add(facts(state, started_ms=1), A0)
    assert (after.state, after.partitions, after.started_ms) == (S.ONGOING, {A0}, 99)


def test_later_additions_widen_it_and_do_not_prolong_it() -> None:
    begun = facts(S.ONGOING, partitions=frozenset({A0}), started_ms=10)
    after = add(begun, B0, groups=["g"])
    assert (after.partitions, after.groups, after.started_ms) == ({A0, B0}, {"g"}, 10)
    assert add(after, A0, groups=["g"]) is after


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_nothing_is_added_until_the_transaction_before_is_complete(state: State) -> None:
    with refused(E.concurrent_transactions):
        add(facts(state), A0)


def test_a_transaction_is_bounded() -> None:
    """I8"""
    after = add(facts(S.EMPTY), A0, groups=["g"], most=2)
    with refused(E.policy_violation):
        add(after, B0, most=2)
    assert add(after, A0, most=2) is after


# -- EndTxn


def end(state: State, *, commit: bool) -> Facts:
    return rules.ended(facts(state), 99, commit=commit)


def test_an_ongoing_transaction_is_ended_as_its_producer_wants() -> None:
    assert end(S.ONGOING, commit=True).state is S.PREPARE_COMMIT
    assert end(S.ONGOING, commit=False).state is S.PREPARE_ABORT


def test_an_end_that_is_asked_for_again_is_answered_as_before() -> None:
    assert end(S.COMPLETE_COMMIT, commit=True) == facts(S.COMPLETE_COMMIT)
    assert end(S.COMPLETE_ABORT, commit=False) == facts(S.COMPLETE_ABORT)
    for state, commit in ((S.PREPARE_COMMIT, True), (S.PREPARE_ABORT, False)):
        with refused(E.concurrent_transactions):
            end(state, commit=commit)


@pytest.mark.parametrize(
    ("state", "commit"),
    [
        (S.EMPTY, True),
        (S.EMPTY, False),
        (S.PREPARE_COMMIT, False),
        (S.PREPARE_ABORT, True),
        (S.COMPLETE_COMMIT, False),
        (S.COMPLETE_ABORT, True),
    ],
)
def test_an_outcome_is_never_turned_around(state: State, commit: bool) -> None:
    with refused(E.invalid_txn_state):
        end(state, commit=commit)


def test_a_complete_transaction_touches_nothing_any_more() -> None:
    open_ = facts(S.PREPARE_COMMIT, partitions=frozenset({A0}), groups=frozenset({"g"}))
    done = rules.completed(open_, 99)
    assert (done.state, done.partitions, done.groups) == (S.COMPLETE_COMMIT, set(), set())
    assert rules.completed(facts(S.PREPARE_ABORT), 99).state is S.COMPLETE_ABORT


# -- forgetting


def test_only_ids_without_a_transaction_are_forgotten() -> None:
    for state in State:
        idle = state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
        assert rules.is_forgettable(facts(state), 51) is idle
        assert not rules.is_forgettable(facts(state), 50)
    assert rules.forgotten(facts(S.EMPTY), 99).state is S.DEAD
