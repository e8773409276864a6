"""I3, reading never changes data: whatever one reader does, all others see what they would have.

Bystanders of each protocol have a place in the log and a backlog. One more reader does something
drastic with its own. Then everybody reads on: nothing is missing, nothing comes twice; and so it is
for views that are opened only afterwards (I2).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pika.adapters.blocking_connection import BlockingChannel

from onelog.base.names import to_dotted
from tests.cross.clients import Said
from tests.cross.load import DEADLINE_S, AmqpReader, KafkaReader, MqttReader

SHARE = 20
"""Messages that are written at a time."""
_numbers = itertools.count()


class Scene:
    """One topic, who reads it, and who is going to do something to his own place."""

    def __init__(self, server, clients, channel: BlockingChannel) -> None:
        self.ports: dict[str, int] = server.ports
        self.channel = channel
        self.name = f"iso{next(_numbers)}"
        self.topic, self.filter, self.key = f"{self.name}/t", f"{self.name}/#", f"{self.name}.#"
        self._clients = clients
        self.written = 0
        self.session = MqttReader(self.filter, f"{self.name}-session")
        self.queue = AmqpReader(f"{self.name}-queue", self.key)
        self.group = KafkaReader(self.filter, f"{self.name}-group")
        self.bystanders = {"mqtt": self.session, "amqp": self.queue, "kafka": self.group}

    def write(self) -> None:
        for _ in range(SHARE):
            said = Said(b"mqtt %d" % self.written, fields={"qos": 1})
            self._clients["mqtt5"].write(said, self.topic)
            self.written += 1

    def read_on(self) -> None:
        """Every bystander takes what there is, and leaves."""
        for via, reader in self.bystanders.items():
            reader.come(self.ports[via])
        for reader in self.bystanders.values():
            reader.wait_for(self.written)
            reader.leave()
            assert reader.faults("mqtt", self.written, in_order=True) == []

    def look_back(self) -> None:
        """Views that nobody opened before see all of it."""
        late = {
            "mqtt": MqttReader(f"$replay/earliest/{self.filter}"),
            "amqp": AmqpReader(f"{self.name}-late", self.key, "earliest"),
            "kafka": KafkaReader(self.filter, f"{self.name}-late"),
        }
        for via, reader in late.items():
            reader.come(self.ports[via])
            reader.wait_for(self.written)
            reader.leave()
            assert reader.faults("mqtt", self.written, in_order=True) == []

    def victim_queue(self, **arguments: object) -> str:
        name = f"{self.name}-victim"
        self.channel.queue_declare(name, durable=True, arguments=arguments)
        self.channel.queue_bind(name, "amq.topic", self.key)
        return name

    def depth(self, queue: str) -> int:
        found = self.channel.queue_declare(queue, durable=True, passive=True)
        return int(found.method.message_count)


# -- what somebody does to his own place; each begins before anything is written, and ends after

Deed = Callable[[Scene], Callable[[], None]]


def amqp_ack(scene: Scene) -> Callable[[], None]:
    queue = scene.victim_queue()

    def do() -> None:
        for _ in range(scene.written):
            method, _properties, _body = scene.channel.basic_get(queue)
            scene.channel.basic_ack(method.delivery_tag)
        assert scene.depth(queue) == 0

    return do


def amqp_reject(scene: Scene) -> Callable[[], None]:
    queue = scene.victim_queue()

    def do() -> None:
        for number in range(scene.written):
            method, _properties, _body = scene.channel.basic_get(queue)
            scene.channel.basic_nack(method.delivery_tag, requeue=number % 2 == 0)
            if number % 2 == 0:
                again, _properties, _body = scene.channel.basic_get(queue)
                scene.channel.basic_reject(again.delivery_tag, requeue=False)
        assert scene.depth(queue) == 0

    return do


def amqp_purge(scene: Scene) -> Callable[[], None]:
    queue = scene.victim_queue()

    def do() -> None:
        assert scene.channel.queue_purge(queue).method.message_count == scene.written

    return do


def amqp_delete(scene: Scene) -> Callable[[], None]:
    queue = scene.victim_queue()

    def do() -> None:
        assert scene.channel.queue_delete(queue).method.message_count == scene.written

    return do


def amqp_expiry(scene: Scene) -> Callable[[], None]:
    queue = scene.victim_queue(**{"x-message-ttl": 1})

    def do() -> None:
        wait_until(lambda: scene.depth(queue) == 0)

    return do


def amqp_overflow(scene: Scene) -> Callable[[], None]:
    queue = scene.victim_queue(**{"x-max-length": 3})

    def do() -> None:
        wait_until(lambda: scene.depth(queue) == 3)

    return do


def amqp_transaction(scene: Scene) -> Callable[[], None]:
    queue = scene.victim_queue()

    def do() -> None:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", scene.ports["amqp"])
        )
        channel = connection.channel()
        channel.tx_select()
        for _ in range(scene.written):
            method, _properties, _body = channel.basic_get(queue)
            channel.basic_ack(method.delivery_tag)
        channel.tx_commit()
        connection.close()
        assert scene.depth(queue) == 0

    return do


def kafka_reset(scene: Scene) -> Callable[[], None]:
    servers = {"bootstrap.servers": f"127.0.0.1:{scene.ports['kafka']}", "log_level": 0}
    group, name = f"{scene.name}-victim", to_dotted(scene.filter)

    def do() -> None:
        reader = KafkaReader(scene.filter, group)
        reader.come(scene.ports["kafka"])
        reader.wait_for(scene.written)
        reader.leave()
        admin = AdminClient(servers)
        rows = ConsumerGroupTopicPartitions(group)
        committed = admin.list_consumer_group_offsets([rows])[group].result(DEADLINE_S)
        assert committed.topic_partitions
        back = [TopicPartition(name, row.partition, 0) for row in committed.topic_partitions]
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, back)])[
            group
        ].result(DEADLINE_S)
        again = KafkaReader(scene.filter, group)
        again.come(scene.ports["kafka"])
        again.wait_for(scene.written)  # it did go back
        again.leave()
        assert again.faults("mqtt", scene.written, in_order=True) == []
        admin.delete_consumer_groups([group])[group].result(DEADLINE_S)

    return do


def kafka_commit_behind_the_end(scene: Scene) -> Callable[[], None]:
    def do() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{scene.ports['kafka']}",
                "group.id": f"{scene.name}-victim",
                "log_level": 0,
            }
        )
        name = to_dotted(scene.filter)
        count = len(consumer.list_topics(name, DEADLINE_S).topics[name].partitions)
        rows = [TopicPartition(name, number, 10**6) for number in range(count)]
        consumer.commit(offsets=rows, asynchronous=False)
        consumer.close()

    return do


def mqtt_session_expiry(scene: Scene) -> Callable[[], None]:
    def connect() -> bool:
        """Whether the session was still there."""
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, f"{scene.name}-victim", protocol=paho.MQTTv5
        )
        there: list[bool] = []
        done = threading.Event()

        def connected(_client, _data, flags, _reason, _properties) -> None:
            there.append(flags.session_present)
            client.subscribe(scene.filter, qos=1)

        client.on_connect = connected
        client.on_subscribe = lambda *_found: done.set()
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 1
        client.connect("127.0.0.1", scene.ports["mqtt"], clean_start=False, properties=properties)
        client.loop_start()
        assert done.wait(DEADLINE_S)
        client.disconnect()
        client.loop_stop()
        return there[0]

    assert not connect()

    def do() -> None:
        wait_until(lambda: not connect(), pause_s=1.5)

    return do


def mqtt_ack(scene: Scene) -> Callable[[], None]:
    reader = MqttReader(scene.filter, f"{scene.name}-victim", qos=2)
    reader.come(scene.ports["mqtt"])

    def do() -> None:
        reader.wait_for(scene.written)
        reader.leave()
        assert reader.faults("mqtt", scene.written, in_order=True) == []

    return do


def mqtt_shared_group(scene: Scene) -> Callable[[], None]:
    members = [MqttReader(f"$share/{scene.name}/{scene.filter}", f"{scene.name}-{n}") for n in "ab"]
    for member in members:
        member.come(scene.ports["mqtt"])

    def do() -> None:
        wait_until(lambda: sum(len(member.seen) for member in members) == scene.written)
        for member in members:
            member.leave()

    return do


def wait_until(holds: Callable[[], bool], pause_s: float = 0.02) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(pause_s)


DEEDS = [
    amqp_ack, amqp_reject, amqp_purge, amqp_delete, amqp_expiry, amqp_overflow, amqp_transaction,
    kafka_reset, kafka_commit_behind_the_end,
    mqtt_session_expiry, mqtt_ack, mqtt_shared_group,
]  # fmt: skip


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_i3_what_one_reader_does_changes_nothing_for_any_other(server, clients, channel, deed):
    scene = Scene(server, clients, channel)
    scene.session.come(scene.ports["mqtt"])
    scene.session.leave()
    scene.queue.declare(scene.ports["amqp"])
    do = deed(scene)
    scene.write()
    scene.read_on()  # everybody has a place in the log
    scene.write()  # and a backlog
    do()
    scene.write()
    scene.read_on()
    scene.look_back()
