"""Every protocol that is served, in one table, and how one is started and tried again.

Rules: the process knows this table and no protocol. What one protocol needs beside its listeners
is in its own module here, where both of its neighbours may be named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onelog.protocols.kafka.server import KafkaServer
from onelog.protocols.mqtt.server import MqttServer
from onelog.serving.amqp import AmqpServing
from onelog.serving.protocol import ProtocolServer, Surroundings
from onelog.serving.starting import PROTOCOL_TROUBLE, served

PROTOCOLS: Final[dict[str, Callable[[Surroundings], ProtocolServer]]] = {
    "mqtt": lambda around: MqttServer(around.config, around.clock),
    "kafka": lambda around: KafkaServer(around.config, around.clock),
    "amqp": AmqpServing,
}
"""Each by its name, in the order in which they are started."""

__all__ = ["PROTOCOLS", "PROTOCOL_TROUBLE", "ProtocolServer", "Surroundings", "served"]
