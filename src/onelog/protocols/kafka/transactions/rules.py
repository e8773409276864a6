"""What each request does to a transactional id: pure functions from facts to facts.

Rules (Kafka's, with KIP-360 and KIP-890):
- A request must come from the current producer: another id is INVALID_PRODUCER_ID_MAPPING, another
  epoch is fenced. The connections of one producer have an order too: see `coordinator.py`.
- While a transaction's markers are not all written, no new transaction begins.
- An instance that takes over aborts the open transaction of its predecessor, with an epoch in
  between that no producer gets, and must ask again.
- When the epochs of a producer id are used up, the next epoch is the first of a new id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.transactions.state import (
    ENDINGS,
    EPOCH_MAX,
    IDLE,
    NEXT,
    OUTCOMES,
    Facts,
    Producer,
    State,
)


def _moved(facts: Facts, state: State, now_ms: int, **changes: Any) -> Facts:
    assert state in NEXT[facts.state], f"{facts.state} does not lead to {state}"
    return msgspec.structs.replace(facts, state=state, updated_ms=now_ms, **changes)


def check_owner(facts: Facts, producer: Producer) -> None:
    """Refuse a producer that is not the current one."""
    if producer.id != facts.producer_id:
        raise KafkaError(
            ErrorCode.invalid_producer_id_mapping,
            f"the transactional id belongs to producer {facts.producer_id}, not {producer.id}",
        )
    if producer.epoch != facts.epoch:
        raise KafkaError(
            ErrorCode.producer_fenced,
            f"producer {producer.id} has epoch {facts.epoch} now, {producer.epoch} is over",
        )


# -- a producer begins


def first_producer(producer_id: int, timeout_ms: int, now_ms: int) -> Facts:
    """The facts of a new transactional id."""
    return Facts(producer_id, 0, State.EMPTY, timeout_ms, now_ms)


def next_producer(
    facts: Facts,
    expected: Producer | None,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Facts:
    """A new epoch, or the abort of an open transaction (then the caller has to ask again).

    `expected` is the caller's current id and epoch; None for a new instance, which fences everyone.
    """
    asked_again = _check_expected(facts, expected)
    if facts.state in OUTCOMES:
        raise _under_way(facts)
    if facts.state is State.ONGOING:
        return fenced(facts, now_ms, replaced=expected)
    producer = facts.producer
    if producer.epoch >= EPOCH_MAX - 1 and (not asked_again or producer.epoch == EPOCH_MAX):
        producer = Producer(new_producer_id(), 0)
    elif not asked_again:
        producer = Producer(producer.id, producer.epoch + 1)
    return _moved(
        facts,
        State.EMPTY,
        now_ms,
        producer_id=producer.id,
        epoch=producer.epoch,
        timeout_ms=timeout_ms,
        replaced=expected,
    )


def _check_expected(facts: Facts, expected: Producer | None) -> bool:
    """Whether the caller repeats a request that was answered already."""
    if expected is None or expected == facts.producer:
        return False
    if expected == facts.replaced and facts.state is not State.ONGOING:
        return True
    raise KafkaError(
        ErrorCode.producer_fenced,
        f"producer {expected.id} with epoch {expected.epoch} was fenced: the transactional id is"
        f" with producer {facts.producer_id}, epoch {facts.epoch}",
    )


def fenced(facts: Facts, now_ms: int, replaced: Producer | None = None) -> Facts:
    """Abort the open transaction under an epoch that fences its producer."""
    assert facts.epoch < EPOCH_MAX, "the last epoch is kept for this"
    return _moved(facts, State.PREPARE_ABORT, now_ms, epoch=facts.epoch + 1, replaced=replaced)


def aborted(facts: Facts, now_ms: int) -> Facts:
    """What somebody who is not the producer aborts: its epoch is over, too."""
    if facts.state is not State.ONGOING:
        raise KafkaError(
            ErrorCode.invalid_txn_state, f"no transaction is open: the state is {facts.state}"
        )
    return fenced(facts, now_ms)


# -- a transaction


def added(
    facts: Facts,
    partitions: frozenset[tuple[str, int]],
    groups: frozenset[str],
    now_ms: int,
    *,
    partitions_max: int,
) -> Facts:
    """The transaction with more partitions and groups; the first addition begins it."""
    if facts.state in OUTCOMES:
        raise _under_way(facts)
    if facts.state is State.ONGOING:
        partitions, groups = facts.partitions | partitions, facts.groups | groups
        if partitions == facts.partitions and groups == facts.groups:
            return facts
        started_ms = facts.started_ms
    else:
        started_ms = now_ms
    if len(partitions) + len(groups) > partitions_max:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"a transaction may touch {partitions_max} partitions and groups at most",
        )
    return _moved(
        facts,
        State.ONGOING,
        now_ms,
        partitions=partitions,
        groups=groups,
        started_ms=started_ms,
        replaced=None,  # it has its answer, or it would not go on
    )


def ended(facts: Facts, now_ms: int, *, commit: bool) -> Facts:
    """The transaction with its outcome; the same facts when it has this outcome already."""
    what = ENDINGS[facts.state, commit]
    if isinstance(what, State):
        return _moved(facts, what, now_ms)
    if what is ErrorCode.none:
        return facts
    wish = "commit" if commit else "abort"
    raise KafkaError(what, f"there is nothing to {wish}: the transaction is {facts.state}")


def completed(facts: Facts, now_ms: int) -> Facts:
    """Every marker is written."""
    _marker, state = OUTCOMES[facts.state]
    return _moved(facts, state, now_ms, partitions=frozenset(), groups=frozenset())


def forgotten(facts: Facts, now_ms: int) -> Facts:
    """The facts of a transactional id that is given up."""
    return _moved(facts, State.DEAD, now_ms)


def is_forgettable(facts: Facts, before_ms: int) -> bool:
    """Whether nothing is under way and nothing has happened since `before_ms`."""
    return facts.state in IDLE and facts.updated_ms < before_ms


def check_writable(facts: Facts, producer: Producer, outside: ErrorCode) -> None:
    """Refuse a write that belongs to no transaction under way (KIP-890)."""
    try:
        check_owner(facts, producer)
    except KafkaError as error:
        if error.code is ErrorCode.producer_fenced:
            # Produce has no code for fenced producers.
            raise KafkaError(ErrorCode.invalid_producer_epoch, str(error)) from None
        raise
    if facts.state is not State.ONGOING:
        raise KafkaError(
            outside,
            f"producer {producer.id} has no transaction open, it is {facts.state}",
        )


def _under_way(facts: Facts) -> KafkaError:
    return KafkaError(
        ErrorCode.concurrent_transactions,
        f"the transaction before is still {facts.state}; try again",
    )
