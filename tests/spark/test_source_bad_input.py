"""Is what cannot be read told with its name, and does nothing come out that is not there?"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException

from onelog.base.errors import ConfigError
from onelog.kafka_client import Client, fetch_request
from onelog.kernel import ATTR_TRANSACTIONAL
from onelog.record.batch import build_batch
from onelog.spark.source.columns import source_ddl
from onelog.spark.source.options import source_options
from tests.conformance.kafka_brokers import unique
from tests.spark.topics import access, append, make_topic, numbered, rows, servers


@pytest.fixture
def read(spark, broker):
    def start(**options):
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        given = {"servers": servers(broker)} | named
        return spark.read.format("onelog").options(**given).load()

    return start


@pytest.fixture
def topic(broker) -> str:
    return make_topic(broker, unique("bad"))


def delete_before(server, topic: str, partition: int, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers(server)})
    place = TopicPartition(topic, partition, offset)
    admin.delete_records([place])[place].result(30)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "none is given: one of subscribe, subscribePattern, assign, filter"),
        ({"subscribe": "a", "filter": "b"}, "subscribe and filter are given"),
        ({"subscribe": "a", "startingOfsets": "latest"}, "did you mean startingOffsets"),
        ({"subscribe": "a", "nonsense": "1"}, "option nonsense is not known"),
        ({"subscribe": "  "}, "option subscribe is empty"),
        (
            {"subscribe": "a", "startingOffsets": "soon"},
            "option startingOffsets: 'soon' is not JSON",
        ),
        ({"subscribe": "a", "startingOffsets": "latest"}, "a batch cannot start at latest"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"x":1}}'}, "partition 'x'"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "a batch cannot end at earliest"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "5"}, "for streams"),
        ({"subscribe": "a", "minPartitions": "many"}, "option minPartitions: 'many'"),
        ({"subscribe": "a", "minPartitions": "0"}, "option minPartitions: '0'"),
        ({"subscribe": "a", "includeHeaders": "yes"}, "option includeHeaders: 'yes'"),
        ({"subscribe": "a", "columns": "valu"}, "did you mean value"),
        ({"subscribe": "a", "decode": "yaml"}, "option decode: 'yaml'"),
        ({"subscribe": "a", "decode": "json"}, "option valueSchema is missing"),
        ({"subscribe": "a", "valueSchema": "x INT"}, "valueSchema needs decode"),
        ({"subscribePattern": "("}, "option subscribePattern"),
        ({"assign": "[1]"}, "option assign"),
        ({"filter": "a/#/b"}, "option filter"),
        ({"subscribe": "a", "servers": "host:port"}, "'host:port' is not host:port"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "x"}, "mean the same"),
        ({"subscribe": "a", "password": "x"}, "no user"),
        ({"subscribe": "a", "sasl.mechanism": "GSSAPI"}, "not one of PLAIN"),
        ({"subscribe": "a", "kafka.isolation.level": "read_uncommitted"}, "isolation.level"),
    ],
)
def test_a_wrong_option_is_told_by_its_name(options, words) -> None:
    # As Spark hands them over: in small letters.
    given = {name.lower(): value for name, value in ({"servers": "h"} | options).items()}
    with pytest.raises(ConfigError) as told:
        source_ddl(source_options(given, streaming=False))
    assert words in str(told.value)


def test_a_wrong_option_of_a_query_is_told_by_its_name(read, topic) -> None:
    with pytest.raises(PySparkException, match="option minPartitions: 'many' is not a number"):
        read(subscribe=topic, minPartitions="many").count()


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is for batches"):
        source_options({"servers": "h", "subscribe": "a", name: "1"}, streaming=True)


def test_an_unknown_topic_is_told(read) -> None:
    with pytest.raises(PySparkException, match="option subscribe: topic 'no-such-topic'"):
        read(subscribe="no-such-topic").count()


def test_an_unknown_partition_is_told(read, topic) -> None:
    with pytest.raises(PySparkException, match=f"topic '{topic}' has no partition 7"):
        read(assign=json.dumps({topic: [0, 7]})).count()


def test_offsets_must_name_every_partition_and_no_other(read, topic) -> None:
    with pytest.raises(PySparkException, match=f"{topic}-1 is missing"):
        read(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 0}})).count()
    with pytest.raises(PySparkException, match="other-0 is not read"):
        read(subscribe=topic, startingOffsets=json.dumps({"other": {"0": 0}})).count()


def test_an_end_that_is_not_reached_is_told(read, topic) -> None:
    ends = json.dumps({topic: {"0": 5, "1": 0}})
    with pytest.raises(PySparkException, match=f"{topic}-0 ends at 0, before 5"):
        read(subscribe=topic, endingOffsets=ends).count()


def test_a_broker_that_is_not_there_is_told(spark) -> None:
    frame = spark.read.format("onelog").options(
        servers="127.0.0.1:1", subscribe="a", timeoutMs="100"
    )
    with pytest.raises(PySparkException, match=r"nothing answers at 127\.0\.0\.1:1"):
        frame.load().count()


def test_offsets_that_aged_out_are_told_and_passed_over_if_that_is_wanted(
    broker, read, topic
) -> None:
    append(broker, topic, 0, numbered(0, 10))
    append(broker, topic, 0, numbered(10, 10))
    delete_before(broker, topic, 0, 13)
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 5, "1": 0}})}
    with pytest.raises(PySparkException) as told:
        read(**options).count()
    assert (
        f"{topic}-0: offsets 5 to 12 are gone: the log now begins at 13. They were removed by"
        " retention or deleted before they were read. To go on with what is there, set the option"
        " failOnDataLoss to false"
    ) in str(told.value)
    found = read(**options, failOnDataLoss="false").collect()
    assert sorted(row.offset for row in found) == list(range(13, 20))


def test_a_gap_is_not_loss_while_the_log_begins_before_it(broker, read, topic) -> None:
    """The end of a transaction takes an offset of its own, and an aborted one all of its."""
    with Client(access(broker)) as client:
        for commit in (True, False):
            name = unique("txn")
            producer = client.init_producer(name, 60_000)
            client.add_partitions(name, producer, [(topic, 0)])
            data = build_batch(
                rows("x", "y"), attributes=ATTR_TRANSACTIONAL, producer=(*producer, 0)
            )
            client.produce({(topic, 0): data}, name)
            client.end(name, producer, commit=commit)
        client.produce({(topic, 0): build_batch(rows("last"))})
        client.fetch(fetch_request({(topic, 0): 6}, bytes_max=1, part_bytes_max=1, wait_ms=5000))
    for start, found in ((0, [0, 1, 6]), (2, [6]), (4, [6]), (5, [6])):
        places = json.dumps({topic: {"0": start, "1": 0}})
        frame = read(subscribe=topic, startingOffsets=places)
        assert [row.offset for row in frame.sort("offset").collect()] == found


def test_a_stream_whose_offsets_aged_out_fails_or_goes_on(spark, broker, topic, tmp_path) -> None:
    append(broker, topic, 0, numbered(0, 10))

    def run(**more: str) -> None:
        query = (
            spark.readStream.format("onelog")
            .options(servers=servers(broker), subscribe=topic, startingOffsets="earliest", **more)
            .load().selectExpr("CAST(value AS STRING) v").writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )  # fmt: skip
        query.awaitTermination(60)

    run()
    append(broker, topic, 0, numbered(10, 10))
    delete_before(broker, topic, 0, 15)
    with pytest.raises(PySparkException, match=f"{topic}-0: offsets 10 to 14 are gone"):
        run()
    run(failOnDataLoss="false")
    found = sorted(row.v for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert found == sorted(f"v{n}" for n in [*range(10), *range(15, 20)])


def test_a_stream_whose_topic_is_gone_fails_or_goes_on(spark, broker, topic, tmp_path) -> None:
    other = make_topic(broker, unique("stays"))
    append(broker, topic, 0, rows("a"))
    append(broker, other, 0, rows("b"))

    def run(**more: str) -> None:
        query = (
            spark.readStream.format("onelog")
            .options(servers=servers(broker), subscribe=f"{topic},{other}")
            .options(startingOffsets="earliest", **more)
            .load().selectExpr("CAST(value AS STRING) v").writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )  # fmt: skip
        query.awaitTermination(60)

    run()
    admin = AdminClient({"bootstrap.servers": servers(broker)})
    admin.delete_topics([topic])[topic].result(30)
    append(broker, other, 0, rows("c"))
    with pytest.raises(PySparkException, match=f"topic '{topic}': there is no such topic"):
        run()
    run(failOnDataLoss="false")
    found = sorted(row.v for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert found == ["a", "b", "c"]


# -- bytes that are not what they should be


class Meddler:
    """A proxy that changes one byte of what the broker sends."""

    def __init__(self, port: int, at: bytes) -> None:
        self._target, self._at = port, at
        self.port = 0
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,))
        self._thread.start()
        ready.wait(10)

    def _run(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._over = asyncio.Event()
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            async with server:
                await self._over.wait()

        self._loop.run_until_complete(main())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._target)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, bad: bool) -> None:
            while data := await source.read(1 << 20):
                at = data.find(self._at) if bad else -1
                if at >= 0:
                    data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                sink.write(data)
                await sink.drain()
            sink.close()

        await asyncio.gather(
            pump(reader, forth, False), pump(back, writer, True), return_exceptions=True
        )

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


@pytest.fixture
def meddler(broker) -> Iterator[Meddler]:
    made = Meddler(broker.ports["kafka"], b"v1234567890")
    yield made
    made.close()


def test_a_batch_that_is_damaged_is_told_and_nothing_of_it_comes_out(
    broker, spark, topic, meddler
) -> None:
    append(broker, topic, 0, rows("a", "v1234567890", "b"))
    frame = (
        spark.read.format("onelog")
        .options(servers=f"127.0.0.1:{meddler.port}", subscribe=topic).load()
    )  # fmt: skip
    with pytest.raises(PySparkException) as told:
        frame.collect()
    assert f"{topic}-0: the batch of offsets 0 to 2 is damaged: " in str(told.value)
    assert "CRC" in str(told.value)


def test_a_batch_that_is_damaged_on_the_disk_is_told_and_the_rest_can_be_read(
    own_broker, spark
) -> None:
    topic = make_topic(own_broker, unique("damaged"))
    for values in (("a", "b"), ("c", "v1234567890", "d"), ("e",)):
        append(own_broker, topic, 0, rows(*values))
    append(own_broker, topic, 1, rows("x"))
    (file,) = [
        one for one in own_broker.folder.rglob("*.log") if b"v1234567890" in one.read_bytes()
    ]
    with file.open("r+b") as log:
        log.seek(file.read_bytes().find(b"v1234567890"))
        log.write(b"w")

    def read(**options: str) -> list[str]:
        given = {"servers": servers(own_broker), **options}
        frame = spark.read.format("onelog").options(**given).load()
        return sorted(row.v for row in frame.selectExpr("CAST(value AS STRING) v").collect())

    words = f"{topic}-0: the batch of offsets 2 to 4 is damaged: .*CRC.*restore the partition"
    with pytest.raises(PySparkException, match=words):
        read(subscribe=topic)
    assert read(subscribe=topic, endingOffsets=json.dumps({topic: {"0": 2, "1": 1}})) == [
        "a", "b", "x",
    ]  # fmt: skip
    assert read(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 5, "1": 0}})) == [
        "e", "x",
    ]  # fmt: skip

    # A broker that reads it itself, as MQTT does when it starts, stops this partition, no other.
    own_broker.stop()
    own_broker.start()
    words = f"{topic}-0: the partition is damaged, the disk is full or the object store is away"
    with pytest.raises(PySparkException, match=words):
        read(subscribe=topic)
    assert f"{topic}/0 is damaged" in own_broker.get(f"/api/v1/streams/{topic}/partitions")
    assert read(assign=json.dumps({topic: [1]})) == ["x"]
