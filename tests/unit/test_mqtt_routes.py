"""Routes of plain publishes: who has them, how many there are, and what a change leaves alone."""

from __future__ import annotations

import pytest

from onelog.broker import Principal, StreamConfig, Touched
from onelog.kernel import BatchBuilder, MqttRoute, Stage
from onelog.protocols.mqtt import routes as module
from onelog.protocols.mqtt.features import MqttFeatures
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.rewrite import RewriteRule
from onelog.protocols.mqtt.routes import RouteTable
from tests.support.mqtt import dial, serving, until


def known(node) -> set[bytes]:
    """The topics that somebody has a route for."""
    return {topic for row in node.hub.routes._known.values() for topic in row.by_topic}


def table(*, rewritten: bool = False) -> tuple[RouteTable, MqttRoute]:
    stage = Stage(None, BatchBuilder(True), [])
    return RouteTable(is_rewritten=rewritten), MqttRoute(b"a/b", stage, 100)


async def test_routes_go_with_the_last_connection_of_their_principal(tmp_path):
    """I8: a client chooses its user, and there may be any number of users."""
    async with serving(tmp_path) as node:
        for number in range(3):
            client = await node.client(f"c{number}")
            await client.publish("t", "x")
        assert node.hub.routes.principals == 1
        assert known(node) == {b"t"}
        for number in range(3):
            assert known(node) == {b"t"}
            await node.clients[number].disconnect()
            await until(lambda number=number: len(node.hub.connections) == 2 - number)
        assert (node.hub.routes.principals, len(node.hub.routes)) == (0, 0)


async def test_a_connection_that_was_never_accepted_leaves_the_routes_of_others_alone(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c")
        await client.publish("t", "x")
        _reader, writer = await dial(node.port)
        writer.write(b"\x10")
        await until(lambda: len(node.hub.connections) == 2)
        writer.write(b"\x02\x00\x00")
        await until(lambda: len(node.hub.connections) == 1)
        writer.close()
        (connection,) = node.hub.connections
        assert connection.input.routes.keys() == {b"t"}
        assert node.hub.routes.principals == 1


def test_routes_of_one_principal_and_of_all_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "ROUTES_MAX", 10)
    monkeypatch.setattr(module, "ALL_ROUTES_MAX", 25)
    routes, route = table()
    principals = [Principal(f"user{number}") for number in range(5)]
    joined = {principal: routes.join(principal) for principal in principals}
    for number in range(200):
        for principal in principals:
            routes.keep(principal, b"topic/%d" % number, route)
            assert len(routes) == sum(map(len, joined.values())) <= 25
            assert len(joined[principal]) <= 10
            assert joined[principal][b"topic/%d" % number] is route
    for principal in principals:
        routes.leave(principal)
    assert (len(routes), routes.principals) == (0, 0)


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ((), {b"a", b"a/b", b"a/b/c", b"ab", b"x/y"}),
        (("a/b",), {b"a", b"a/b/c", b"ab", b"x/y"}),
        (("a/#",), {b"ab", b"x/y"}),
        (("a/+",), {b"a", b"a/b/c", b"ab", b"x/y"}),
        (("+/y", "a/b/c"), {b"a", b"a/b", b"ab"}),
        (("#",), set()),
    ],
)
@pytest.mark.parametrize("rewritten", [False, True])
def test_a_change_drops_the_routes_that_it_touches_and_no_other(changed, left, rewritten):
    routes, route = table(rewritten=rewritten)
    here = routes.join(Principal("user"))
    for topic in (b"a", b"a/b", b"a/b/c", b"ab", b"x/y"):
        routes.keep(Principal("user"), topic, MqttRoute(topic, route.stage, 100))
    routes.drop(Touched(changed))
    assert here.keys() == left
    assert len(routes) == len(left)


async def test_a_rewritten_topic_counts_where_it_goes_to(tmp_path):
    rule = RewriteRule(filter="old/#", to="new/$1")
    async with serving(tmp_path, MqttFeatures(rewrite=(rule,))) as node:
        client = await node.client("c")
        await client.publish("old/a", "1")
        await client.publish("old/b", "1")
        await node.broker.streams.create(StreamConfig(name="s", captures=("new/a",), partitions=1))
        assert known(node) == {b"old/b"}
        await client.publish("old/a", "2")
        assert node.broker.streams.get("s").partitions[0].high_watermark == 1


async def test_a_new_stream_leaves_the_routes_of_other_topics_and_their_order(tmp_path):
    """I5: who is looked at and who is not go the same way, before the change and after it."""
    async with serving(tmp_path) as node:
        reader = await node.client("r")
        await reader.subscribe("a/#", 1)
        client = await node.client("c")
        await client.publish("a/b", "0")
        await client.publish("s/t", "0")
        (before,) = (c.input.routes[b"a/b"] for c in node.hub.connections if c.input.staged)
        for number in range(1, 10):
            if number % 3 == 0:
                await node.broker.streams.create(
                    StreamConfig(name=f"s{number}", captures=(f"s/{number}/#", f"s/t{number}"))
                )
            looked_at = Properties(content_type="x" if number % 2 else None)
            await client.publish("a/b", str(number), 1, properties=looked_at)
        assert await reader.take(10) == [str(number) for number in range(10)]
        assert known(node) == {b"a/b", b"s/t"}
        (after,) = (c.input.routes[b"a/b"] for c in node.hub.connections if c.input.staged)
        assert after is before
        await node.broker.streams.create(StreamConfig(name="s", captures=("s/#",)))
        assert known(node) == {b"a/b"}
        await client.publish("s/t", "1")
        assert sum(int(p.high_watermark) for p in node.broker.streams.get("s").partitions) == 1
