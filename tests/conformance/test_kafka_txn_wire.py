"""Every version of the transactional requests, byte for byte, and what each refuses."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial.errors import OutOfBoundValue

from onelog.protocols.kafka.apis import ApiKey
from tests.conformance.kafka_brokers import KafkaOnelog, KafkaServer, unique
from tests.support.kafka_txn_talk import Talk

E = ErrorCode
K = ApiKey


@pytest.fixture
def dial(kafka_node: KafkaServer) -> Iterator[Callable[..., Talk]]:
    """Open connections that speak one version; they are closed at the end."""
    with contextlib.ExitStack() as opened:
        yield lambda *version: opened.enter_context(Talk(kafka_node.port, *version))


@pytest.fixture
def talk(dial) -> Talk:
    return dial()


@pytest.mark.parametrize("version", range(6))
def test_a_transaction_at_every_version(dial, version: int):
    talk = dial(version)
    name, group, topic = unique("txn"), unique("g"), talk.topic(unique())
    for number, commit in enumerate((False, True)):
        producer = talk.producer(name)
        assert set(talk.add(name, producer, **{topic: [0, 1]}).values()) == {E.none}
        assert talk.produce(name, producer, topic, b"v") is E.none
        assert talk.add_offsets(name, producer, group) is E.none
        assert talk.commit_offset(name, producer, group, topic, 10 + number) is E.none
        assert talk.latest(topic, committed=True) == number * 2
        assert talk.latest(topic, committed=False) == number * 2 + 1
        assert talk.state(name).transaction_state == "Ongoing"
        talk.ended(name, producer, commit=commit)
        assert talk.latest(topic, committed=True) == number * 2 + 2
    assert talk.offset(group, topic) == 11


@pytest.mark.parametrize("version", range(6))
def test_a_producer_without_a_transactional_id_at_every_version(dial, version: int):
    talk = dial(version)
    first, second = talk.producer(None), talk.producer(None)
    assert first[1] == second[1] == 0
    assert first[0] != second[0]


@pytest.mark.parametrize(
    ("version", "told"), [(0, E.invalid_producer_epoch), (5, E.producer_fenced)]
)
def test_a_fenced_producer_is_told_in_the_words_of_its_version(dial, version, told):
    talk = dial(version)
    name, topic = unique("txn"), talk.topic(unique())
    old = talk.producer(name)
    assert talk.producer(name) == (old[0], old[1] + 1)
    assert talk.add(name, old, **{topic: [0]}) == {(topic, 0): told}
    assert talk.add_offsets(name, old, "g") is told
    assert talk.end(name, old, commit=True) is told
    assert talk.produce(name, old, topic, b"v") is E.invalid_producer_epoch
    assert talk.commit_offset(name, old, "g", topic, 1) is E.invalid_producer_epoch


def test_a_producer_bumps_its_epoch_and_a_zombie_cannot(talk: Talk):
    """KIP-360"""
    name = unique("txn")
    first = talk.producer(name)
    bumped = talk.init(name, expected=first)
    assert (bumped.producer_id, bumped.producer_epoch) == (first[0], first[1] + 1)
    again = talk.init(name, expected=first)
    assert again == bumped
    talk.producer(name)
    assert talk.init(name, expected=first).error_code is E.producer_fenced
    assert talk.init(name, expected=(first[0], -1)).error_code is E.invalid_request
    assert talk.init("", 1000).error_code is E.invalid_request


def test_timeouts_beyond_the_limit_are_refused(talk: Talk):
    for timeout_ms in (0, 900_001, 2**31 - 1):
        answer = talk.init(unique("txn"), timeout_ms)
        assert answer.error_code is E.invalid_transaction_timeout
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
    assert talk.init(None, 2**31 - 1).error_code is E.none


def test_partitions_are_added_together_or_not_at_all(talk: Talk):
    name, topic = unique("txn"), talk.topic(unique())
    producer = talk.producer(name)
    answer = talk.add(name, producer, **{topic: [0, 7], "missing-topic": [0]})
    assert answer == {
        (topic, 0): E.operation_not_attempted,
        (topic, 7): E.unknown_topic_or_partition,
        ("missing-topic", 0): E.unknown_topic_or_partition,
    }
    assert talk.end(name, producer, commit=True) is E.invalid_txn_state, "nothing was begun"


@pytest.mark.parametrize(
    ("version", "told"), [(3, E.invalid_txn_state), (11, E.transaction_abortable)]
)
def test_a_write_outside_its_transaction_is_refused(dial, version: int, told: ErrorCode):
    """KIP-890"""
    talk = dial(version)
    name, topic = unique("txn"), talk.topic(unique())
    producer = talk.producer(name)
    assert talk.produce(name, producer, topic, b"early") is told
    talk.add(name, producer, **{topic: [0]})
    assert talk.produce(name, producer, topic, b"other", partition=1) is told
    assert talk.commit_offset(name, producer, "g", topic, 1) is told
    assert talk.produce(name, producer, topic, b"now") is E.none
    talk.ended(name, producer)
    assert talk.produce(name, producer, topic, b"late", sequence=1) is told
    assert talk.produce(None, producer, topic, b"late", sequence=1) is (
        E.transactional_id_authorization_failed
    )
    assert talk.produce("nobody", producer, topic, b"late") is E.invalid_producer_id_mapping
    assert talk.latest(topic, committed=False) == 2
    assert talk.end("nobody", producer, commit=True) is E.invalid_producer_id_mapping


def test_a_sequence_that_an_ended_transaction_had_is_not_answered_as_its_repeat(
    kafka_onelog: KafkaOnelog,
):
    """librdkafka aborts what it has sent without an answer, and gives the number to the next."""
    name = unique("txn")
    with Talk(kafka_onelog.port) as talk:
        topic, producer = talk.topic(unique()), talk.producer(name)
        talk.add(name, producer, **{topic: [0]})
        assert talk.produce(name, producer, topic, b"aborted") is E.none
        talk.ended(name, producer, commit=False)
        talk.add(name, producer, **{topic: [0]})
        assert talk.produce(name, producer, topic, b"next") is E.unknown_producer_id
        talk.ended(name, producer, commit=False)
        bumped = talk.init(name, expected=producer)
        after = (bumped.producer_id, bumped.producer_epoch)
        talk.add(name, after, **{topic: [0]})
        for _ in range(2):  # once more is a repeat
            assert talk.produce(name, after, topic, b"next") is E.none
        talk.ended(name, after)
        assert talk.latest(topic, committed=True) == 5, "two records, three markers"


def test_an_end_over_an_old_connection_does_not_end_the_next_transaction(
    kafka_node: KafkaServer, dial, talk: Talk
):
    """KIP-890: what a client gave up on arrives when it has gone on over a new connection.

    Apache Kafka ends the wrong transaction here, unless the client speaks transactions version 2.
    """
    name, topic = unique("txn"), talk.topic(unique())
    producer = talk.producer(name)
    talk.add(name, producer, **{topic: [0]})
    newer = dial()
    newer.ended(name, producer)
    assert newer.add(name, producer, **{topic: [0]}) == {(topic, 0): E.none}
    if kafka_node.name != "onelog":
        assert talk.end(name, producer, commit=True) is E.none
        return
    assert talk.end(name, producer, commit=True) is E.invalid_txn_state
    assert talk.add(name, producer, **{topic: [1]}) == {(topic, 1): E.invalid_txn_state}
    assert newer.state(name).transaction_state == "Ongoing"
    newer.ended(name, producer, commit=False)


def test_taking_over_aborts_what_was_open(talk: Talk):
    name, topic = unique("txn"), talk.topic(unique())
    old = talk.producer(name)
    talk.add(name, old, **{topic: [0]})
    talk.produce(name, old, topic, b"v")
    assert talk.init(name).error_code is E.concurrent_transactions
    while (answer := talk.init(name)).error_code is E.concurrent_transactions:
        pass
    assert (answer.producer_id, answer.producer_epoch) == (old[0], old[1] + 2)
    assert talk.latest(topic, committed=True) == 2


def test_an_outcome_is_not_turned_around(talk: Talk):
    name, topic = unique("txn"), talk.topic(unique())
    producer = talk.producer(name)
    assert talk.end(name, producer, commit=True) is E.invalid_txn_state
    talk.add(name, producer, **{topic: [0]})
    talk.ended(name, producer)
    assert talk.end(name, producer, commit=False) is E.invalid_txn_state


def test_offsets_of_a_stranger_to_the_group_are_refused(talk: Talk):
    name, group, topic = unique("txn"), unique("g"), talk.topic(unique())
    producer = talk.producer(name)
    talk.add_offsets(name, producer, group)
    for rest in ({"member": "m", "generation": 3}, {"generation": 1}):
        told = talk.commit_offset(name, producer, group, topic, 5, **rest)
        assert told in (E.illegal_generation, E.unknown_member_id)
    talk.ended(name, producer)
    assert talk.offset(group, topic) == -1


def test_the_name_of_a_group_is_bounded(kafka_onelog: KafkaOnelog):
    """I8; Apache Kafka takes any."""
    with Talk(kafka_onelog.port) as talk:
        name = unique("txn")
        producer = talk.producer(name)
        assert talk.add_offsets(name, producer, "g" * 1025) is E.invalid_group_id


# -- what is told of it


def test_transactions_are_listed_by_state_producer_and_age(talk: Talk):
    open_name, idle_name, topic = unique("txn"), unique("txn"), talk.topic(unique())
    producer, idle = talk.producer(open_name), talk.producer(idle_name)
    talk.add(open_name, producer, **{topic: [1]})

    def listed(**filters: Any) -> set[str]:
        asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
        answer = talk.ask(K.LIST_TRANSACTIONS, **asked)
        assert answer.error_code is E.none
        rows = {row.transactional_id: row for row in answer.transaction_states}
        return rows.keys() & {open_name, idle_name}

    assert listed() == {open_name, idle_name}
    assert listed(state_filters=["Ongoing"]) == {open_name}
    assert listed(state_filters=["Empty", "Nonsense"]) == {idle_name}
    assert listed(producer_id_filters=[idle[0]]) == {idle_name}
    assert listed(state_filters=["Ongoing"], duration_filter=3_600_000) == set()
    assert listed(state_filters=["Ongoing"], producer_id_filters=[idle[0]]) == set()
    answer = talk.ask(
        K.LIST_TRANSACTIONS,
        state_filters=["Nonsense"],
        producer_id_filters=[],
        duration_filter=-1,
    )
    assert (answer.unknown_state_filters, answer.transaction_states) == (("Nonsense",), ())


def test_a_transaction_is_described(talk: Talk):
    name, topic = unique("txn"), talk.topic(unique())
    producer = talk.producer(name)
    with pytest.raises(OutOfBoundValue):  # -1, as in Kafka: kio knows no time before 1970
        talk.state(name)
    talk.add(name, producer, **{topic: [0, 1]})
    row = talk.state(name)
    assert row.error_code is E.none
    assert (row.producer_id, row.producer_epoch) == producer
    assert row.transaction_state == "Ongoing"
    assert row.transaction_timeout == datetime.timedelta(minutes=1)
    assert [(held.topic, sorted(held.partitions)) for held in row.topics] == [(topic, [0, 1])]
    assert row.transaction_start_time.year >= 2024
    assert talk.state("nobody").error_code is E.transactional_id_not_found
    assert talk.state("").error_code is E.invalid_request


def test_producers_of_a_partition_are_described(talk: Talk):
    name, topic = unique("txn"), talk.topic(unique())
    producer = talk.producer(name)
    talk.add(name, producer, **{topic: [0]})
    talk.produce(name, producer, topic, b"v")
    answer = talk.ask(
        K.DESCRIBE_PRODUCERS,
        topics=[
            {"name": topic, "partition_indexes": [0, 1, 9]},
            {"name": "missing-topic", "partition_indexes": [0]},
        ],
    )
    used, unused, beyond = answer.topics[0].partitions
    (row,) = used.active_producers
    assert (row.producer_id, row.producer_epoch) == producer
    assert (row.last_sequence, row.current_txn_start_offset) == (0, 0)
    assert (unused.error_code, unused.active_producers) == (E.none, ())
    assert beyond.error_code is E.unknown_topic_or_partition
    assert answer.topics[1].partitions[0].error_code is E.unknown_topic_or_partition
