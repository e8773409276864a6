"""Whoever reads, by whichever protocol, sees a batch of the sink when it is linked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pyarrow as pa
import pytest

from onelog.kafka_client import Client
from onelog.spark.sink.columns import Layout
from onelog.spark.sink.linking import Batch, Member, link
from onelog.spark.sink.options import SinkOptions, sink_options
from onelog.spark.sink.staging import Staging
from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.cross.clients import Amqp, Kafka, Mqtt, Said
from tests.spark.topics import make_topic, servers

VALUE_ONLY = Layout(0, None, None, None, None)
Reader = Amqp | Kafka | Mqtt


def staged(options: SinkOptions, batch: Batch, *values: str) -> Member:
    with Staging(options, VALUE_ONLY, batch.member_id("0-0"), 0) as staging:
        staging.add(pa.record_batch([pa.array([*values], pa.string())], ["value"]))
        member = staging.finish()
    assert member is not None
    return member


@pytest.fixture
def place() -> str:
    return unique("linked/t")


@pytest.fixture
def readers(broker: KafkaOnelog, place: str) -> Iterator[dict[str, Reader]]:
    make_topic(broker, place.replace("/", "."), 1)
    ports = broker.ports
    with ExitStack() as opened:
        yield {
            "mqtt": opened.enter_context(closing(Mqtt(ports["mqtt"], 5, place))),
            "amqp": opened.enter_context(closing(Amqp(ports["amqp"], place))),
            "kafka": opened.enter_context(closing(Kafka(ports["kafka"], place))),
        }


def test_every_protocol_sees_what_was_linked_and_nothing_else(
    broker: KafkaOnelog, readers: dict[str, Reader], place: str
):
    options = sink_options({"servers": servers(broker), "topic": place})
    query = unique("q")
    writer = readers["mqtt"]
    writer.write(Said(b"before"), place)
    staged(options, Batch(query, 0), "of a driver that died")
    first = Batch(query, 1)
    member = staged(options, first, "a", "b")
    writer.write(Said(b"meanwhile"), place)
    with Client(options.access) as client:
        assert link(client, first, [member], commit=True) == "linked"
        again = staged(options, first, "a", "b")
        assert link(client, first, [again], commit=True) == "already"
        given_up = Batch(query, 2)
        assert link(client, given_up, [staged(options, given_up, "c")], commit=False) == "aborted"
    writer.write(Said(b"after"), place)
    wanted = [b"before", b"a", b"b", b"meanwhile", b"after"]
    for name, reader in readers.items():
        assert [reader.read().payload for _ in wanted] == wanted, name
