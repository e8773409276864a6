"""A session as `~cursors` keeps it."""

from __future__ import annotations

import msgspec

from onelog.broker import Position
from onelog.protocols.mqtt.receiving import Received


class InFlightRow(msgspec.Struct, array_like=True, frozen=True):
    """One message that the client has not acknowledged."""

    packet_id: int
    stream_id: str
    """Empty when only the release of a shared message is left."""
    partition: int
    offset: int
    qos: int
    stage: int


class GreetingRow(msgspec.Struct, array_like=True, frozen=True):
    """Retained messages that a subscription has not got yet."""

    filter: str
    run: str
    """The run of the broker that numbered the topics."""
    next_number: int
    end_number: int


class SessionBody(msgspec.Struct, array_like=True):
    """The part of a kept session that only MQTT understands."""

    positions: list[Position]
    in_flight: list[InFlightRow]
    next_id: int
    inbound: list[Received]
    """QoS 2 publishes that wait for their release."""
    producer_id: int = -1
    """The producer id of the client's QoS 2 publishes."""
    specials: list[tuple[str, list[Position]]] = []
    """The positions of special subscriptions."""
    greetings: list[GreetingRow] = []


def cursor_name(client_id: str) -> str:
    """The cursor of a client's session."""
    return f"mqtt/{client_id}"


def needed_positions(body: SessionBody) -> list[Position]:
    """The lowest offset per partition that the session still needs. It pins retention."""
    places = [Position(row.stream_id, row.partition, row.offset) for row in body.in_flight]
    needed: dict[tuple[str, int], int] = {}
    for rows in (body.positions, places, *(rows for _text, rows in body.specials)):
        for row in rows:
            if row.stream_id:
                key = (row.stream_id, row.partition)
                needed[key] = min(row.offset, needed.get(key, row.offset))
    return [Position(*key, offset) for key, offset in needed.items()]
