"""A Python client in a process of its own, asked by lines of JSON as those in other languages.

So the libraries' threads, warnings and sockets are not pytest's. Arguments: a name of CLIENTS, and
the port.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from tests.conformance.kafka_aiokafka import Aiokafka
from tests.conformance.kafka_clients import (
    KafkaClient,
    Refused,
    bytes_in,
    record_in,
    record_out,
)
from tests.conformance.kafka_confluent import Confluent
from tests.conformance.kafka_kafka_python import KafkaPython

CLIENTS: dict[str, Callable[[int], KafkaClient]] = {
    "aiokafka": Aiokafka,
    "confluent": Confluent,
    "kafka-python": KafkaPython,
}


def answer(client: KafkaClient, asked: dict[str, Any]) -> Any:
    """What the client answers; arguments are the face's, records and bytes as JSON has them."""
    what = asked.pop("do")
    if "records" in asked:
        asked["records"] = [record_in(row) for row in asked["records"]]
    if "values" in asked:
        asked["values"] = [bytes_in(text) for text in asked["values"]]
    found = getattr(client, what)(**asked)
    if what == "read":
        return {topic: [record_out(record) for record in rows] for topic, rows in found.items()}
    return found


def main(name: str, port: str) -> None:
    client = CLIENTS[name](int(port))
    for line in sys.stdin:
        try:
            row = {"answer": answer(client, json.loads(line))}
        except Refused as error:
            row = {"error": str(error), "code": error.code}
        except Exception as error:  # noqa: BLE001  (the answer is the error)
            row = {"error": repr(error), "code": -1}
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
