"""Fetches Spark's own Kafka source with Maven into `build/kafka/spark-VERSION`, as a peer.

Rules: a release of Spark is not at once in every mirror, and not all of its parts; the nearest
older ones do, as the source's face towards Spark has not changed since 4.0. Without Maven the peer
is left out, and that is said.
"""

from __future__ import annotations

from pathlib import Path

from bench.kafka_jars import FOLDER, fetch_into
from bench.report import say

SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13"
TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
BESIDE = ("org.apache.kafka:kafka-clients:3.9.1:alone", "org.apache.commons:commons-pool2:2.12.1")
OLDER = ("4.2.0", "4.1.1", "4.0.0")
TOKENS_OLDER = "4.0.0"


def spark_kafka_jars(version: str) -> list[Path]:
    """The jars of the Kafka source for this Spark, or for the nearest one before it; or none."""
    wanted = tuple(map(int, version.split(".")))
    older = [text for text in OLDER if tuple(map(int, text.split("."))) <= wanted]
    for source, tokens in ((version, version), *((text, TOKENS_OLDER) for text in older)):
        folder = FOLDER / f"spark-{source}"
        parts = (f"{SOURCE}:{source}:alone", f"{TOKENS}:{tokens}:alone", *BESIDE)
        if not (folder / "complete").exists():
            failed = fetch_into(folder, parts, f"Spark's Kafka source {source}")
            if failed is not None:
                continue
        return sorted(folder.glob("*.jar"))
    say("Spark's Kafka source could not be fetched with Maven: it is left out")
    return []
