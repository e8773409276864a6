"""The options of the sink, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onelog.base.errors import ConfigError
from onelog.kafka_client import Access
from onelog.record.compression import CODEC_NAMES
from onelog.spark.options import CONNECTION, Given, Option, access_of
from onelog.spark.sink.linking import QUERY_CHARS_MAX

TIMEOUT_MS: Final = 900_000
BATCH_BYTES: Final = 1 << 20
BATCH_BYTES_LEAST: Final = 1 << 10
BATCH_BYTES_MOST: Final = 32 << 20
"""With its request it stays below what a broker takes."""
_CODECS: Final = {name: codec for codec, name in CODEC_NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The options of a sink. Plain values: they travel to executors."""

    access: Access
    topic: str | None = None
    codec: int = 0
    batch_bytes: int = BATCH_BYTES
    timeout_ms: int = TIMEOUT_MS
    query: str | None = None
    """Batch jobs: with `batch`, what makes a repeated write a no-op."""
    batch: int | None = None


OPTIONS: Final = (
    *CONNECTION,
    Option("topic", "where all rows go; without it the column topic says so"),
    Option("compression", f"of the batches: {', '.join(_CODECS)}", ("kafka.compression.type",)),
    Option("batchBytes", f"bytes of a batch of records; {BATCH_BYTES} unless told"),
    Option(
        "transactionTimeoutMs",
        f"how long a batch of a query may take, from its first row on; {TIMEOUT_MS} unless told",
        ("kafka.transaction.timeout.ms",),
    ),
    Option("queryId", "batch jobs: with batchId, what makes a repeated write a no-op"),
    Option("batchId", "batch jobs: the number of this write, greater than the one before"),
)


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a sink. Raises ConfigError."""
    given = Given(options, OPTIONS)
    batch = given.number("batchId")
    if ("queryId" in given) != (batch is not None):
        raise ConfigError("the options queryId and batchId belong together: give both or neither")
    query = given.text("queryId")
    if "queryId" in given and (not 0 < len(query) <= QUERY_CHARS_MAX or "/" in query):
        raise ConfigError(
            f"option queryId: {query!r} has to have 1 to {QUERY_CHARS_MAX} characters, and no /"
        )
    if "topic" in given and not given.text("topic"):
        raise ConfigError("option topic: it is empty; leave it out to use the column topic")
    return SinkOptions(
        access=access_of(given),
        topic=given.text("topic") or None,
        codec=_CODECS[given.choice("compression", _CODECS, "none")],
        batch_bytes=given.number("batchBytes", BATCH_BYTES_LEAST, BATCH_BYTES_MOST) or BATCH_BYTES,
        timeout_ms=given.number("transactionTimeoutMs", 1000, 2**31 - 1) or TIMEOUT_MS,
        query=query or None,
        batch=batch,
    )
