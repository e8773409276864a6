"""What a client over its quota sees in each protocol, and that nobody else waits for it."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx
import msgspec
import pytest
from kio.index import load_request_schema

from onelog.broker import Broker, Principal
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import Connack, Connect, Disconnect, Puback, Publish
from onelog.queues.definitions import decode_row, encode_row
from onelog.queues.settings import QueueRecord
from onelog.security.bans import Bans, BanSettings
from onelog.security.quotas.entities import Limit, parse_entity
from tests.conformance.amqp_raw import Basic, Connection, Raw, Refused, Tx
from tests.support import amqp, kafka_hub, mqtt
from tests.support.brokers import FAST
from tests.support.mqtt import until


async def limit(broker: Broker, entity: str, **limits: float) -> None:
    await broker.client_quotas.change(parse_entity(entity), limits)


# -- MQTT


def publishes(count: int, version: int = 5) -> bytes:
    rows = (
        Publish(topic="t", payload=b"12345", qos=1, packet_id=number)
        for number in range(1, count + 1)
    )
    return b"".join(encode_packet(row, version) for row in rows)


async def test_without_a_quota_the_kernel_reports_nothing(tmp_path: Path) -> None:
    async with mqtt.serving(tmp_path) as node:
        await node.client("c")
        (connection,) = node.hub.connections
        assert connection.input.charge is None
        await limit(node.broker, "user:somebody", publish_bytes=1)
        assert connection.input.charge is None
        await limit(node.broker, "client:c", publish_bytes=1)
        assert connection.input.charge is not None
        await node.broker.client_quotas.remove("client:c")
        assert connection.input.charge is None


async def test_an_mqtt_client_over_its_quota_is_not_read_for_a_while_and_others_are(
    tmp_path: Path,
) -> None:
    async with mqtt.serving(tmp_path) as node:
        await limit(node.broker, "client:slow", publish_messages=100)
        slow, quick = await node.client("slow"), await node.client("quick")
        connection = node.hub.sessions["slow"].connection
        assert connection is not None
        assert connection.seat is not None
        counted: list[int] = []
        connection.seat = Counting(connection.seat, counted)  # type: ignore[assignment]
        slow._writer.write(publishes(200))
        for number in range(1, 201):
            assert (await slow.receive(Puback)).packet_id == number
        assert sum(counted) == 200
        assert len(counted) <= 3, "one debit per read, not per message"
        assert node.hub.counters.published == 0, "the kernel stages them"
        assert connection.seat.is_held, "a second's worth is owed"
        assert not connection.transport.is_reading()
        for _ in range(20):
            assert await quick.publish("t", "x") == 0
        assert connection.seat.is_held, "nobody waited for it"
        assert await slow.publish("t", "x") == 0
        assert node.broker.client_quotas.counters("mqtt").seconds > 0.5


class Counting:
    """A seat that notes how much is counted at a time."""

    def __init__(self, seat: Any, counted: list[int]) -> None:
        self._seat = seat
        self._counted = counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seat, name)

    def publish(self, messages: int, size_bytes: int) -> float:
        self._counted.append(messages)
        return float(self._seat.publish(messages, size_bytes))


IMPATIENT = msgspec.structs.replace(FAST, quota_patience_s=0.05)


@pytest.mark.parametrize("version", [4, 5])
async def test_an_mqtt_client_that_would_wait_too_long_is_disconnected_with_0x97(
    tmp_path: Path, version: int
) -> None:
    async with mqtt.serving(tmp_path, settings=IMPATIENT) as node:
        await limit(node.broker, "user:anonymous", publish_messages=1)
        client = await node.client("c", version=version)
        client._writer.write(publishes(50, version))
        for _ in range(50):
            assert (await client.receive(Puback)).reason == 0, "what was read is answered first"
        if version == 5:
            assert (await client.receive(Disconnect)).reason == 0x97
        else:
            with pytest.raises(asyncio.IncompleteReadError):
                await client.receive(Disconnect)


async def test_publishes_that_python_handles_are_counted_too(tmp_path: Path) -> None:
    async with mqtt.serving(tmp_path) as node:
        await limit(node.broker, "user", publish_messages=10)
        client = await node.client("c")
        for _ in range(12):
            assert await client.publish("t", "x", qos=2) == 0
        assert node.hub.counters.published == 12
        assert node.broker.client_quotas.counters("mqtt").holds >= 1


async def test_the_last_read_of_an_mqtt_client_is_counted_too(tmp_path: Path) -> None:
    """A client that publishes and leaves in one read does not get away."""
    async with mqtt.serving(tmp_path) as node:
        await limit(node.broker, "user", publish_messages=100)
        client = await node.client("c")
        client._writer.write(publishes(300) + encode_packet(Disconnect(), 5))
        await node.gone("c")
        again = await node.client("c")
        await again.publish("t", "x")
        connection = node.hub.sessions["c"].connection
        assert connection is not None
        assert connection.seat is not None
        assert connection.seat.is_held


async def test_requests_of_mqtt_are_counted(tmp_path: Path) -> None:
    async with mqtt.serving(tmp_path) as node:
        await limit(node.broker, "user", requests=20)
        client = await node.client("c")
        for _ in range(11):
            await client.sync()
        assert node.broker.client_quotas.counters("mqtt").holds >= 1


async def refused(node: mqtt.Node, client_id: str, version: int) -> int:
    reader, writer = await mqtt.dial(node.port)
    client = mqtt.Client(reader, writer, version)
    await client.send(Connect(client_id=client_id, version=version, keep_alive_s=60))
    reason = int((await client.receive(Connack)).reason)
    writer.close()
    return reason


async def test_one_mqtt_connection_too_many_is_refused_and_a_returning_client_is_not(
    tmp_path: Path,
) -> None:
    async with mqtt.serving(tmp_path) as node:
        await limit(node.broker, "user:anonymous", connections=2)
        await node.client("a")
        await node.client("b")
        assert await refused(node, "c", 5) == 0x97
        assert await refused(node, "c", 4) == 0x88, "return code 3: the server is not available"
        again = await node.client("a")
        assert await refused(node, "c", 5) == 0x97
        await again.disconnect()
        await node.gone("a")
        await node.client("c")
        assert node.broker.client_quotas.refusals[Limit.CONNECTIONS] == 3


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x97)])
async def test_one_mqtt_subscription_too_many_is_refused(
    tmp_path: Path, version: int, code: int
) -> None:
    async with mqtt.serving(tmp_path) as node:
        await limit(node.broker, "client:c", subscriptions=2)
        client = await node.client("c", version=version)
        assert await client.subscribe("a", 1) == 1
        assert await client.subscribe("$share/g/b", 1) == 1
        assert await client.subscribe("d", 1) == code
        assert await client.subscribe("$share/g/e", 1) == code
        assert await client.subscribe("a", 0) == 0, "a known one is changed"
        await client.unsubscribe("$share/g/b")
        assert await client.subscribe("d", 1) == 1


async def test_subscriptions_of_a_resumed_session_count(tmp_path: Path) -> None:
    async with mqtt.serving(tmp_path) as node:
        first = await node.client("c", expiry_s=100)
        assert await first.subscribe("a", 1) == 1
        assert await first.subscribe("b", 1) == 1
        await first.disconnect()
        await node.gone("c")
        await limit(node.broker, "client:c", subscriptions=2)
        again = await node.client("c", expiry_s=100, clean=False)
        assert await again.subscribe("d", 1) == 0x97


# -- Kafka


def control(client: kafka_hub.Client, key: ApiKey, version: int, **body: Any) -> bytes:
    schema: Any = load_request_schema(int(key), version)
    return client.frame(key, version, schema(**body))


async def test_kafka_answers_first_and_then_mutes_the_client_for_the_throttle_time(
    tmp_path: Path,
) -> None:
    async with kafka_hub.desk(tmp_path) as desk:
        slow = desk.client()
        await limit(desk.broker, "user", publish_messages=10)
        one = kafka_hub.batch(*(b"x" for _ in range(12)))
        slow.send(slow.produce(one))
        ((_number, answer),) = await slow.wait_for(1)
        assert kafka_hub.rows_of(answer) == [(0, 0, 0)]
        assert answer.throttle_time == datetime.timedelta(milliseconds=200)
        assert not slow.line.reading, "KIP-219: it is muted"
        slow.send(slow.produce(kafka_hub.batch(b"y")))
        await asyncio.sleep(0.02)
        assert not slow.answers(), "what was read already waits, too"
        ((_number, later),) = await slow.wait_for(1)
        assert kafka_hub.rows_of(later) == [(0, 0, 12)]


async def test_another_user_of_kafka_does_not_wait(tmp_path: Path) -> None:
    async with kafka_hub.desk(tmp_path) as desk:
        await limit(desk.broker, "client:test", publish_bytes=100)
        slow = desk.client()
        slow.send(slow.produce(kafka_hub.batch(b"x" * 100_000)))
        ((_number, answer),) = await slow.wait_for(1)
        assert answer.throttle_time > datetime.timedelta(seconds=900)
        quick = desk.client()
        frame = quick.produce(kafka_hub.batch(b"x" * 100_000)).replace(b"test", b"fast", 1)
        for _ in range(2):
            quick.send(frame)
            await quick.wait_for_bytes()
        assert quick.line.reading
        await desk.broker.client_quotas.remove("client:test")
        assert slow.line.reading, "a quota that is gone holds nobody"


async def test_fetched_bytes_and_requests_of_kafka_are_throttled(tmp_path: Path) -> None:
    async with kafka_hub.desk(tmp_path) as desk:
        client = desk.client()
        client.send(client.produce(kafka_hub.batch(b"x" * 10_000)))
        await client.wait_for(1)
        await limit(desk.broker, "user:anonymous", fetch_bytes=5_000)
        client.send(client.frame(ApiKey.FETCH, 4, kafka_hub.fetch_body("t")))
        ((_number, answer),) = await client.wait_for(1)
        assert datetime.timedelta(seconds=1) < answer.throttle_time < datetime.timedelta(seconds=2)
        await desk.broker.client_quotas.remove("user:anonymous")
        await limit(desk.broker, "user:anonymous", requests=2)
        for number in range(3):
            client.send(
                control(client, ApiKey.LIST_GROUPS, 4, states_filter=())
                if number % 2
                else control(
                    client,
                    ApiKey.METADATA,
                    8,
                    topics=(),
                    allow_auto_topic_creation=False,
                    include_cluster_authorized_operations=False,
                    include_topic_authorized_operations=False,
                )
            )
        answers = [row for _number, row in await client.wait_for(3)]
        assert answers[0].throttle_time == datetime.timedelta(0)
        assert answers[2].throttle_time == datetime.timedelta(milliseconds=500)


async def test_one_kafka_connection_too_many_is_closed(tmp_path: Path) -> None:
    async with kafka_hub.desk(tmp_path) as desk:
        await limit(desk.broker, "user:anonymous", connections=1)
        first, second = desk.client(), desk.client()
        first.send(control(first, ApiKey.LIST_GROUPS, 4, states_filter=()))
        await first.wait_for(1)
        second.send(control(second, ApiKey.LIST_GROUPS, 4, states_filter=()))
        await until(lambda: second.line.closed)
        first.connection.connection_lost(None)
        third = desk.client()
        third.send(control(third, ApiKey.LIST_GROUPS, 4, states_filter=()))
        await third.wait_for(1)


# -- AMQP


async def test_an_amqp_client_over_its_quota_is_blocked_and_then_unblocked(tmp_path: Path) -> None:
    async with amqp.serving(tmp_path) as node:
        await limit(node.broker, "user:anonymous", publish_messages=50)

        def work(raw: Raw) -> None:
            channel = raw.channel()
            queue = channel.queue(durable=True)
            channel.confirm()
            for _ in range(75):
                channel.publish("", queue, "x")
            assert "quota" in raw.expect(0, Connection.Blocked).reason
            raw.expect(0, Connection.Unblocked)
            confirmed = 0
            while confirmed < 75:
                confirmed = channel.expect(Basic.Ack).delivery_tag

        await amqp.talk(node.port, work)
        assert node.broker.client_quotas.counters("amqp").holds >= 1


@pytest.mark.parametrize("way", ["in a transaction", "to no queue", "in headers"])
async def test_amqp_publishes_count_whatever_becomes_of_them(tmp_path: Path, way: str) -> None:
    async with amqp.serving(tmp_path) as node:
        await limit(node.broker, "user:anonymous", publish_bytes=10_000)

        def work(raw: Raw) -> None:
            channel = raw.channel()
            queue = channel.queue(durable=True)
            if way == "in a transaction":
                channel.ask(Tx.Select(), Tx.SelectOk)
            text = "x" * 5_000
            for _ in range(3):
                if way == "in headers":
                    channel.publish("", queue, "", headers={"h": text})
                else:
                    channel.publish("", queue if way == "in a transaction" else "none", text)
            assert "quota" in raw.expect(0, Connection.Blocked).reason
            raw.expect(0, Connection.Unblocked)

        await amqp.talk(node.port, work)
        assert node.broker.client_quotas.counters("amqp").holds >= 1


async def test_amqp_connections_consumers_and_queues_are_bounded_as_rabbitmq_does(
    tmp_path: Path,
) -> None:
    async with amqp.serving(tmp_path) as node:
        await limit(node.broker, "user:anonymous", connections=1, subscriptions=1, queues=2)

        def work(raw: Raw) -> None:
            channel = raw.channel()
            queue = channel.queue(durable=True)
            channel.queue("second")
            with pytest.raises(Refused) as too_many:
                channel.queue("third")
            assert too_many.value.code == 406
            assert "queue limit of user 'anonymous' (2) is reached" in str(too_many.value)
            other = raw.channel(7)
            other.queue("second")
            other.consume(queue, "one")
            with Raw(node.port) as late, pytest.raises(Refused) as full:
                late.open()
            assert full.value.code == 530
            assert "user connection limit (1) is reached" in str(full.value)
            other.ask(Basic.Cancel("one"), Basic.CancelOk)
            other.consume(queue, "two")
            with pytest.raises(Refused) as refusal:
                other.consume(queue, "three")
            assert refusal.value.code == 530

        await amqp.talk(node.port, work)
        await until(lambda: not node.hub.connections)
        await amqp.talk(node.port, lambda raw: raw.channel())


def test_the_row_of_a_queue_keeps_whose_quota_it_counts_for() -> None:
    record = QueueRecord(name="q", maker=Principal("ann", "amqp"), client="pump", listener="amqp")
    assert decode_row(encode_row(record), QueueRecord) == record
    assert decode_row(encode_row(QueueRecord(name="q")), QueueRecord) == QueueRecord(name="q")
    assert b"client" not in encode_row(QueueRecord(name="q")), "as earlier versions wrote it"
    older = decode_row(encode_row(QueueRecord(name="q")), QueueRecord)
    assert (older.client, older.listener) == (None, None)


@pytest.mark.parametrize("entity", ["client", "user,client", "user:anonymous,client"])
@pytest.mark.parametrize("unnamed", [None, ""])
async def test_amqp_clients_without_a_name_are_not_one_client(
    tmp_path: Path, unnamed: str | None, entity: str
) -> None:
    """Only a quota that asks for no name bounds them."""
    async with amqp.serving(tmp_path) as node:
        await limit(node.broker, entity, queues=1)

        def declare(client: str | None, *names: str) -> None:
            with Raw(node.port) as raw:
                channel = raw.open(connection_name=client).channel()
                for name in names:
                    channel.queue(name, durable=True)

        async def refused(client: str | None, *names: str) -> str:
            with pytest.raises(Refused) as refusal:
                await asyncio.to_thread(declare, client, *names)
            return str(refusal.value)

        await asyncio.to_thread(declare, unnamed, "a", "b")
        await asyncio.to_thread(declare, unnamed, "c")
        assert "client 'pump' (1) is reached" in await refused("pump", "d", "e")
        await limit(node.broker, "user:anonymous", queues=5)
        assert "queue limit of user 'anonymous' (5)" in await refused(unnamed, "f", "g")


async def test_a_publish_by_the_management_api_counts_and_is_refused_over_the_quota(
    tmp_path: Path,
) -> None:
    async with amqp.serving(tmp_path) as node, amqp.management(node) as client:
        await node.hub.authenticator.users.add("ann", "secret", administrator=True)
        await limit(node.broker, "user:ann", publish_messages=1, publish_bytes=1000)

        async def publish(size: int = 1, user: str = "ann") -> httpx.Response:
            body = {
                "routing_key": "q",
                "payload": "x" * size,
                "payload_encoding": "string",
                "properties": {},
            }
            path = "/api/exchanges/%2F/amq.default/publish"
            return await client.post(path, json=body, auth=(user, "secret"))

        quotas, now = node.broker.client_quotas, node.broker.client_quotas.now()
        quotas.now = lambda: now  # type: ignore[method-assign]
        assert (await publish(5000)).status_code == 200, "a rate counts what was done"
        refused = await publish()
        assert (refused.status_code, refused.json()["error"]) == (429, "too_many_requests")
        assert refused.headers["retry-after"] == "4"
        assert quotas.counters("amqp").holds == 1
        await node.hub.authenticator.users.add("bob", "secret", administrator=True)
        assert (await publish(5000, "bob")).status_code == 200, "nobody else waits"
        now += 10
        assert (await publish()).status_code == 200
        await limit(node.broker, "listener:amqp_management", publish_messages=1)
        assert (await publish(1, "bob")).status_code == 200
        assert (await publish(1, "bob")).status_code == 200, "the burst is a message"
        assert (await publish(1, "bob")).status_code == 429


# -- bans


async def test_failed_logins_of_every_protocol_count_in_one_table(tmp_path: Path) -> None:
    async with mqtt.serving(tmp_path) as node:
        authenticator = node.hub.authenticator
        authenticator.bans = Bans(BanSettings(failures=2, delay_s=0.0, exempt=()), node.hub.clock)
        await authenticator.users.add("ann", "secret")

        async def attempt(password: bytes) -> int:
            reader, writer = await mqtt.dial(node.port)
            client = mqtt.Client(reader, writer, 5)
            await client.send(
                Connect(
                    client_id="x", version=5, keep_alive_s=60, username="ann", password=password
                )
            )
            reason = int((await client.receive(Connack)).reason)
            writer.close()
            return reason

        assert await attempt(b"wrong") == 0x86
        assert await attempt(b"secret") == 0
        assert await attempt(b"wrong") == 0x86
        assert await attempt(b"other") == 0x8A, "banned, and nothing is hashed for it"
        assert await attempt(b"secret") == 0x8A, "the right guess is not told from a wrong one"
        assert await refused(node, "anonymous", 5) == 0, "no name, no guess"
        authenticator.bans.lift("127.0.0.1")
        assert await attempt(b"secret") == 0
