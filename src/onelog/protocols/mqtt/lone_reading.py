"""A session that reads the log alone: records of any filters, each encoded for this client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.broker import Reading
from onelog.protocols.mqtt.outgoing import Outgoing, prepare
from onelog.protocols.mqtt.session_state import Place

if TYPE_CHECKING:
    from onelog.protocols.mqtt.session import MqttSession


def read_packets(
    session: MqttSession, reading: Reading, room: int, passed: set[Place]
) -> list[Outgoing]:
    """As much as fits; records at `passed` places are left out."""
    matcher, live = session.matching(), session.hub.live
    now_ms = session.hub.clock.now_ms()
    packets: list[Outgoing] = []
    number, key, source = -1, ("", 0), None
    for index, record in reading.read(room):
        if index != number:
            number, key = index, reading.sources.sources[index].key
            source = live.find(key)
        if source is None or not session.may_have(record.topic):
            continue
        if passed and (*key, record.offset) in passed:
            continue
        publish = matcher.publish(key, record, now_ms)
        if publish is not None:
            packet = prepare(session.output, publish, (source.number, record.offset))
            if packet is not None:
                packets.append(packet)
    return packets
