"""What a kept session pins: the lowest offset of each partition that it still needs."""

from __future__ import annotations

import random

import pytest

from onelog.broker import Position
from onelog.protocols.mqtt.session_state import InFlightRow, SessionBody, needed_positions


def places(chance: random.Random, most: int) -> list[Position]:
    """Places in no order, some of them of no stream: of those only a release is left."""
    return [
        Position(chance.choice(["", "a", "b"]), chance.randrange(2), chance.randrange(6))
        for _ in range(chance.randrange(most))
    ]


@pytest.mark.parametrize("seed", range(300))
def test_the_lowest_offset_of_each_partition_is_needed_whatever_the_order(seed: int) -> None:
    chance = random.Random(seed)
    positions, flying, special = places(chance, 4), places(chance, 9), places(chance, 5)
    in_flight = [
        InFlightRow(number, row.stream_id, row.partition, row.offset, 1, 0)
        for number, row in enumerate(flying, 1)
    ]
    body = SessionBody(positions, in_flight, 1, [], specials=[("$share/g/t", special)])
    lowest: dict[tuple[str, int], int] = {}
    for row in (*positions, *flying, *special):
        if row.stream_id:
            key = (row.stream_id, row.partition)
            lowest[key] = min(row.offset, lowest.get(key, row.offset))
    found = {(row.stream_id, row.partition): row.offset for row in needed_positions(body)}
    assert found == lowest
