"""Operations of every protocol, the rights that each needs, and how each says that it may not.

Each operation can be done again and again on what its `begin` opened, so that rules may change
while something is open. It answers `YES`, or what the protocol said.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from onelog.broker import LOCAL, Durability, Message, StreamConfig
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.mqtt.packets import Connack, Connect, Publish
from onelog.protocols.mqtt.properties import Properties
from onelog.record.batch import build_batch
from onelog.record.headers import Headers
from tests.conformance.amqp_raw import Exchange, Queue, Raw, RawChannel, Refused, Tx
from tests.support.access import House
from tests.support.kafka_wire import Wire
from tests.support.mqtt import Client, connect, dial, until

K, E = ApiKey, ErrorCode
YES = "yes"
_numbers = itertools.count(1)

Act = Callable[[], Awaitable[object]]


@dataclass
class Operation:
    """Something that needs rights."""

    protocol: str
    name: str
    rights: tuple[str, ...]
    """What it needs: rules without `allow` and whom. Each of them is needed."""
    refused: object
    begin: Callable[[House], Awaitable[Act]]
    given: tuple[str, ...] = ()
    """Rights that it always has."""


OPERATIONS: list[Operation] = []


def operation(
    protocol: str, refused: object, *rights: str, given: tuple[str, ...] = ()
) -> Callable[[Any], Any]:
    """Put an operation into the table; its name is the function's."""

    def keep(begin: Callable[[House], Awaitable[Act]]) -> Callable[[House], Awaitable[Act]]:
        name = begin.__name__.removeprefix(f"{protocol}_")
        OPERATIONS.append(Operation(protocol, name, rights, refused, begin, given))
        return begin

    return keep


# -- MQTT

NOT_AUTHORIZED = 0x87
SILENCE = "nothing came"


async def _mqtt(house: House, **options: Any) -> Client:
    client = await connect(house.ports["mqtt"], f"c{next(_numbers)}", **options)
    house.at_end.append(client._writer.close)
    return client


def _told(code: int) -> object:
    return YES if code < 0x80 else code


@operation("mqtt", NOT_AUTHORIZED, "publish topic:a/+")
async def mqtt_publish_at_qos_1(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.publish("a/b", "x"))

    return act


@operation("mqtt", NOT_AUTHORIZED, "publish prefix:a/")
async def mqtt_publish_at_qos_2(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.publish("a/b", "x", qos=2))

    return act


@operation("mqtt", SILENCE, "publish topic:a/b")
async def mqtt_publish_at_qos_0(house: House) -> Act:
    """Nobody is told; the message is not there."""
    client = await _mqtt(house)

    async def act() -> object:
        before = _ends(house)
        await client.publish("a/b", "x", qos=0)
        await client.sync()
        return YES if _ends(house) != before else SILENCE

    return act


def _ends(house: House) -> int:
    return sum(
        int(row.ends().high_watermark) for row in house.broker.streams.get("main").partitions
    )


@operation("mqtt", NOT_AUTHORIZED, "publish topic:a/b")
async def mqtt_delayed_publish(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.publish("$delayed/3600/a/b", "x"))

    return act


@operation("mqtt", NOT_AUTHORIZED, "subscribe topic:a/#")
async def mqtt_subscribe(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.subscribe("a/+", 1))

    return act


@operation("mqtt", NOT_AUTHORIZED, "subscribe topic:a/#")
async def mqtt_replay(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.subscribe("$replay/latest/a/+", 1))

    return act


@operation("mqtt", NOT_AUTHORIZED, "subscribe topic:a/#", "consume cursor:share/g")
async def mqtt_share(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.subscribe("$share/g/a/+", 1))

    return act


@operation("mqtt", NOT_AUTHORIZED, "consume cursor:session/kept-*")
async def mqtt_kept_session(house: House) -> Act:
    async def act() -> object:
        client, code = await _knock(house, f"kept-{next(_numbers)}")
        await client.drop()
        return _told(code)

    return act


