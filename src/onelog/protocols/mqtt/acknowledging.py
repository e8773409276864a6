"""PUBACKs of publishes that were staged: they wait for the partitions that hold the messages.

Rules: a PUBACK goes out when its message is durable (I4), after the earlier PUBACKs of its
connection (MQTT5 4.6.0-2); the kernel keeps that order. A connection waits for no partition that it
did not publish to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.kernel import MqttAcks, MqttPass, Stage, settle_acks
from onelog.protocols.mqtt.errors import reason_for
from onelog.protocols.mqtt.packet_types import PacketType

if TYPE_CHECKING:
    from onelog.base.errors import OnelogError


class Acknowledging:
    """The acknowledgements of one pass that wait for one partition."""

    __slots__ = ("_number", "_waiting")

    results: None = None

    def __init__(self, waiting: list[MqttAcks], number: int) -> None:
        self._waiting = waiting
        self._number = number
        """The number of the partition's stage in the pass."""

    def finish(self, count: int, error: OnelogError | None) -> None:
        """The messages are visible in the partition, or failed with this error."""
        del count
        reason = None if error is None else int(reason_for(error, PacketType.PUBACK))
        settle_acks(self._waiting, self._number, reason)


def await_partitions(turn: MqttPass, dirty: list[Stage]) -> None:
    """The pass ends: let its acknowledgements wait for the partitions that are about to be
    written."""
    for number, waiting in enumerate(turn.take_acks()):
        if waiting is not None:
            # As `Publisher.await_stage`, without an extra call for each partition.
            dirty[number].owner.rows.append((Acknowledging(waiting, number), 0, 0))
