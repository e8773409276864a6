"""Spark under access rules: the source reads and the sink writes what rules allow, and no more.

The errors that Spark shows name who asked, the topic and the right that is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException

from onelog.kafka_client import Access, Client, parse_servers
from onelog.record.batch import build_batch

READ = "anonymous may not do this: it needs the right subscribe on topic:ruled"
WRITE = "anonymous may not do this: it needs the right publish on topic:ruled"
TRANSACT = "anonymous may not do this: it needs the right consume on cursor:transaction/~link/"


def test_the_source_and_the_sink_follow_the_rules(own_broker, spark) -> None:
    where = f"127.0.0.1:{own_broker.port}"
    with Client(Access(servers=parse_servers(where))) as client:
        client.topics(["ruled"], create=True)
        now_ms = int(time.time() * 1000)  # retention would remove an old record
        client.produce({("ruled", 0): build_batch([(None, b"k", b"a", (), now_ms)])})

    def rule(name: str, text: str) -> None:
        own_broker.command("acl", "add", *text.split(), "--name", name)

    def read() -> list[bytes]:
        options = {"servers": where, "subscribe": "ruled", "columns": "value"}
        frame = spark.read.format("onelog").options(**options).load()
        return sorted(bytes(row[0]) for row in frame.collect())

    def write(value: str) -> None:
        frame = spark.sql(f"SELECT '{value}' AS value")
        frame.write.format("onelog").mode("append").options(servers=where, topic="ruled").save()

    def refused(wanted: str, work: Callable[..., object], *words: str) -> None:
        with pytest.raises(PySparkException) as told:
            work(*words)
        assert wanted in str(told.value)

    rule("other", "allow user:other publish topic:t")
    refused(READ, read)

    rule("reads", "allow anonymous subscribe topic:ruled")
    refused(TRANSACT, write, "no")
    rule("links", "allow anonymous consume cursor:transaction/~link/*")
    refused(WRITE, write, "no")
    rule("writes", "allow anonymous publish topic:ruled")
    write("b")
    assert read() == [b"a", b"b"]

    rule("denied", "deny everyone subscribe topic:ruled")
    refused(READ, read)
