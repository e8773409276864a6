"""Topics change their home under load: nothing is lost or comes twice, and topics keep their order.

DESIGN §3, I2, I5. Real clients of three protocols write and read all the time; some readers leave
and come back, and in one test the broker itself goes and comes back.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE, Onelog, environment
from tests.cross.load import (
    DEADLINE_S,
    WRITERS,
    AmqpReader,
    KafkaReader,
    MqttReader,
    Reader,
    Writer,
    let_write,
    topic_of,
)
from tests.support.forks import run_onelog


class Plant:
    """A broker, and everybody who writes to it and reads from it."""

    def __init__(self, server: Onelog) -> None:
        self.server = server
        self.counts = dict.fromkeys(WRITERS, 0)
        self._writers: list[Writer] = []
        self.live = MqttReader()
        self.session = MqttReader(client_id="keeps-its-place", qos=2)
        self.shared = MqttReader("$share/workers/plant/#", client_id="worker", qos=2)
        self.group = KafkaReader()
        self.device = KafkaReader(topic_of("mqtt"), "device")
        self.queue = AmqpReader("busy")
        self.backlog = AmqpReader("idle")

    @property
    def ports(self) -> dict[str, int]:
        return self.server.ports

    @property
    def returning(self) -> list[MqttReader | KafkaReader | AmqpReader]:
        """Readers whose place is kept while they are away."""
        return [self.session, self.shared, self.group, self.device, self.queue]

    def begin(self) -> None:
        """Every topic is known before anybody looks for it by Kafka's names."""
        self.backlog.declare(self.ports["amqp"])
        self.live.come(self.ports["mqtt"])
        self.session.come(self.ports["mqtt"])
        self.shared.come(self.ports["mqtt"])
        self.queue.come(self.ports["amqp"])
        for name in WRITERS:
            self.onelog("pub", topic_of(name), f"{name} 0", "--port", str(self.ports["mqtt"]))
            self.counts[name] = 1
        self.group.come(self.ports["kafka"])
        self.device.come(self.ports["kafka"])

    def onelog(self, *arguments: str) -> str:
        done = run_onelog(
            *arguments,
            folder=self.server.folder,
            environment=environment(),
            timeout_s=DEADLINE_S,
        )
        done.check_returncode()
        return done.stdout.decode()

    def stream(self, *arguments: str) -> None:
        self.onelog("stream", *arguments)
        let_write(self._writers, 50)

    def write(self) -> None:
        self._writers = [Writer(name, self.ports[name], self.counts[name]) for name in WRITERS]
        let_write(self._writers, 50)

    def stop_writing(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            self.counts[writer.name] = writer.stop()

    def leave(self) -> None:
        for reader in self.returning:
            reader.leave()

    def come_back(self) -> None:
        for reader in self.returning:
            port = {MqttReader: "mqtt", KafkaReader: "kafka", AmqpReader: "amqp"}[type(reader)]
            reader.come(self.ports[port])

    # -- what everybody has to have seen

    def check(self, reader: Reader, *, in_order: bool, writers: tuple[str, ...] = WRITERS) -> None:
        reader.wait_for(sum(self.counts[name] for name in writers))
        faults = [
            fault
            for name in writers
            for fault in reader.faults(name, self.counts[name], in_order=in_order)
        ]
        assert faults == [], type(reader).__name__

    def check_all(self) -> None:
        self.backlog.come(self.ports["amqp"])
        self.check(self.session, in_order=True)
        self.check(self.shared, in_order=True)
        self.check(self.queue, in_order=True)
        self.check(self.backlog, in_order=True)
        # Kafka orders a partition, and a topic that moved has several.
        self.check(self.group, in_order=False)
        self.check(self.device, in_order=False, writers=("mqtt",))
        self.backlog.leave()
        for via in ("mqtt", "amqp"):
            late = Reader()
            port = str(self.ports[via])
            for line in self.onelog("replay", "plant/#", "--via", via, "--port", port).split("\n"):
                if line:
                    late.note(line.encode())
            self.check(late, in_order=True)


@pytest.fixture
def plant(tmp_path) -> Iterator[Plant]:
    server = Onelog(tmp_path, GROUPS_AT_ONCE).start()
    found = Plant(server)
    found.begin()
    yield found
    found.leave()
    found.live.leave()
    assert server.stop() == 0
    assert not server.errors()


def test_nothing_is_lost_or_twice_when_new_streams_take_topics_over_under_load(plant):
    """A wildcard stream, one below it, one for an exact topic; and back again."""
    plant.write()
    plant.stream("create", "plant", "--capture", "plant/#", "--partitions", "3")
    plant.leave()
    plant.stream("create", "deeper", "--capture", "plant/+/t", "--partitions", "2")
    plant.come_back()
    plant.stream("create", "own", "--capture", topic_of("amqp"))
    plant.stream("create", "device", "--capture", topic_of("mqtt"))
    late = AmqpReader("late", start="earliest")
    late.come(plant.ports["amqp"])
    plant.stream("alter", "deeper", "--release", "plant/+/t")
    plant.stream("alter", "plant", "--partitions", "5")
    plant.stop_writing()
    plant.check(plant.live, in_order=True)
    plant.check(late, in_order=True)
    late.leave()
    plant.check_all()


def test_nothing_is_lost_or_twice_when_the_broker_restarts_between_moves(plant):
    """Moves before, between and after two restarts, with backlogs that span them."""
    plant.write()
    plant.stream("create", "plant", "--capture", "plant/#")
    plant.stop_writing()
    plant.check(plant.live, in_order=True)
    plant.live.leave()
    for step in ("there", "back"):
        plant.leave()
        plant.write()
        if step == "there":
            plant.stream("alter", "plant", "--capture", topic_of("mqtt"))
            plant.stream("create", "aside", "--capture", "plant/+/t", "--partitions", "2")
        else:
            plant.stream("alter", "aside", "--release", "plant/+/t")
            plant.stream("alter", "plant", "--release", "plant/#")
        plant.stop_writing()
        assert plant.server.stop() == 0
        plant.server.start()
        plant.come_back()
        plant.write()
        plant.stop_writing()
    plant.live = MqttReader()
    plant.live.come(plant.ports["mqtt"])
    plant.check_all()
