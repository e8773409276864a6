"""The options of the sink, checked before anything is written.

Rules: what the connection needs is read by `onelog.spark.options`, as for the source. The names
are compared without regard to case, as Spark compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onelog.base.errors import ConfigError
from onelog.record.compression import CODEC_NAMES
from onelog.spark.client import Access, parse_servers
from onelog.spark.sink.linking import QUERY_CHARS_MAX

TIMEOUT_MS: Final = 900_000
BATCH_BYTES: Final = 1 << 20
BATCH_BYTES_LEAST: Final = 1 << 10
BATCH_BYTES_MOST: Final = 32 << 20
"""With its request it stays below what a broker takes."""
_CODECS: Final = {name: codec for codec, name in CODEC_NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """What a sink is told. Plain values: they travel to executors."""

    access: Access
    topic: str | None = None
    codec: int = 0
    batch_bytes: int = BATCH_BYTES
    timeout_ms: int = TIMEOUT_MS
    query: str | None = None
    """Batch jobs: with `batch`, what makes a repeated write a no-op."""
    batch: int | None = None


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a sink. Raises ConfigError."""
    given = {name.lower(): value for name, value in options.items()}
    query, batch = given.get("queryid"), _number(given, "batchId", 0, 2**63 - 1)
    if (query is None) != (batch is None):
        raise ConfigError("the options queryId and batchId belong together: give both or neither")
    if query is not None and (not 0 < len(query) <= QUERY_CHARS_MAX or "/" in query):
        raise ConfigError(
            f"option queryId: {query!r} has to have 1 to {QUERY_CHARS_MAX} characters, and no /"
        )
    topic = given.get("topic")
    if topic is not None and not topic:
        raise ConfigError("option topic: it is empty; leave it out to use the column topic")
    return SinkOptions(
        access=Access(servers=parse_servers(given["servers"])),
        topic=topic,
        codec=_codec(given),
        batch_bytes=_number(given, "batchBytes", BATCH_BYTES_LEAST, BATCH_BYTES_MOST)
        or BATCH_BYTES,
        timeout_ms=_number(given, "transactionTimeoutMs", 1000, 2**31 - 1) or TIMEOUT_MS,
        query=query,
        batch=batch,
    )


def _codec(given: Mapping[str, str]) -> int:
    name = given.get("compression", given.get("kafka.compression.type", "none"))
    if name not in _CODECS:
        raise ConfigError(f"option compression: {name!r} is none of {', '.join(_CODECS)}")
    return _CODECS[name]


def _number(given: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise ConfigError(f"option {name}: {text!r} is not a number from {least} to {most}")
    return int(text)
