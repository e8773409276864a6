"""A small blocking Kafka client: for the command line, and for the tasks and drivers of Spark.

Why an own one: the libraries that one would take are written for long-lived programs and bring
their own threads and settings, and one of them a C library. It shares the format of records with
the broker, nothing else, and would talk to any other broker of Kafka, too.
"""

from onelog.kafka_client.access import MECHANISMS, Access, parse_servers
from onelog.kafka_client.client import Client
from onelog.kafka_client.codes import NoTransactions, refusal
from onelog.kafka_client.cold import ColdPart
from onelog.kafka_client.committed import committed
from onelog.kafka_client.leaders import Leaders
from onelog.kafka_client.messages import (
    EARLIEST,
    LATEST,
    Fetched,
    Named,
    Part,
    Produced,
    Producer,
    Topic,
    fetch_request,
)
from onelog.kafka_client.wire import Reader

__all__ = [
    "EARLIEST",
    "LATEST",
    "MECHANISMS",
    "Access",
    "Client",
    "ColdPart",
    "Fetched",
    "Leaders",
    "Named",
    "NoTransactions",
    "Part",
    "Produced",
    "Producer",
    "Reader",
    "Topic",
    "committed",
    "fetch_request",
    "parse_servers",
    "refusal",
]