async def _knock(house: House, client_id: str) -> tuple[Client, int]:
    """Ask for a session that is kept, or for the one that was; the code of the answer."""
    reader, writer = await dial(house.ports["mqtt"])
    client = Client(reader, writer, 5)
    await client.send(
        Connect(
            client_id=client_id,
            version=5,
            clean_start=False,
            keep_alive_s=60,
            properties=Properties(session_expiry_s=600),
        )
    )
    return client, int((await client.receive(Connack)).reason)


async def _arrives(client: Client, house: House) -> object:
    await house.broker.publish(Message("a/b", b"x"), principal=LOCAL)
    await client.sync()
    found = [packet for packet in client._arrived if isinstance(packet, Publish)]
    for packet in found:
        client._arrived.remove(packet)
        await client.acknowledge(packet)
    return YES if found else SILENCE


@operation("mqtt", SILENCE, "subscribe topic:a/b")
async def mqtt_delivery_to_an_open_subscription(house: House) -> Act:
    client = await _mqtt(house)
    await client.subscribe("#", 1)
    return lambda: _arrives(client, house)


@operation("mqtt", SILENCE, "subscribe topic:a/b", "consume cursor:session/c*")
async def mqtt_delivery_to_a_session_that_was_away(house: House) -> Act:
    name = f"c{next(_numbers)}"
    first = await connect(house.ports["mqtt"], name, expiry_s=600)
    await first.subscribe("#", 1)
    await first.drop()
    await until(lambda: name not in house.servers["mqtt"]._hub.sessions)

    async def act() -> object:
        await house.broker.publish(Message("a/b", b"x"), principal=LOCAL)
        client, code = await _knock(house, name)
        if code:
            await client.drop()
            return SILENCE
        session = house.servers["mqtt"]._hub.sessions[name]
        await until(lambda: session.output.live)  # it has read what it missed
        await client.sync()
        found = [packet for packet in client._arrived if isinstance(packet, Publish)]
        for packet in found:
            await client.acknowledge(packet)
        await client.sync()
        await client.drop()
        await until(lambda: name not in house.servers["mqtt"]._hub.sessions)
        return YES if found else SILENCE

    return act


@operation("mqtt", SILENCE, "subscribe topic:kept/t")
async def mqtt_retained_message(house: House) -> Act:
    publisher, client = await _mqtt(house), await _mqtt(house)
    await publisher.publish("kept/t", "x", retain=True)
    await client.subscribe("#", 0)

    async def act() -> object:
        await client.unsubscribe("kept/#")
        code = await client.subscribe("kept/#", 0)
        await client.sync()
        found = [packet for packet in client._arrived if isinstance(packet, Publish)]
        for packet in found:
            client._arrived.remove(packet)
        return YES if found and code < 0x80 else SILENCE

    return act


# -- Kafka

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


def kafka(
    refused: object,
    *rights: str,
    given: tuple[str, ...] = (),
    topics: tuple[str, ...] = ("a/b",),
) -> Any:
    """A request, as a function of the wire; it answers an error code, or a yes or no."""

    def keep(request: Callable[[Wire], Any]) -> Any:
        async def begin(house: House) -> Act:
            for name in topics:
                await _topic(house, name)
            wire = await asyncio.to_thread(Wire, house.ports["kafka"])
            house.at_end.append(wire.close)

            async def act() -> object:
                code = await asyncio.to_thread(request, wire)
                if isinstance(code, bool):
                    return YES if code else HIDDEN
                return code if code in AUTHORISATION else YES

            return act

        begin.__name__ = request.__name__
        return operation("kafka", refused, *rights, given=given)(begin)

    return keep


def _ask(wire: Wire, api: ApiKey, version: int, /, **body: Any) -> Any:
    return wire.ask(api, min(version, APIS[api].last), **body)


def _produce(wire: Wire, topic: str, headers: Headers = (), codec: int = 0) -> ErrorCode:
    batch = build_batch([(None, b"k", b"v", headers, 1_700_000_000_000)], codec=codec)
    answer = _ask(
        wire,
        K.PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=5000,
        topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
    )
    return answer.responses[0].partition_responses[0].error_code


