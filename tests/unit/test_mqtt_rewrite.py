"""Topic rewrite and auto-subscribe: what the operator's configuration does to topics."""

from __future__ import annotations

import pytest

from onelog.base.errors import ConfigError, InvalidName
from onelog.config.mqtt_rules import AutoSubscription, RewriteRule
from onelog.protocols.mqtt.features import MqttFeatures
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.rewrite import Rewriter
from onelog.protocols.mqtt.special import parse_address
from onelog.protocols.mqtt.templates import expand
from tests.support.brokers import history
from tests.support.mqtt import serving

RULES = (
    RewriteRule(filter="x/#", pattern=r"x/y/(.+)", to="z/y/$1"),
    RewriteRule(filter="x/#", pattern=r"x/(\d+)/(.+)", to="by/$2/$1"),
    RewriteRule(filter="old/+/data/#", to="new/$1/$2"),
    RewriteRule(filter="in/only", to="in/there", applies="publish"),
    RewriteRule(filter="out/only", to="out/there", applies="subscribe"),
    RewriteRule(filter="mine/#", to="clients/%c/$1"),
    RewriteRule(filter="team/#", to="users/%u/$1"),
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x/y/1", "z/y/1"),
        ("x/12/a/b", "by/a/b/12"),
        ("x/other", "x/other"),
        ("old/d1/data/t/1", "new/d1/t/1"),
        ("old/d1/data", "new/d1/"),
        ("in/only", "in/there"),
        ("out/only", "out/only"),
        ("mine/a", "clients/dev/a"),
        ("team/a", "users/ann/a"),
        ("z/y/1", "z/y/1"),
        ("$SYS/x/y/1", "$SYS/x/y/1"),
        ("$delayed/5/x/y/1", "$delayed/5/z/y/1"),
    ],
)
def test_a_publish_topic_is_rewritten_by_the_first_rule_that_matches(before, after):
    assert Rewriter(RULES).topic(before, "dev", "ann") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x/y/+", "z/y/+"),
        ("old/+/data/#", "new/+/#"),
        ("in/only", "in/only"),
        ("out/only", "out/there"),
        ("$share/g/x/y/#", "$share/g/z/y/#"),
        ("$replay/earliest/x/y/1", "$replay/earliest/z/y/1"),
        ("$exclusive/x/y/1", "$exclusive/z/y/1"),
        ("#", "#"),
    ],
)
def test_a_filter_is_rewritten_behind_what_is_special_about_it(before, after):
    assert Rewriter(RULES).address(parse_address(before), "dev", "ann").text == after


def test_a_route_is_shared_unless_it_depends_on_the_client():
    rewriter = Rewriter(RULES)
    assert rewriter.route("team/a", "ann") == "users/ann/a"
    assert rewriter.route("mine/a", "ann") is None


def test_a_client_id_cannot_reach_what_belongs_to_others():
    for client_id in ("a/b", "+", "#", "x\0"):
        with pytest.raises(InvalidName):
            Rewriter(RULES).topic("mine/a", client_id, "ann")
    assert expand("%%c/$$1", "dev", "ann") == "%c/$1"


@pytest.mark.parametrize(
    "rule",
    [
        RewriteRule(filter="a/#/b", to="x"),
        RewriteRule(filter="a", pattern="(", to="x"),
        RewriteRule(filter="a/+", to="x/$2"),
        RewriteRule(filter="a/+", pattern="a/.*", to="x/$1"),
        RewriteRule(filter="a", to=""),
    ],
)
def test_a_rule_that_cannot_work_is_refused_at_the_start(rule):
    with pytest.raises(ConfigError):
        Rewriter([rule])


async def test_publishes_and_subscriptions_meet_where_the_rules_lead(tmp_path):
    async with serving(tmp_path, MqttFeatures(rewrite=RULES)) as node:
        client = await node.client("dev")
        assert await client.subscribe("x/y/1", 1) == 1
        other = await node.client("other")
        assert await other.subscribe("z/y/#", 1) == 1
        for qos in (1, 2, 1):
            await client.publish("x/y/1", str(qos), qos)
        for receiver in (client, other):
            found = [await receiver.message() for _ in range(3)]
            assert {message.topic for message in found} == {"z/y/1"}
        await client.publish("mine/a", "1")
        await client.publish("mine/a", "2")
        assert await history(node.broker, "clients/#") == ["clients/dev/a=1", "clients/dev/a=2"]
        assert await client.unsubscribe("x/y/1") == 0
        await other.publish("x/y/1", "late")
        assert await client.is_silent()


async def test_a_rewrite_that_makes_no_topic_is_refused(tmp_path):
    rules = (RewriteRule(filter="a/#", to="b/+"), RewriteRule(filter="s", to="$SYS/x"))
    async with serving(tmp_path, MqttFeatures(rewrite=rules)) as node:
        client = await node.client("dev")
        assert await client.publish("a/1") == ReasonCode.TOPIC_NAME_INVALID
        assert await client.publish("s") == ReasonCode.NOT_AUTHORIZED


AUTO = (
    AutoSubscription(filter="cmd/%c", qos=1),
    AutoSubscription(filter="news/%u/#"),
    AutoSubscription(filter="$share/all/jobs", qos=1),
)


async def test_a_client_has_its_configured_subscriptions_without_asking(tmp_path):
    async with serving(tmp_path, MqttFeatures(auto_subscribe=AUTO)) as node:
        sender = await node.client("sender")
        await sender.publish("cmd/dev", "retained", retain=True)
        client = await node.client("dev", clean=False, expiry_s=60)
        assert await client.take() == ["retained"]
        await sender.publish("cmd/dev", "do")
        await sender.publish("cmd/else", "not you")
        await sender.publish("news/anonymous/x", "hear")
        assert sorted(await client.take(2)) == ["do", "hear"]
        for _ in range(2):
            await sender.publish("jobs", "job")
        assert await client.take() == ["job"]
        assert await sender.take(2) == ["hear", "job"]
        await client.drop()
        await node.gone("dev")
        await sender.publish("cmd/dev", "while away")
        client = await node.client("dev", clean=False, expiry_s=60)
        assert "while away" in await client.take(2)  # kept like any other, and retained once more


async def test_a_client_may_give_up_a_configured_subscription(tmp_path):
    async with serving(tmp_path, MqttFeatures(auto_subscribe=AUTO)) as node:
        client = await node.client("dev")
        assert await client.unsubscribe("cmd/dev") == 0
        await client.publish("cmd/dev", "x")
        assert await client.is_silent()


async def test_a_configured_subscription_that_a_client_id_cannot_fill_is_left_out(tmp_path):
    async with serving(tmp_path, MqttFeatures(auto_subscribe=AUTO)) as node:
        client = await node.client("a/#")
        await client.publish("cmd/a/b", "secret")
        await client.publish("news/anonymous", "open")
        assert await client.take() == ["open"]
        assert await client.is_silent()
