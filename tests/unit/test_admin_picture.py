"""Who writes a topic: what connections note of themselves, and how little."""

from __future__ import annotations

from onelog.base.limits import WRITTEN_TOPICS_MAX
from onelog.broker.showing import note_written
from onelog.protocols.mqtt import routes
from onelog.protocols.mqtt.showing import MqttDesk
from tests.support.mqtt import serving


def writers_of(node, topic: str) -> list[tuple[str, int]]:
    rows = MqttDesk(node.hub).writers(topic)
    return [(row.client_id, row.connections) for row in rows if row is not None]


def test_a_connection_notes_a_bounded_number_of_topics_and_the_oldest_makes_room():
    written: dict[str, None] = {}
    for number in range(WRITTEN_TOPICS_MAX + 10):
        note_written(written, f"t/{number}")
    assert len(written) == WRITTEN_TOPICS_MAX
    assert "t/9" not in written
    assert f"t/{WRITTEN_TOPICS_MAX + 9}" in written


async def test_a_client_that_published_is_a_writer_of_the_topic_and_of_no_other(tmp_path):
    async with serving(tmp_path) as node:
        writer, reader = await node.client("writer"), await node.client("reader")
        await reader.subscribe("a/#")
        for _ in range(3):
            await writer.publish("a/1", "x")
        assert writers_of(node, "a/1") == [("writer", 1)]
        assert writers_of(node, "a/2") == []


async def test_publishes_that_the_kernel_leaves_to_python_are_noted_too(tmp_path):
    async with serving(tmp_path) as node:
        writer = await node.client("writer")
        await writer.publish("a/1", "x", qos=2)
        assert writers_of(node, "a/1") == [("writer", 1)]


async def test_while_somebody_looks_each_client_of_a_user_is_named(tmp_path):
    async with serving(tmp_path) as node:
        first, second = await node.client("first"), await node.client("second")
        other = await node.client("other")
        await first.publish("a/1", "x")
        for client in (second, other):
            await client.publish("a/1" if client is second else "a/2", "y")
        assert writers_of(node, "a/1") == [("first", 1), ("", 2)]
        for _ in range(3):
            await second.publish("a/1", "z")
            await other.publish("a/2", "z")
        assert sorted(writers_of(node, "a/1")) == [("", 1), ("first", 1), ("second", 1)]
        assert sorted(row.input.staged for row in node.hub.connections) == [1, 4, 4], (
            "by the kernel"
        )


async def test_when_nobody_looks_any_more_the_kernel_has_its_routes_again(tmp_path, monkeypatch):
    monkeypatch.setattr(routes, "LOOK_S", 0.0)
    monkeypatch.setattr(routes, "ASIDE_MAX", 2)
    async with serving(tmp_path) as node:
        client = await node.client("c")
        for number in range(4):
            await client.publish(f"a/{number}", "x")
        known = next(iter(node.hub.connections)).input.routes
        count = len(node.hub.routes)
        for number in range(4):
            writers_of(node, f"a/{number}")
        assert sorted(known) == [b"a/0", b"a/1"], "a bounded number is set aside"
        assert len(node.hub.routes) == count
        await client.publish("a/3", "x")
        assert sorted(known) == [b"a/0", b"a/1", b"a/3"]
        node.hub.routes.forget()
        assert len(node.hub.routes) == 0
        assert writers_of(node, "a/2") == [("c", 1)]


async def test_of_further_clients_of_a_user_all_that_is_known_is_that_they_publish(tmp_path):
    async with serving(tmp_path) as node:
        first, second = await node.client("first"), await node.client("second")
        await node.client("silent")
        await first.publish("a/1", "x")
        await second.publish("a/1", "y")
        assert writers_of(node, "a/1") == [("first", 1), ("", 1)]
        await first.disconnect()
        await node.gone("first")
        assert writers_of(node, "a/1") == [("", 1)]