@kafka(E.topic_authorization_failed, "publish topic:a/b")
def kafka_produce(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b")


@kafka(E.topic_authorization_failed, "publish prefix:m/")
def kafka_produce_through_a_view(wire: Wire) -> ErrorCode:
    return _produce(wire, "m.t")


@kafka(E.topic_authorization_failed, "publish prefix:no/")
def kafka_produce_to_no_topic(wire: Wire) -> ErrorCode:
    return _produce(wire, "no.such.topic")


_WRITES = ("publish topic:a/b",)


@kafka(E.topic_authorization_failed, "publish topic:further/+", given=_WRITES)
def kafka_produce_with_a_further_key(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b", ((b"~bc", b'["further.key"]'),))


@kafka(E.topic_authorization_failed, "publish topic:further/+", given=_WRITES)
def kafka_produce_with_a_further_key_that_is_compressed(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b", ((b"~bc", b'["further.key"]'),), codec=1)


@kafka(E.topic_authorization_failed, "consume cursor:queue/q", given=_WRITES)
def kafka_produce_that_leaves_a_queue_out(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b", ((b"~nq", b'["q"]'),))


@kafka(E.topic_authorization_failed, "consume cursor:session/c1", given=_WRITES)
def kafka_produce_as_a_client_of_mqtt(wire: Wire) -> ErrorCode:
    return _produce(wire, "a.b", ((b"~nl", b"c1"),))


@kafka(E.topic_authorization_failed, "admin server:impersonation", given=_WRITES)
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
    answer = _ask(
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


@kafka(E.topic_authorization_failed, "subscribe topic:a/#")
def kafka_fetch(wire: Wire) -> ErrorCode:
    return _fetch(wire, "a.b")


@kafka(E.topic_authorization_failed, "subscribe topic:s/#")
def kafka_fetch_of_a_view(wire: Wire) -> ErrorCode:
    return _fetch(wire, "s._x2B_.t")


@kafka(E.topic_authorization_failed, "subscribe topic:a/b")
def kafka_metadata_of_a_topic(wire: Wire) -> ErrorCode:
    body = {"topics": [{"name": "a.b"}], "allow_auto_topic_creation": False}
    return _ask(wire, K.METADATA, 4, **body).topics[0].error_code


@kafka(E.topic_authorization_failed, "create prefix:made")
def kafka_metadata_that_makes_a_topic(wire: Wire) -> ErrorCode:
    body = {"topics": [{"name": f"made-{next(_numbers)}"}], "allow_auto_topic_creation": True}
    return _ask(wire, K.METADATA, 4, **body).topics[0].error_code


@kafka(HIDDEN, "publish topic:a/b")
def kafka_metadata_of_all_topics(wire: Wire) -> bool:
    found = _ask(wire, K.METADATA, 4, topics=None, allow_auto_topic_creation=False).topics
    return "a.b" in {row.name for row in found}


@kafka(E.topic_authorization_failed, "subscribe topic:a/b")
def kafka_list_offsets(wire: Wire) -> ErrorCode:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": "a.b", "partitions": [part]}]
    answer = _ask(wire, K.LIST_OFFSETS, 4, replica_id=-1, isolation_level=0, topics=topics)
    return answer.topics[0].partitions[0].error_code


@kafka(E.topic_authorization_failed, "create prefix:new-")
def kafka_create_topic(wire: Wire) -> ErrorCode:
    row = {
        "name": f"new-{next(_numbers)}",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    answer = _ask(wire, K.CREATE_TOPICS, 4, topics=[row], timeout=30_000, validate_only=False)
    return answer.topics[0].error_code


@kafka(E.topic_authorization_failed, "delete topic:gone/#")
def kafka_delete_topic(wire: Wire) -> ErrorCode:
    answer = _ask(wire, K.DELETE_TOPICS, 4, topic_names=["gone.t"], timeout=30_000)
    return answer.responses[0].error_code


@kafka(E.topic_authorization_failed, "delete topic:a/b")
def kafka_delete_records(wire: Wire) -> ErrorCode:
    part = {"partition_index": 0, "offset": 0}
    topics = [{"name": "a.b", "partitions": [part]}]
    answer = _ask(wire, K.DELETE_RECORDS, 1, topics=topics, timeout=5000)
    return answer.topics[0].partitions[0].error_code


@kafka(E.topic_authorization_failed, "configure topic:a/b")
def kafka_create_partitions(wire: Wire) -> ErrorCode:
    topics = [{"name": "a.b", "count": 1, "assignments": None}]
    body = {"topics": topics, "timeout": 5000, "validate_only": True}
    return _ask(wire, K.CREATE_PARTITIONS, 1, **body).results[0].error_code


@kafka(E.topic_authorization_failed, "configure topic:a/b")
def kafka_alter_configs(wire: Wire) -> ErrorCode:
    config = {"name": "retention.ms", "config_operation": 0, "value": "60000"}
    resources = [{"resource_type": 2, "resource_name": "a.b", "configs": [config]}]
    body = {"resources": resources, "validate_only": True}
    return _ask(wire, K.INCREMENTAL_ALTER_CONFIGS, 0, **body).responses[0].error_code


@kafka(E.topic_authorization_failed, "configure topic:a/b")
def kafka_describe_configs(wire: Wire) -> ErrorCode:
    row = {"resource_type": 2, "resource_name": "a.b", "configuration_keys": None}
    answer = _ask(wire, K.DESCRIBE_CONFIGS, 1, resources=[row], include_synonyms=False)
    return answer.results[0].error_code


@kafka(E.cluster_authorization_failed, "admin server:cluster")
def kafka_describe_broker_configs(wire: Wire) -> ErrorCode:
    row = {"resource_type": 4, "resource_name": "0", "configuration_keys": None}
    answer = _ask(wire, K.DESCRIBE_CONFIGS, 1, resources=[row], include_synonyms=False)
    return answer.results[0].error_code


@kafka(E.cluster_authorization_failed, "all server:cluster")
def kafka_describe_log_dirs(wire: Wire) -> ErrorCode:
    answer = _ask(wire, K.DESCRIBE_LOG_DIRS, 4, topics=None)
    assert bool(answer.results) == (answer.error_code is E.none), "nor where the data lies"
    return answer.error_code


@kafka(E.cluster_authorization_failed, "admin server:*")
def kafka_elect_leaders(wire: Wire) -> ErrorCode:
    answer = _ask(wire, K.ELECT_LEADERS, 1, election_type=0, topic_partitions=None, timeout=1000)
    return answer.error_code


@kafka(E.group_authorization_failed, "consume cursor:group/g*")
def kafka_find_coordinator(wire: Wire) -> ErrorCode:
    return _ask(wire, K.FIND_COORDINATOR, 3, key="g1", key_type=0).error_code


@kafka(E.group_authorization_failed, "consume cursor:group/g*")
def kafka_join_group(wire: Wire) -> ErrorCode:
    """A new member is given an id first, and has not joined yet."""
    body = {
        "group_id": "g1",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    return _ask(wire, K.JOIN_GROUP, 5, **body).error_code


@kafka(E.group_authorization_failed, "consume cursor:group/g1")
def kafka_heartbeat(wire: Wire) -> ErrorCode:
    body = {"group_id": "g1", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    return _ask(wire, K.HEARTBEAT, 3, **body).error_code


@kafka(E.group_authorization_failed, "consume cursor:group/g1")
def kafka_offset_fetch(wire: Wire) -> ErrorCode:
    topics = [{"name": "a.b", "partition_indexes": [0]}]
    body = {"group_id": "g1", "topics": topics, "require_stable": False}
    return _ask(wire, K.OFFSET_FETCH, 7, **body).error_code


def _commit(wire: Wire) -> ErrorCode:
    part = {
        "partition_index": 0,
        "committed_offset": 0,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return (
        _ask(
            wire,
            K.OFFSET_COMMIT,
            7,
            group_id="g1",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": "a.b", "partitions": [part]}],
        )
        .topics[0]
        .partitions[0]
        .error_code
    )


@kafka(E.group_authorization_failed, "consume cursor:group/g1", given=("subscribe topic:a/b",))
def kafka_offset_commit_for_a_group(wire: Wire) -> ErrorCode:
    return _commit(wire)


@kafka(E.topic_authorization_failed, "subscribe topic:a/b", given=("consume cursor:group/g1",))
def kafka_offset_commit_in_a_topic(wire: Wire) -> ErrorCode:
    return _commit(wire)


@kafka(E.group_authorization_failed, "consume cursor:group/g1")
def kafka_describe_group(wire: Wire) -> ErrorCode:
    body = {"groups": ["g1"], "include_authorized_operations": False}
    return _ask(wire, K.DESCRIBE_GROUPS, 4, **body).groups[0].error_code


@kafka(E.group_authorization_failed, "delete cursor:group/g1")
def kafka_delete_group(wire: Wire) -> ErrorCode:
    return _ask(wire, K.DELETE_GROUPS, 1, groups_names=["g1"]).results[0].error_code


@kafka(E.transactional_id_authorization_failed, "consume cursor:transaction/tx-*")
def kafka_begin_transactions(wire: Wire) -> ErrorCode:
    body = {"transactional_id": "tx-1", "transaction_timeout": 60_000}
    return _ask(wire, K.INIT_PRODUCER_ID, 1, **body).error_code


def _add_partitions(wire: Wire) -> ErrorCode:
    answer = _ask(
        wire,
        K.ADD_PARTITIONS_TO_TXN,
        1,
        v3_and_below_transactional_id="tx-1",
        v3_and_below_producer_id=7,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[{"name": "a.b", "partitions": [0]}],
    )
    (topic,) = answer.results_by_topic_v3_and_below
    return topic.results_by_partition[0].partition_error_code


@kafka(E.topic_authorization_failed, "publish topic:a/b", given=("consume cursor:transaction/*",))
def kafka_add_partitions_of_a_topic(wire: Wire) -> ErrorCode:
    return _add_partitions(wire)


@kafka(
    E.transactional_id_authorization_failed,
    "consume cursor:transaction/*",
    given=("publish topic:a/b",),
)
def kafka_add_partitions_to_a_transaction(wire: Wire) -> ErrorCode:
    return _add_partitions(wire)


@kafka(E.transactional_id_authorization_failed, "consume cursor:transaction/tx-1")
def kafka_end_transaction(wire: Wire) -> ErrorCode:
    body = {"transactional_id": "tx-1", "producer_id": 7, "producer_epoch": 0, "committed": True}
    return _ask(wire, K.END_TXN, 1, **body).error_code


@kafka(E.transactional_id_authorization_failed, "consume cursor:transaction/tx-1")
def kafka_describe_transaction(wire: Wire) -> ErrorCode:
    answer = _ask(wire, K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["tx-1"])
    return answer.transaction_states[0].error_code


# -- AMQP


def amqp(*rights: str) -> Any:
    """What a new channel of an open connection does; a refusal closes the channel with 403."""

    def keep(work: Callable[[RawChannel], object]) -> Any:
        async def begin(house: House) -> Act:
            raw = await asyncio.to_thread(_opened, house.ports["amqp"])
            house.at_end.append(raw.socket.close)

            def run() -> object:
                channel = raw.channel()
                try:
                    work(channel)
                except Refused as refused:
                    return refused.code
                channel.close()
                return YES

            return lambda: asyncio.to_thread(run)

        begin.__name__ = work.__name__
        return operation("amqp", 403, *rights)(begin)

    return keep


def _opened(port: int) -> Raw:
    """A connection, with what the operations need: made while everything is open."""
    raw = Raw(port).open()
    channel = raw.channel()
    channel.ask(Queue.Declare(queue="q", durable=True), Queue.DeclareOk)
    for name in ("x", "y"):
        channel.ask(Exchange.Declare(exchange=name, exchange_type="fanout"), Exchange.DeclareOk)
    channel.close()
    return raw


@amqp("publish topic:a/b")
def amqp_publish_to_a_topic(channel: RawChannel) -> None:
    channel.publish("amq.topic", "a.b", "1")
    channel.sync()


@amqp("publish topic:$q/q")
def amqp_publish_to_a_queue(channel: RawChannel) -> None:
    for _ in range(2):  # the second one is the kernel's
        channel.publish("", "q", "1")
    channel.sync()


@amqp("publish topic:$x/x/#")
def amqp_publish_to_an_exchange(channel: RawChannel) -> None:
    channel.publish("x", "key", "1")
    channel.sync()


@amqp("publish topic:$q/q")
def amqp_publish_in_a_transaction(channel: RawChannel) -> None:
    channel.ask(Tx.Select(), Tx.SelectOk)
    channel.publish("", "q", "1")
    channel.ask(Tx.Commit(), Tx.CommitOk)


@amqp("publish topic:$q/q", "publish topic:$q/further")
def amqp_publish_to_further_queues(channel: RawChannel) -> None:
    for _ in range(2):
        channel.publish("", "q", "1", headers={"CC": ["further"]})
    channel.sync()


@amqp("publish topic:a/b", "publish topic:further/+")
def amqp_publish_to_a_further_topic_that_is_not_shown(channel: RawChannel) -> None:
    channel.publish("amq.topic", "a.b", "1", headers={"BCC": ["further.key"]})
    channel.sync()


@amqp("publish topic:$q/q", "publish topic:$q/further")
def amqp_publish_to_further_queues_in_a_transaction(channel: RawChannel) -> None:
    channel.ask(Tx.Select(), Tx.SelectOk)
    channel.publish("", "q", "1", headers={"CC": ["further"]})
    channel.ask(Tx.Commit(), Tx.CommitOk)


@amqp("create prefix:$q/made-")
def amqp_declare_a_queue(channel: RawChannel) -> None:
    channel.queue(f"made-{next(_numbers)}", auto_delete=True)


@amqp("all topic:$q/q")
def amqp_look_at_a_queue_that_one_may_see(channel: RawChannel) -> None:
    channel.ask(Queue.Declare(queue="q", passive=True), Queue.DeclareOk)


@amqp("all cursor:queue/q")
def amqp_look_at_a_queue_that_one_consumes(channel: RawChannel) -> None:
    channel.ask(Queue.Declare(queue="q", passive=True), Queue.DeclareOk)


@amqp("consume cursor:queue/q")
def amqp_look_at_a_queue_by_the_right_to_consume(channel: RawChannel) -> None:
    channel.ask(Queue.Declare(queue="q", passive=True), Queue.DeclareOk)


@amqp("publish topic:$q/q")
def amqp_look_at_a_queue_by_the_right_to_publish(channel: RawChannel) -> None:
    channel.ask(Queue.Declare(queue="q", passive=True), Queue.DeclareOk)


@amqp("delete topic:$q/+")
def amqp_delete_a_queue(channel: RawChannel) -> None:
    channel.ask(Queue.Delete(queue="not there"), Queue.DeleteOk)


@amqp("create topic:$x/#")
def amqp_declare_an_exchange(channel: RawChannel) -> None:
    channel.exchange("direct", f"made-{next(_numbers)}")


@amqp("delete topic:$x/none/#")
def amqp_delete_an_exchange(channel: RawChannel) -> None:
    channel.ask(Exchange.Delete(exchange="none"), Exchange.DeleteOk)


@amqp("publish topic:$q/q", "subscribe topic:a/#")
def amqp_bind_a_queue_to_topics(channel: RawChannel) -> None:
    channel.bind("q", "amq.topic", "a.*")


@amqp("publish topic:$q/q", "subscribe topic:a/#")
def amqp_unbind_a_queue(channel: RawChannel) -> None:
    channel.unbind("q", "amq.topic", "a.*")


@amqp("publish topic:$x/x/#", "subscribe topic:$x/y/#")
def amqp_bind_an_exchange(channel: RawChannel) -> None:
    channel.bind_exchange("x", "y")


@amqp("consume cursor:queue/q")
def amqp_consume(channel: RawChannel) -> None:
    channel.consume("q")


@amqp("consume cursor:queue/*")
def amqp_get(channel: RawChannel) -> None:
    channel.get("q")


@amqp("consume cursor:queue/q")
def amqp_purge(channel: RawChannel) -> None:
    channel.ask(Queue.Purge(queue="q"), Queue.PurgeOk)


@amqp(
    "create prefix:$q/dying-",
    "consume cursor:queue/dying-*",
    "publish topic:$x/x/#",
)
def amqp_declare_a_queue_with_dead_letters(channel: RawChannel) -> None:
    arguments = {"x-dead-letter-exchange": "x"}
    channel.queue(f"dying-{next(_numbers)}", auto_delete=True, arguments=arguments)


def cases() -> list[Operation]:
    """Every operation, by protocol."""
    return sorted(OPERATIONS, key=lambda row: (row.protocol, row.name))
