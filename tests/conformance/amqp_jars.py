"""Fetches RabbitMQ's Java client with Maven into `build/amqp/java`, for the client tests.

Rules: Maven decides where packages come from. What is there already is not fetched again. Without
Maven nothing fails: the tests are skipped and say so.

Usage: python -m tests.conformance.amqp_jars
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.kafka_jars import fetch_into

FOLDER = Path(__file__).resolve().parents[2] / "build" / "amqp" / "java"
ARTIFACTS = ("com.rabbitmq:amqp-client:[5.20,6.0)", "org.slf4j:slf4j-nop:1.7.36")


def jars() -> Path | None:
    """Where the jars lie; None where they were not fetched."""
    return FOLDER if (FOLDER / "complete").exists() else None


def fetch() -> str | None:
    """Fetch them; what went wrong, or None."""
    if jars() is not None:
        return None
    return fetch_into(FOLDER, ARTIFACTS, "RabbitMQ's Java client")


if __name__ == "__main__":
    if (reason := fetch()) is not None:
        print(f"onelog: tests with RabbitMQ's Java client are skipped: {reason}", file=sys.stderr)  # noqa: T201
