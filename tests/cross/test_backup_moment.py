"""Going back to a moment: what each protocol sees of a restore that leaves out later records."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance import amqp_raw, mqtt_raw
from tests.conformance.mqtt_brokers import DEADLINE_S, GROUPS_AT_ONCE, Onelog


def a_moment() -> str:
    """Now, with nothing written in the same milliseconds."""
    time.sleep(0.05)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    time.sleep(0.05)
    return now


def channel_of(server: Onelog) -> amqp_raw.RawChannel:
    return amqp_raw.Raw(server.ports["amqp"]).open().channel()


def retain(server: Onelog, text: str) -> None:
    with mqtt_raw.Raw(server.ports["mqtt"]) as raw:
        raw.connect()
        raw.publish("state", text.encode(), qos=1, retain=True)


def put(server: Onelog, *texts: str) -> None:
    channel = channel_of(server)
    with channel.raw:
        channel.confirm()
        channel.put("", "jobs", *texts, delivery_mode=2)


def producer_of(server: Onelog, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}", **settings})


def taken(server: Onelog, count: int, group: str = "readers") -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}",
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["events"])
    found: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [row.value().decode() for row in consumer.consume(10, 0.2) if not row.error()]
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def test_each_protocol_goes_on_from_the_moment(tmp_path: Path):
    server, url = Onelog(tmp_path / "first", GROUPS_AT_ONCE), str(tmp_path / "store")
    server.folder.mkdir()
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}"})
        admin.create_topics([NewTopic("events", 1)])["events"].result(DEADLINE_S)
        channel = channel_of(server)
        with channel.raw:
            channel.queue("jobs", durable=True)
        retain(server, "old")
        put(server, "job 1", "job 2")
        teller = producer_of(server, **{"transactional.id": "teller"})
        teller.init_transactions(DEADLINE_S)
        plain = producer_of(server)
        plain.produce("events", "before")
        assert plain.flush(DEADLINE_S) == 0
        teller.begin_transaction()
        teller.produce("events", "open at the moment")
        teller.flush(DEADLINE_S)
        moment = a_moment()
        teller.commit_transaction(DEADLINE_S)
        retain(server, "new")
        put(server, "job 3")
        plain.produce("events", "after")
        assert plain.flush(DEADLINE_S) == 0
        assert taken(server, 3) == ["before", "open at the moment", "after"]
        server.command("backup", "create", url)
        server.command("restore", url, "--data-dir", "../second/data", "--to", moment)
        assert server.stop() == 0
    finally:
        server.kill()
    again = Onelog(tmp_path / "second", GROUPS_AT_ONCE).start()
    try:
        with mqtt_raw.Raw(again.ports["mqtt"]) as raw:
            raw.connect()
            raw.subscribe("state", 1)
            assert raw.message().payload == b"old"
        put(again, "job 4")
        channel = channel_of(again)
        with channel.raw:
            channel.consume("jobs", no_ack=True)
            assert channel.texts(3) == ["job 1", "job 2", "job 4"]
        plain = producer_of(again)
        plain.produce("events", "anew")
        assert plain.flush(DEADLINE_S) == 0
        assert taken(again, 1) == ["anew"]  # the group had read the rest
        assert taken(again, 2, "others") == ["before", "anew"]
        assert again.stop() == 0
        assert not again.errors()
    finally:
        again.kill()
