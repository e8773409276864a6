"""The private link request on the wire: what its answers say, and that no other client sees it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from onelog.protocols.kafka.apis import PRIVATE, ApiKey
from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.support.kafka_txn_talk import Talk

E = ErrorCode


@pytest.fixture
def talk(kafka_onelog: KafkaOnelog) -> Iterator[Talk]:
    with Talk(kafka_onelog.port) as made:
        yield made


def test_a_batch_of_two_tasks_is_linked_over_another_connection(
    kafka_onelog: KafkaOnelog, talk: Talk
):
    query, topic = unique("q"), talk.topic(unique())
    names = [f"~link/{query}/0/{task}" for task in range(2)]
    members = {name: talk.stage(name, topic, b"v", 0, 1) for name in names}
    assert talk.latest(topic, committed=True) == 0
    with Talk(kafka_onelog.port) as driver:
        assert driver.link(query, 0, members) == {"error": 0, "outcome": "linked"}
        assert driver.latest(topic, committed=True) == 4, "two records and two markers"
        assert driver.link(query, 0, members) == {"error": 0, "outcome": "already"}
        assert driver.link(query, 0, members, commit=False) == {"error": 0, "outcome": "aborted"}
    assert talk.state(names[0]).error_code is E.transactional_id_not_found


def test_what_is_wrong_is_said_and_the_connection_goes_on(talk: Talk):
    query = unique("q")
    answer = talk.link(query, 0, {f"~link/{query}/0/x": (5, 0)})
    assert answer["error"] == E.invalid_producer_id_mapping
    assert "run the batch again" in answer["message"]
    for body in (b"", b"not json", b'{"query": 1}', b"\xff\xfe"):
        answer = json.loads(talk.wire.ask_bytes(ApiKey.LINK, body))
        assert answer["error"] == E.invalid_request
        assert "cannot be read" in answer["message"]
    assert talk.link(query, 0, {}) == {"error": 0, "outcome": "linked"}


def test_an_id_of_a_member_has_a_form(talk: Talk):
    assert talk.init("~link/nonsense").error_code is E.invalid_request


def test_a_member_is_not_committed_alone(talk: Talk):
    query, topic = unique("q"), talk.topic(unique())
    name = f"~link/{query}/0/x"
    producer = talk.stage(name, topic, b"v", 0)
    assert talk.end(name, producer, commit=True) is E.invalid_txn_state
    assert talk.end(name, producer, commit=False) is E.none


def test_no_other_client_is_told_of_private_requests(talk: Talk):
    told = {row.api_key for row in talk.wire.ask(ApiKey.API_VERSIONS, 0).api_keys}
    assert told
    assert not told & PRIVATE.keys()
    assert min(PRIVATE) > max(told) + 1000


def test_another_version_of_it_ends_the_connection(talk: Talk):
    head = struct.pack(">hhih", ApiKey.LINK, 1, 1, -1)
    talk.wire._socket.sendall(struct.pack(">i", len(head)) + head)
    with pytest.raises(ConnectionResetError):
        talk.wire._read(4)
