"""Does Spark get in where a user and TLS are asked for?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException

from onelog.kafka_client import Access, Client, parse_servers
from onelog.record.batch import build_batch
from tests.conformance.kafka_brokers import serve_guarded
from tests.conformance.mqtt_brokers import Onelog


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[Onelog]:
    yield from serve_guarded(tmp_path_factory.mktemp("spark-login"))


def test_spark_gets_in_with_options(guarded, spark) -> None:
    secure = f"localhost:{guarded.ports['kafka_tls']}"
    made = Access(
        servers=parse_servers(secure), user="al,i=ce", password="secret-1", tls=True,
        ca_file=str(guarded.folder / "ca.pem"),
    )  # fmt: skip
    with Client(made) as client:
        client.topics(["secured"], create=True)
        # Of today: Spark may take longer to start than retention leaves a record of 1970.
        now_ms = int(time.time() * 1000)
        client.produce({("secured", 0): build_batch([(None, b"k", b"a", (), now_ms)])})
    options = {
        "servers": secure, "user": "al,i=ce", "password": "secret-1", "subscribe": "secured",
        "sasl.mechanism": "SCRAM-SHA-256", "tls.ca": str(guarded.folder / "ca.pem"),
        "columns": "value", "startingOffsets": '{"secured":{"0":0,"1":0,"2":0,"3":0}}',
    }  # fmt: skip
    frame = spark.read.format("onelog")
    assert [bytes(row[0]) for row in frame.options(**options).load().collect()] == [b"a"]
    with pytest.raises(PySparkException, match="does not let al,i=ce in") as told:
        frame.options(**options | {"password": "wrong-one"}).load().count()
    assert "wrong-one" not in str(told.value)
