"""A session of MQTT goes on elsewhere in the log: attached, or kept without a connection."""

from __future__ import annotations

import pytest

from onelog.base.errors import NotFound
from onelog.broker import EARLIEST, LATEST, Start
from onelog.protocols.mqtt.packets import Puback, Publish
from onelog.protocols.mqtt.seeking import seek_session
from tests.support.mqtt import Client, Node, serving

KEPT = {"clean": False, "expiry_s": 600}


def everything(_source) -> bool:
    return True


async def numbers(node: Node, *values: int) -> None:
    publisher = await node.client("p")
    for value in values:
        await publisher.publish("t/1", str(value))
    await publisher.disconnect()


async def taken(client: Client) -> list[str]:
    found: list[str] = []
    while not await client.is_silent():
        found += await client.take()
    return found


async def test_a_connected_client_gets_again_what_it_acknowledged_and_then_follows(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c", **KEPT)
        await client.subscribe("t/#", 1)
        await numbers(node, 0, 1, 2)
        assert await taken(client) == ["0", "1", "2"]
        await seek_session(node.hub, "c", EARLIEST, everything)
        assert await taken(client) == ["0", "1", "2"]
        await numbers(node, 3)
        assert await taken(client) == ["3"]
        assert node.hub.sessions["c"].output.live


async def test_what_is_in_flight_is_not_sent_under_a_second_packet_id(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c", **KEPT)
        await client.subscribe("t/#", 1)
        await numbers(node, 0, 1, 2)
        held = [await client.receive(Publish) for _ in range(3)]
        await client.send(Puback(held[0].packet_id))
        await client.sync()
        await seek_session(node.hub, "c", EARLIEST, everything)
        again = await client.receive(Publish)
        assert again.payload == b"0"
        await client.send(Puback(again.packet_id))
        await client.send(Puback(held[1].packet_id))
        await client.send(Puback(held[2].packet_id))
        assert await client.is_silent()
        await numbers(node, 3)
        assert await taken(client) == ["3"]


async def test_a_session_skips_what_waits_when_it_goes_to_the_end(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c", **KEPT)
        await client.subscribe("t/#", 1)
        await client.disconnect()
        await node.gone("c")
        await numbers(node, 0, 1, 2)
        await seek_session(node.hub, "c", LATEST, everything)
        await numbers(node, 3)
        client = await node.client("c", **KEPT)
        assert await taken(client) == ["3"]


@pytest.mark.parametrize("acknowledged", [True, False])
async def test_a_session_without_a_connection_is_moved_and_keeps_what_is_in_flight(
    tmp_path, acknowledged
):
    async with serving(tmp_path) as node:
        client = await node.client("c", **KEPT)
        await client.subscribe("t/#", 1)
        await numbers(node, 0, 1, 2)
        held = [await client.receive(Publish) for _ in range(3)]
        await client.send(Puback(held[0].packet_id))
        await client.sync()
        await client.disconnect()
        await node.gone("c")
        await seek_session(node.hub, "c", EARLIEST, everything)
        client = await node.client("c", **KEPT)
        duplicates = [await client.receive(Publish) for _ in range(2)]
        assert [(row.packet_id, row.payload, row.dup) for row in duplicates] == [
            (row.packet_id, row.payload, True) for row in held[1:]
        ]
        again = await client.receive(Publish)
        assert again.payload == b"0"
        rows = [again, *duplicates] if acknowledged else [again]
        for row in rows:
            await client.send(Puback(row.packet_id))
        assert await client.is_silent()
        await numbers(node, 3)
        assert [row.payload for row in [await client.receive(Publish)]] == [b"3"]


async def test_a_session_goes_to_a_time_in_chosen_partitions_only(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c", **KEPT)
        await client.subscribe("t/#", 1)
        await numbers(node, 0, 1)
        assert await taken(client) == ["0", "1"]
        with pytest.raises(NotFound):
            await seek_session(node.hub, "c", EARLIEST, lambda _source: False)
        await seek_session(node.hub, "c", Start("time", 1), everything)
        assert await taken(client) == ["0", "1"]
        with pytest.raises(NotFound):
            await seek_session(node.hub, "nobody", EARLIEST, everything)


async def test_a_moved_session_expires_in_its_time_all_the_same(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c", clean=False, expiry_s=1)
        await client.subscribe("t/#", 1)
        await client.disconnect()
        await node.gone("c")
        await seek_session(node.hub, "c", EARLIEST, everything)
        assert "c" in node.hub.broker.sessions._timers
        assert node.hub.broker.cursors.find("mqtt/c") is None
