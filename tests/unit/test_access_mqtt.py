"""Access rules as MQTT clients meet them: refused, allowed, and changed while things are open."""

from __future__ import annotations

import pytest

from onelog.broker import LOCAL, Message
from onelog.protocols.mqtt.packets import Connack, Connect, Disconnect, Will
from onelog.protocols.mqtt.properties import Properties
from tests.support.access import rule
from tests.support.mqtt import Client, Node, dial, serving, until

NOT_AUTHORIZED = 0x87


async def allow(node: Node, *texts: str) -> None:
    await node.broker.access.change([rule(text) for text in texts])


async def refused(node: Node, client_id: str, **fields) -> int:
    """The code of the CONNACK that ends a connection."""
    reader, writer = await dial(node.port)
    client = Client(reader, writer, 5)
    await client.send(
        Connect(client_id=client_id, version=5, clean_start=True, keep_alive_s=60, **fields)
    )
    code = int((await client.receive(Connack)).reason)
    writer.close()
    return code


async def test_publish_and_subscribe_follow_the_rules_and_their_changes(tmp_path):
    async with serving(tmp_path) as node:
        client, other = await node.client("c"), await node.client("o")
        assert await other.subscribe("#", 1) == 1
        assert await client.publish("a/b", "open") == 0
        assert await other.take() == ["open"]
        await allow(node, "allow anonymous publish topic:a/+")
        assert await client.publish("a/b", "nobody may have it") == 0
        assert await client.publish("b", "x") == NOT_AUTHORIZED
        assert await other.is_silent()
        assert await client.subscribe("a/#", 1) == NOT_AUTHORIZED
        await allow(node, "allow anonymous subscribe topic:a/#", "deny everyone all topic:a/x")
        assert await client.subscribe("a/x", 1) == NOT_AUTHORIZED
        assert await client.subscribe("a/#", 1) == 1
        for topic in ("a/x", "a/b"):
            await node.broker.publish(Message(topic, topic.encode()), principal=LOCAL)
        assert await other.take() == ["a/b"]
        assert await client.take() == ["a/b"]
        assert await client.publish("a/x", "x") == NOT_AUTHORIZED
        await node.broker.access.change(remove=[row.id for row in node.broker.access.rules])
        assert node.hub.deliveries is None
        assert await client.publish("a/x", "open again") == 0
        assert await other.take() == ["open again"]


async def test_a_subscription_to_a_filter_gets_the_topics_that_its_user_may_have(tmp_path):
    async with serving(tmp_path) as node:
        await allow(node, "allow anonymous publish,subscribe topic:to-%c/#")
        one, two = await node.client("one"), await node.client("two")
        assert await one.subscribe("#", 1) == 1
        assert await two.subscribe("#", 1) == 1
        assert await one.publish("to-one/t", "1") == 0
        assert await one.publish("to-two/t", "1") == NOT_AUTHORIZED
        assert await two.publish("to-two/t", "2") == 0
        assert await one.take() == ["1"]
        assert await two.take() == ["2"]
        assert await one.is_silent()
        assert await two.is_silent()


async def test_a_rule_that_names_clients_tells_open_connections_apart(tmp_path):
    """Until then all connections of a user share their routes."""
    async with serving(tmp_path) as node:
        one, two = await node.client("one"), await node.client("two")
        assert await one.publish("t", "1") == await two.publish("t", "1") == 0
        assert node.hub.routes.principals == 1
        await allow(node, "allow anonymous publish topic:t/%c")
        assert await one.publish("t/one", "1") == 0
        assert await one.publish("t/two", "1") == NOT_AUTHORIZED
        assert await two.publish("t/two", "1") == 0
        assert node.hub.routes.principals == 2
        await node.broker.access.remove("1")
        assert await one.publish("t/two", "1") == 0
        assert node.hub.routes.principals == 1
    assert node.hub.routes.principals == 0


async def test_a_kept_session_needs_the_right_to_it_and_ends_with_it(tmp_path):
    async with serving(tmp_path) as node:
        await allow(node, "allow anonymous subscribe topic:#")
        expiry = Properties(session_expiry_s=60)
        assert await refused(node, "mine", properties=expiry) == NOT_AUTHORIZED
        await allow(node, "allow anonymous consume cursor:session/m*")
        client = await node.client("mine", expiry_s=60)
        passing = await node.client("passing")
        assert await refused(node, "other", properties=expiry) == NOT_AUTHORIZED
        await node.broker.access.remove("2")
        assert (await client.receive(Disconnect)).reason == NOT_AUTHORIZED
        await passing.sync()  # it has no session that outlives it


