"""The default port of every listener.

Rule: one table, so that no two listeners have the same default port.
"""

from __future__ import annotations

from typing import Final

DEFAULT_PORTS: Final[dict[str, int]] = {
    "mqtt": 1883,
    "mqtt_tls": 8883,
    "mqtt_ws": 8083,
    "mqtt_wss": 8084,
    "kafka": 9092,
    "kafka_tls": 9093,
    "amqp": 5672,
    "amqp_tls": 5671,
    "amqp_management": 15672,
    "admin": 8080,
}
