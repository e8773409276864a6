"""A small blocking Kafka client for tasks and drivers: plain processes without an event loop."""

from onelog.record.wire import Reader
from onelog.spark.client.access import MECHANISMS, Access, parse_servers
from onelog.spark.client.client import Client
from onelog.spark.client.codes import NoTransactions, refusal
from onelog.spark.client.messages import (
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

__all__ = [
    "EARLIEST",
    "LATEST",
    "MECHANISMS",
    "Access",
    "Client",
    "Fetched",
    "Named",
    "NoTransactions",
    "Part",
    "Produced",
    "Producer",
    "Reader",
    "Topic",
    "fetch_request",
    "parse_servers",
    "refusal",
]
