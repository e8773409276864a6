"""A session as `~cursors` keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from onelog.broker import Live, Position
from onelog.kernel import MqttOutput
from onelog.protocols.mqtt.receiving import Received
from onelog.protocols.mqtt.special import OWN_SOURCE

Place = tuple[str, int, int]
"""Stream id, partition and offset of a record."""


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
    passed: list[Position] = []
    """Places that were in flight at a seek: they are not read again (`seeking.py`)."""


def in_flight_rows(output: MqttOutput, live: Live) -> list[InFlightRow]:
    """The messages that a client has not acknowledged, as they are kept."""
    rows = []
    keys: dict[int, tuple[str, int]] = {}
    for packet_id, number, offset, qos, stage in output.in_flight():
        if number != OWN_SOURCE:
            key = keys.get(number)
            if key is None:
                key = keys[number] = live.source(number).key
            rows.append(InFlightRow(packet_id, key[0], key[1], offset, qos, stage))
        elif stage:  # only its release is left, and that needs no message
            rows.append(InFlightRow(packet_id, "", 0, 0, qos, stage))
    return rows


def passed_at(
    places: Iterable[Position], before: Iterable[Place], rows: Iterable[InFlightRow]
) -> set[Place]:
    """The places that a session does not read again when it goes on at `places`.

    In the partitions that it moves in, these are the messages in flight; in others nothing changes.
    """
    moved = {(row.stream_id, row.partition) for row in places}
    flying = {(row.stream_id, row.partition, row.offset) for row in rows}
    return {place for place in before if place[:2] not in moved} | {
        place for place in flying if place[:2] in moved
    }


def cursor_name(client_id: str) -> str:
    """The cursor of a client's session."""
    return f"mqtt/{client_id}"


def needed_positions(body: SessionBody) -> list[Position]:
    """The lowest offset per partition that the session still needs. It pins retention."""
    needed: dict[tuple[str, int], int] = {}
    held: list[Sequence[Position | InFlightRow]] = [body.positions, body.in_flight]
    for rows in (*held, *(rows for _text, rows in body.specials)):
        # A session has up to thousands of messages in flight: in a partition most often ascending.
        last, lowest = ("", -1), 0
        for row in rows:
            key = (row.stream_id, row.partition)
            if key == last and row.offset >= lowest:
                continue
            last, lowest = key, needed.get(key, row.offset)
            if row.offset <= lowest and key[0]:
                needed[key] = lowest = row.offset
    return [Position(*key, offset) for key, offset in needed.items()]
