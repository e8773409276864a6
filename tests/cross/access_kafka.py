"""What Kafka clients ask of topics, as rows of the table of operations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from onelog.broker import Durability, StreamConfig
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from onelog.record.batch import build_batch
from onelog.record.headers import Headers
from tests.cross.access_table import YES, Act, numbers, operation
from tests.support.access import House
from tests.support.kafka_wire import Wire

K, E = ApiKey, ErrorCode
AUTHORISATION = (
    E.topic_authorization_failed,
    E.group_authorization_failed,
    E.transactional_id_authorization_failed,
    E.cluster_authorization_failed,
)
HIDDEN = "not listed"


async def _topic(house: House, *captures: str) -> None:
    name = captures[0].replace("/", ".")
    if house.broker.streams.find(name) is None:
        await house.broker.streams.create(
            StreamConfig(name=name, captures=captures, partitions=1, durability=Durability.OS)
        )


class NotingWire(Wire):
    """Notes what it was asked for."""

    asked: ApiKey | None = None

    def _send(self, key: ApiKey, version: int, data: bytes) -> None:
        self.asked = key
        super()._send(key, version, data)


def kafka(
    uses: ApiKey,
    refused: object,
    *rights: str,
    given: tuple[str, ...] = (),
    topics: tuple[str, ...] = ("a/b",),
    before: Callable[[Wire], object] | None = None,
) -> Any:
    """A request, as a function of the wire; it answers an error code, or a yes or no.

    What it needs to be there is made `before`, while everything is open.
    """

    def keep(request: Callable[[Wire], Any]) -> Any:
        async def begin(house: House) -> Act:
            for name in topics:
                await _topic(house, name)
            wire = await asyncio.to_thread(NotingWire, house.ports["kafka"])
            house.at_end.append(wire.close)
            if before is not None:
                await asyncio.to_thread(before, wire)

            async def act() -> object:
                code = await asyncio.to_thread(request, wire)
                assert wire.asked is uses
                if isinstance(code, bool):
                    return YES if code else HIDDEN
                return code if code in AUTHORISATION else YES

            return act

        begin.__name__ = request.__name__
        return operation("kafka", uses, refused, *rights, given=given)(begin)

    return keep


def ask(wire: Wire, api: ApiKey, version: int, /, **body: Any) -> Any:
    return wire.ask(api, min(version, APIS[api].last), **body)


def _produce(wire: Wire, topic: str, headers: Headers = (), codec: int = 0) -> ErrorCode:
    batch = build_batch([(None, b"k", b"v", headers, 1_700_000_000_000)], codec=codec)
    answer = ask(
        wire,
        K.PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=5000,
        topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
    )
    return answer.responses[0].partition_responses[0].error_code


@kafka(K.PRODUCE, E.topic_authorization_failed, "publish topic:a/b")
def kafka_produce(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b")


@kafka(K.PRODUCE, E.topic_authorization_failed, "publish prefix:m/")
def kafka_produce_through_a_view(wire: Wire) -> ErrorCode:
    return _produce(wire, "m.t")


@kafka(K.PRODUCE, E.topic_authorization_failed, "publish prefix:no/")
def kafka_produce_to_no_topic(wire: Wire) -> ErrorCode:
    return _produce(wire, "no.such.topic")


_WRITES = ("publish topic:a/b",)


@kafka(K.PRODUCE, E.topic_authorization_failed, "publish topic:further/+", given=_WRITES)
def kafka_produce_with_a_further_key(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b", ((b"~bc", b'["further.key"]'),))


@kafka(K.PRODUCE, E.topic_authorization_failed, "publish topic:further/+", given=_WRITES)
def kafka_produce_with_a_further_key_that_is_compressed(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b", ((b"~bc", b'["further.key"]'),), codec=1)


@kafka(K.PRODUCE, E.topic_authorization_failed, "consume cursor:queue/q", given=_WRITES)
def kafka_produce_that_leaves_a_queue_out(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b", ((b"~nq", b'["q"]'),))


@kafka(K.PRODUCE, E.topic_authorization_failed, "consume cursor:session/c1", given=_WRITES)
def kafka_produce_as_a_client_of_mqtt(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b", ((b"~nl", b"c1"),))


@kafka(K.PRODUCE, E.topic_authorization_failed, "admin server:impersonation", given=_WRITES)
def kafka_produce_as_another_user(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b", ((b"~ui", b"boss"),))


def _fetch(wire: Wire, topic: str) -> ErrorCode:
    part = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "log_start_offset": -1,
        "partition_max_bytes": 1000,
    }
    answer = ask(
        wire,
        K.FETCH,
        11,
        replica_id=-1,
        max_wait=1,
        min_bytes=0,
        max_bytes=1000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [part]}],
        forgotten_topics_data=[],
        rack_id="",
    )
    return answer.responses[0].partitions[0].error_code


@kafka(K.FETCH, E.topic_authorization_failed, "subscribe topic:a/#")
def kafka_fetch(wire: Wire) -> ErrorCode:
    return _fetch(wire, "a.b")


@kafka(K.FETCH, E.topic_authorization_failed, "subscribe topic:s/#")
def kafka_fetch_of_a_view(wire: Wire) -> ErrorCode:
    return _fetch(wire, "s._x2B_.t")


@kafka(K.METADATA, E.topic_authorization_failed, "subscribe topic:a/b")
def kafka_metadata_of_a_topic(wire: Wire) -> ErrorCode:
    body = {"topics": [{"name": "a.b"}], "allow_auto_topic_creation": False}
    return ask(wire, K.METADATA, 4, **body).topics[0].error_code


@kafka(K.METADATA, E.topic_authorization_failed, "create prefix:made")
def kafka_metadata_that_makes_a_topic(wire: Wire) -> ErrorCode:
    body = {"topics": [{"name": f"made-{next(numbers)}"}], "allow_auto_topic_creation": True}
    return ask(wire, K.METADATA, 4, **body).topics[0].error_code


@kafka(K.METADATA, HIDDEN, "publish topic:a/b")
def kafka_metadata_of_all_topics(wire: Wire) -> bool:
    found = ask(wire, K.METADATA, 4, topics=None, allow_auto_topic_creation=False).topics
    return "a.b" in {row.name for row in found}


@kafka(K.LIST_OFFSETS, E.topic_authorization_failed, "subscribe topic:a/b")
def kafka_list_offsets(wire: Wire) -> ErrorCode:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": "a.b", "partitions": [part]}]
    answer = ask(wire, K.LIST_OFFSETS, 4, replica_id=-1, isolation_level=0, topics=topics)
    return answer.topics[0].partitions[0].error_code


@kafka(K.OFFSET_FOR_LEADER_EPOCH, E.topic_authorization_failed, "subscribe topic:a/b")
def kafka_offset_for_leader_epoch(wire: Wire) -> ErrorCode:
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    topics = [{"topic": "a.b", "partitions": [part]}]
    answer = ask(wire, K.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics)
    return answer.topics[0].partitions[0].error_code


@kafka(K.DESCRIBE_TOPIC_PARTITIONS, E.topic_authorization_failed, "publish topic:a/b")
def kafka_describe_topic_partitions(wire: Wire) -> ErrorCode:
    body = {"topics": [{"name": "a.b"}], "response_partition_limit": 10, "cursor": None}
    return ask(wire, K.DESCRIBE_TOPIC_PARTITIONS, 0, **body).topics[0].error_code


@kafka(K.DESCRIBE_TOPIC_PARTITIONS, HIDDEN, "publish topic:a/b")
def kafka_describe_partitions_of_all_topics(wire: Wire) -> bool:
    body = {"topics": [], "response_partition_limit": 10, "cursor": None}
    found = ask(wire, K.DESCRIBE_TOPIC_PARTITIONS, 0, **body).topics
    return "a.b" in {row.name for row in found}


@kafka(
    K.DESCRIBE_PRODUCERS,
    E.topic_authorization_failed,
    "subscribe topic:a/b",
    given=("publish topic:a/b",),
)
def kafka_describe_producers(wire: Wire) -> ErrorCode:
    """To see the topic is not enough, as in Kafka: the ids of other producers are told."""
    topics = [{"name": "a.b", "partition_indexes": [0]}]
    answer = ask(wire, K.DESCRIBE_PRODUCERS, 0, topics=topics)
    return answer.topics[0].partitions[0].error_code


def ask_privately(wire: Wire, api: ApiKey, **body: Any) -> ErrorCode:
    """The code of a private request's answer."""
    return ErrorCode(json.loads(wire.ask_bytes(api, json.dumps(body).encode()))["error"])


@kafka(
    K.COLD,
    E.topic_authorization_failed,
    "subscribe topic:a/b",
    given=("publish topic:a/b", "configure topic:a/b"),
)
def kafka_cold(wire: Wire) -> ErrorCode:
    """To see the topic is not enough."""
    return ask_privately(wire, K.COLD, topic="a.b", partition=0)


@kafka(K.NAMES, E.topic_authorization_failed, "publish topic:a/b")
def kafka_names_of_a_topic(wire: Wire) -> ErrorCode:
    return ask_privately(wire, K.NAMES, topic="a.b")


@kafka(K.NAMES, E.topic_authorization_failed, "publish topic:a/b")
def kafka_names_of_a_stream(wire: Wire) -> ErrorCode:
    return ask_privately(wire, K.NAMES, stream="a.b")
