"""Operations of every protocol: what the access matrix tries."""

from __future__ import annotations

from tests.cross import (
    access_amqp,
    access_kafka,
    access_kafka_admin,
    access_kafka_groups,
    access_mqtt,
)
from tests.cross.access_table import OPERATIONS, Operation

FILLED_BY = (access_mqtt, access_kafka, access_kafka_groups, access_kafka_admin, access_amqp)
"""Each puts its operations into the table."""


def cases() -> list[Operation]:
    """Every operation, by protocol."""
    return sorted(OPERATIONS, key=lambda row: (row.protocol, row.name))