async def test_a_share_group_needs_the_right_to_it_and_is_left_with_it(tmp_path):
    async with serving(tmp_path) as node:
        await allow(node, "allow anonymous publish,subscribe topic:#")
        client = await node.client("c")
        assert await client.subscribe("$share/g/t", 1) == NOT_AUTHORIZED
        await allow(node, "allow anonymous consume cursor:share/g")
        assert await client.subscribe("$share/g/t", 1) == 1
        assert await client.publish("t", "1") == 0
        assert await client.take() == ["1"]
        await node.broker.access.remove("2")
        assert await client.publish("t", "2") == 0
        assert await client.is_silent()


async def test_a_share_group_keeps_messages_for_a_member_that_may_have_them(tmp_path):
    async with serving(tmp_path) as node:
        await allow(
            node,
            "allow anonymous publish topic:#",
            "allow anonymous consume cursor:share/*",
            "allow anonymous subscribe topic:t/%c",
        )
        one = await node.client("one")
        assert await one.subscribe("$share/g/t/#", 1) == 1
        for topic in ("t/two", "t/one", "t/two", "t/three"):
            assert await one.publish(topic, topic) == 0
        assert await one.take() == ["t/one"]
        assert await one.is_silent()
        two = await node.client("two")
        assert await two.subscribe("$share/g/t/#", 1) == 1
        assert await two.take(2) == ["t/two", "t/two"]
        group = node.hub.shares.groups["share/g/t/#"]
        await two.drop()
        await until(lambda: group.consumers.only is not None)
        await allow(node, "allow anonymous subscribe topic:t/three")
        assert await one.take() == ["t/three"]
        await until(lambda: group.cursor.pending() == 0)


async def test_a_message_that_waits_for_a_member_with_the_right_outlives_the_broker(tmp_path):
    rules = (
        "allow anonymous publish topic:#",
        "allow anonymous consume cursor:share/*",
        "allow anonymous subscribe topic:t/%c",
    )
    async with serving(tmp_path) as node:
        await allow(node, *rules)
        one = await node.client("one")
        assert await one.subscribe("$share/g/t/#", 1) == 1
        assert await one.publish("t/two", "kept") == 0
        assert await one.publish("t/one", "1") == 0
        assert await one.take() == ["1"]
    async with serving(tmp_path) as node:
        two = await node.client("two")
        assert await two.subscribe("$share/g/t/#", 1) == 1
        assert await two.take() == ["kept"]


async def test_retained_and_replayed_messages_are_judged_when_they_are_delivered(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c")
        for topic in ("t/open", "t/secret"):
            assert await client.publish(topic, topic, retain=True) == 0
        await allow(node, "allow anonymous subscribe topic:t/#", "deny everyone all prefix:t/sec")
        assert await client.subscribe("t/#", 1) == 1
        assert await client.take() == ["t/open"]
        assert await client.subscribe("$replay/earliest/t/#", 1) == 1
        assert await client.take() == ["t/open"]
        assert await client.is_silent()
        assert await client.subscribe("t/secret", 1) == NOT_AUTHORIZED
        assert await client.subscribe("$replay/earliest/t/secret", 1) == NOT_AUTHORIZED


@pytest.mark.parametrize("may", [True, False])
async def test_a_will_is_published_as_the_user_who_set_it(tmp_path, may):
    async with serving(tmp_path) as node:
        users = node.hub.authenticator.users
        await users.add("ann", "secret-1")
        node.broker.access.know_users(node.hub.authenticator)
        await users.set_groups("ann", ("writers",))
        await allow(
            node, "allow anonymous subscribe topic:#", "allow group:writers publish topic:gone/%u"
        )
        watcher = await node.client("w")
        await watcher.subscribe("#", 1)
        topic = "gone/ann" if may else "gone/bob"
        client = await node.client(
            "a", username="ann", password=b"secret-1", will=Will(topic=topic, payload=b"bye", qos=1)
        )
        await client.drop()
        await node.gone("a")
        await node.broker.publish(Message("mark", b"mark"), principal=LOCAL)
        assert await watcher.take(2 if may else 1) == (["bye", "mark"] if may else ["mark"])


async def test_a_user_that_leaves_a_group_loses_its_rights_at_once(tmp_path):
    async with serving(tmp_path) as node:
        users = node.hub.authenticator.users
        node.broker.access.know_users(node.hub.authenticator)
        await users.add("ann", "secret-1")
        await users.set_groups("ann", ("ops",))
        await allow(node, "allow group:ops publish topic:#")
        client = await node.client("a", username="ann", password=b"secret-1")
        assert await client.publish("t") == 0
        await users.set_groups("ann", ())
        await client.receive(Disconnect)  # its user changed: it has to log in again
        client = await node.client("a", username="ann", password=b"secret-1")
        assert await client.publish("t") == NOT_AUTHORIZED
