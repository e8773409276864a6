"""Small clients of the command line: they speak MQTT, Kafka and AMQP to a broker over its ports.

Why own ones: the three libraries that one would take are written for long-lived programs, bring
their own threads and settings, and one of them a C library; a command that sends a message and
ends needs a fraction of that. Each client here is a blocking socket and the sans-IO codecs that
the broker has anyway; Kafka's is the one that Spark has, too (`onelog.kafka_client`). They share
the format of records and the codecs with the broker, nothing else: they would talk to any other
broker of the protocol, too.
"""

from onelog.cli.talk.link import BrokerAddress, Link, Patience
from onelog.cli.talk.messages import Message, Start, Wanted, parse_start
from onelog.cli.talk.talker import Talker, Via, open_talker

__all__ = [
    "Link",
    "Message",
    "Patience",
    "BrokerAddress",
    "Start",
    "Talker",
    "Via",
    "Wanted",
    "open_talker",
    "parse_start",
]
