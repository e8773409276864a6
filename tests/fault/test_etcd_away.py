"""Does a node whose metadata lies in etcd serve every protocol, also while etcd is away?

Publishing and consuming need nothing of etcd. Commands that need it are refused with the error that
each protocol's clients try again after. When etcd is back, everything is as before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from onelog.cluster_assembly import init_cluster
from onelog.config import load
from tests.support.etcd import EtcdCluster, find_etcd, needs_etcd
from tests.support.ports import free_ports
from tests.support.served import Served

pytestmark = [needs_etcd, pytest.mark.fault]

ANSWER_S = 10.0
"""A client that waits longer than this for an answer has failed."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path)
    try:
        yield cluster.start()
    finally:
        cluster.close()


def on_etcd(etcd: EtcdCluster) -> tuple[str, ...]:
    urls = ", ".join(f'"{url}"' for url in etcd.urls)
    return (
        'cluster.mode="etcd"',
        f"cluster.etcd.endpoints=[{urls}]",
        "cluster.node_ttl_ms=2000",
        "cluster.factor=1",
        "cluster.min_insync=1",
        "cluster.etcd.deadline_ms=1000",
        "node.id=1",
    )


class Clients:
    """A client of each protocol, whose calls wait for their answers."""

    def __init__(self, served: Served) -> None:
        at = f"127.0.0.1:{served.ports['kafka']}"
        self.at = at
        self.mqtt = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="c")
        self.mqtt.connect("127.0.0.1", served.ports["mqtt"])
        self.mqtt.loop_start()
        self.producer = confluent_kafka.Producer(
            {"bootstrap.servers": at, "enable.idempotence": True, "linger.ms": 0}
        )
        self.admin = AdminClient({"bootstrap.servers": at})
        self.consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": at, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        self.amqp = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", served.ports["amqp"], heartbeat=0)
        )
        self.channel = self.amqp.channel()
        self.channel.confirm_delivery()

    def declare(self) -> None:
        self.create("plant")
        self.channel.queue_declare("work", durable=True)

    def subscribe(self) -> None:
        """For those who consume: librdkafka may hang when it closes in the middle of a join."""
        self.consumer.subscribe(["plant"])

    def create(self, topic: str) -> None:
        made = self.admin.create_topics([NewTopic(topic, 1)], operation_timeout=1.0)
        made[topic].result(ANSWER_S)

    def create_soon(self, topic: str, timeout_s: float) -> None:
        """As a client does that tries again; an attempt of unknown outcome may have made it."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                self.create(topic)
            except confluent_kafka.KafkaException as error:
                code = error.args[0].code()
                if code == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                assert time.monotonic() < end, error
            else:
                return

    def publish(self, number: int) -> None:
        """One message by each protocol, answered."""
        told = self.mqtt.publish("plant/m", f"m{number}", qos=1)
        told.wait_for_publish(ANSWER_S)
        assert told.is_published()
        failed: list[object] = []
        self.producer.produce(
            "plant", f"k{number}", on_delivery=lambda error, _: error and failed.append(error)
        )
        assert self.producer.flush(ANSWER_S) == 0
        assert not failed
        self.channel.basic_publish("", "work", f"a{number}".encode())

    def consume(self, until: str) -> list[str]:
        """Records of the topic up to one of them."""
        found: list[str] = []
        end = time.monotonic() + 30.0
        while until not in found:
            assert time.monotonic() < end, f"{until} does not come; there are {found[-5:]}"
            record = self.consumer.poll(1.0)
            if record is not None and record.error() is None:
                found.append(record.value().decode())
        return found

    def close(self) -> None:
        self.mqtt.loop_stop()
        self.mqtt.disconnect()
        self.consumer.close()
        with contextlib.suppress(pika.exceptions.AMQPError):
            self.amqp.close()


@contextlib.contextmanager
def clients_of(served: Served) -> Iterator[Clients]:
    clients = Clients(served)
    try:
        yield clients
    finally:
        clients.close()


def seen(served: Served) -> dict:
    with urllib.request.urlopen(f"{served.url}/api/v1/cluster", timeout=ANSWER_S) as answer:
        return json.loads(answer.read())


def test_every_protocol_runs_on_etcd_and_a_restart_finds_everything(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    with Served(tmp_path / "data", *on_etcd(etcd)) as served, clients_of(served) as clients:
        clients.declare()
        clients.subscribe()
        for number in range(5):
            clients.publish(number)
        assert "k4" in clients.consume("k4")
        first = seen(served)
        assert (first["mode"], first["controller"]) == ("etcd", 1)
        assert [node["id"] for node in first["nodes"]] == [1]
        assert first["epoch"] == first["nodes"][0]["epoch"] > 0
    assert not (tmp_path / "data" / "metadata.db").exists()
    with Served(tmp_path / "data", *on_etcd(etcd)) as served, clients_of(served) as clients:
        second = seen(served)
        assert second["epoch"] > first["epoch"]
        assert second["nodes"][0]["is_clean"]
        got = [clients.channel.basic_get("work", auto_ack=True)[2] for _ in range(5)]
        assert got == [b"a%d" % number for number in range(5)]
        clients.subscribe()
        clients.publish(5)
        assert clients.consume("k5")[-1] == "k5"


def test_a_node_on_its_own_moves_to_etcd_with_everything(etcd: EtcdCluster, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Served(data, "node.id=1") as served, clients_of(served) as clients:
        clients.declare()
        for number in range(3):
            clients.publish(number)
    moved = init_cluster(load(None, {}, (f'data_dir="{data}"', *on_etcd(etcd))).config)
    assert moved.rows > 0
    assert (data / "metadata.db.moved").exists()
    with Served(data, *on_etcd(etcd)) as served, clients_of(served) as clients:
        got = [clients.channel.basic_get("work", auto_ack=True)[2] for _ in range(3)]
        assert got == [b"a0", b"a1", b"a2"]
        clients.subscribe()
        clients.publish(3)
        assert {"k0", "k1", "k2", "k3"} <= set(clients.consume("k3"))
        assert seen(served)["id"] == moved.cluster_id


@pytest.mark.parametrize("away_s", [8.0, pytest.param(60.0, marks=pytest.mark.fault_long)])
def test_while_etcd_is_away_publishing_goes_on_and_commands_can_be_tried_again(
    etcd: EtcdCluster, tmp_path: Path, away_s: float
) -> None:
    with Served(tmp_path / "data", *on_etcd(etcd)) as served, clients_of(served) as clients:
        clients.declare()
        clients.subscribe()
        clients.publish(0)
        clients.consume("k0")
        epoch = seen(served)["epoch"]
        etcd.members[0].kill()
        number, end, refused = 0, time.monotonic() + away_s, 0
        while time.monotonic() < end:
            number += 1
            clients.publish(number)
            assert clients.consume(f"k{number}")[-1] == f"k{number}"
            if number in (1, 5):
                with pytest.raises(confluent_kafka.KafkaException) as error:
                    clients.create("later")
                assert error.value.args[0].code() in (
                    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
                    confluent_kafka.KafkaError.REQUEST_TIMED_OUT,
                    confluent_kafka.KafkaError._TIMED_OUT,
                )
                refused += 1
        assert number > 5
        assert refused == 2
        assert seen(served)["is_current"] is False
        etcd.restart(etcd.members[0])
        etcd.wait()
        clients.create_soon("after", 20.0)
        clients.publish(number + 1)
        assert clients.consume(f"k{number + 1}")[-1] == f"k{number + 1}"
        until(lambda: seen(served)["epoch"])
        found = seen(served)
        assert found["is_current"]
        assert found["epoch"] >= epoch
        assert found["controller"] in (1, -1)


# ---- the member that a node runs itself ----


def spawning(client: int, peer: int) -> tuple[str, ...]:
    return (
        'cluster.mode="etcd"',
        "cluster.etcd.spawn=true",
        f'cluster.etcd.binary="{find_etcd()}"',
        f'cluster.etcd.listen="http://127.0.0.1:{client}"',
        f'cluster.etcd.initial=["1=http://127.0.0.1:{peer}"]',
        "cluster.etcd.deadline_ms=1000",
        "cluster.factor=1",
        "cluster.min_insync=1",
        "node.id=1",
    )


class ServeProcess:
    """`onelog serve` as a process of its own."""

    def __init__(self, folder: Path, *chosen: str) -> None:
        ports = ("admin", "mqtt", "kafka", "amqp")
        given = [f"listeners.{name}.port=0" for name in ports] + [f'data_dir="{folder}"', *chosen]
        line = [sys.executable, "-m", "onelog", "serve"]
        for text in given:
            line += ("--set", text)
        self.log = folder.with_suffix(".log")
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                line, stdout=subprocess.PIPE, stderr=out, env=dict(os.environ)
            )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            line = self.process.stdout.readline()
            assert line, f"it ended:\n{self.log.read_text()[-3000:]}"
            if b"is running" in line:
                return

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(60.0)
        if self.process.stdout is not None:
            self.process.stdout.close()


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = stat.read_text()
            if int(text.rpartition(")")[2].split()[1]) == pid and "(etcd)" in text:
                found.append(int(stat.parent.name))
    return found


def until(holds, timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_member_of_a_node_ends_with_it(tmp_path: Path, number: int) -> None:
    served = ServeProcess(tmp_path / "data", *spawning(*free_ports(2)))
    try:
        served.wait_ready()
        (child,) = children_of(served.process.pid)
    finally:
        served.end(number)
    until(lambda: not Path(f"/proc/{child}").exists())
    assert (tmp_path / "data" / "etcd" / "member").is_dir()


def test_three_nodes_run_three_members_and_one_of_them_may_be_killed(tmp_path: Path) -> None:
    """One node serves; the other two only run their members."""
    ports = free_ports(6)
    initial = ", ".join(f'"{n + 1}=http://127.0.0.1:{ports[n]}"' for n in range(3))
    urls = [f"http://127.0.0.1:{ports[3 + n]}" for n in range(3)]
    chosen = [
        (
            'cluster.mode="etcd"',
            "cluster.etcd.spawn=true",
            f'cluster.etcd.binary="{find_etcd()}"',
            f'cluster.etcd.listen="{urls[n]}"',
            f"cluster.etcd.initial=[{initial}]",
            f"cluster.etcd.endpoints={json.dumps(urls)}",
            "cluster.etcd.deadline_ms=2000",
            "cluster.factor=1",
            "cluster.min_insync=1",
            f"node.id={n + 1}",
            *(() if n == 0 else ('node.roles=["meta"]',)),
        )
        for n in range(3)
    ]
    others = [ServeProcess(tmp_path / f"data{n}", *chosen[n]) for n in (1, 2)]
    try:
        with Served(tmp_path / "data0", *chosen[0]) as served, clients_of(served) as clients:
            clients.declare()
            clients.publish(0)
            assert len(seen(served)["etcd"]) == 3
            others[0].end(signal.SIGKILL)
            clients.create_soon("after", 30.0)
            clients.publish(1)
            assert seen(served)["is_current"]
    finally:
        for other in others:
            other.end(signal.SIGKILL)


def test_a_member_that_is_killed_is_started_again_and_the_node_lives_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    others = set(children_of(os.getpid()))  # of tests before this one
    with Served(data, *spawning(*free_ports(2))) as served, clients_of(served) as clients:
        clients.declare()
        clients.publish(0)
        (child,) = set(children_of(os.getpid())) - others
        os.kill(child, signal.SIGKILL)
        clients.publish(1)
        until(lambda: set(children_of(os.getpid())) - others - {child})
        until(lambda: seen(served)["is_current"])  # perhaps still from before the kill
        clients.create_soon("after", 3 * ANSWER_S)
        clients.publish(2)
