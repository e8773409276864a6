"""Bad rows into a topic, each once, by the same link of (query, batch) that the topic sink has.

Rules: a task without bad rows does not connect. Readers see the staged rows when the driver links
them, before the good rows of the batch are committed; a replayed batch is known to the broker.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

import pyarrow as pa

from onelog.kafka_client import Client
from onelog.lake.columns import BadRow
from onelog.lake.options import TableOptions
from onelog.spark.sink.columns import Layout
from onelog.spark.sink.linking import Batch, Member, link
from onelog.spark.sink.options import SinkOptions, sink_options
from onelog.spark.sink.staging import Staging

VALUE_ONLY = Layout(value=0, key=None, headers=None, topic=None, partition=None)
SCHEMA = pa.schema([("value", pa.binary())])
OF_QUERY = ".dead-letters"


def topic_options(options: TableOptions) -> SinkOptions:
    """How the topic of bad rows is written to."""
    assert options.dead_letter_topic is not None
    return sink_options({**dict(options.dead_letter_options), "topic": options.dead_letter_topic})


class TopicLetters:
    """The bad rows of one task."""

    def __init__(self, options: TableOptions, query: str, number: int) -> None:
        self._options = options
        self._batch = batch_of(query, number)
        self._staging: Staging | None = None

    def write(self, bad: Sequence[BadRow]) -> None:
        """Stage some bad rows."""
        if self._staging is None:
            # Each attempt of a task is a member of its own: an earlier one may still write.
            name = self._batch.member_id(uuid.uuid4().hex)
            self._staging = Staging(topic_options(self._options), VALUE_ONLY, name, 0)
        values = [
            json.dumps(
                {"table": self._options.table, "reason": one.reason, "row": json.loads(one.row)}
            ).encode()
            for one in bad
        ]
        self._staging.add(pa.record_batch([pa.array(values, pa.binary())], schema=SCHEMA))

    def close(self) -> list[Member]:
        """Everything is durable; what the driver links."""
        if self._staging is None:
            return []
        with self._staging as staging:
            member = staging.finish()
        return [] if member is None else [member]

    def discard(self) -> None:
        """Give up what was staged."""
        if self._staging is not None:
            self._staging.__exit__(None, RuntimeError("the task failed"), None)


def batch_of(query: str, number: int) -> Batch:
    """Bad rows are linked beside the rows that the query may write to topics itself."""
    return Batch(query + OF_QUERY, number)


def link_letters(
    options: TableOptions, query: str, number: int, members: Sequence[Member], *, commit: bool
) -> None:
    """Make bad rows visible, or give them up."""
    with Client(topic_options(options).access) as client:
        link(client, batch_of(query, number), members, commit=commit)
