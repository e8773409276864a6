"""RabbitMQ's permissions as access rules: they take the names that the expression takes."""

from __future__ import annotations

import re

import msgspec
import pytest

from onelog.admin.rabbitmq.permission_forms import names_of, permissions_of, rules_of
from onelog.admin.rabbitmq.requests import BadRequest
from onelog.broker import Action, Kind, Principal
from onelog.queues.addresses import exchange_root, queue_topic
from onelog.security.access.judging import AccessJudge, selectors_of
from onelog.security.access.rules import check_rule

ANN = Principal("ann", "amqp")
NAMES = ("jobs", "jobs-2", "job", "app.jobs", "app-jobs", "a", "b", "ab", "logs", "amq.fanout")
TAKEN = {
    ".*": NAMES,
    "^.*$": NAMES,
    "": (),
    "^$": (),
    "^jobs$": ("jobs",),
    "^jobs": ("jobs", "jobs-2"),
    "^jobs.*": ("jobs", "jobs-2"),
    r"^jobs-.*$": ("jobs-2",),
    r"^app\.jobs$": ("app.jobs",),
    "^(a|b)$": ("a", "b"),
    "^(jobs|app-).*": ("jobs", "jobs-2", "app-jobs"),
    "^jobs$|^logs$": ("jobs", "logs"),
    r"^amq\.f": ("amq.fanout",),
}


def judge(vhost: str, **given: str) -> AccessJudge:
    body = {"configure": "^$", "write": "^$", "read": "^$"} | given
    rules = rules_of(vhost, "ann", body)
    # One rule more: without any, everything is open.
    other = msgspec.structs.replace(rules_of("/", "bob", dict.fromkeys(body, "^x$"))[0], id="other")
    numbered = [
        check_rule(msgspec.structs.replace(rule, id=str(at))) for at, rule in enumerate(rules)
    ]
    return AccessJudge([*numbered, other])


def allows(found: AccessJudge, action: Action, resource: str, kind: Kind = Kind.TOPIC) -> bool:
    return found.judge(ANN, selectors_of(ANN, ()), action, resource, kind).allowed


@pytest.mark.parametrize("expression", TAKEN)
@pytest.mark.parametrize("vhost", ["/", "other"])
def test_a_permission_takes_the_names_that_its_expression_takes(expression, vhost):
    space = "queue" if vhost == "/" else f"queue@{vhost}"
    for name in NAMES:
        wanted = name in TAKEN[expression]
        assert wanted == (bool(expression) and re.search(expression, name) is not None)
        queue, exchange = queue_topic(vhost, name), f"{exchange_root(vhost, name)}/#"
        configure = judge(vhost, configure=expression)
        write = judge(vhost, write=expression)
        read = judge(vhost, read=expression)
        for resource in (queue, exchange):
            for action in (Action.CREATE, Action.CONFIGURE, Action.DELETE):
                assert allows(configure, action, resource) == wanted
            assert not allows(configure, Action.PUBLISH, resource)
            assert allows(write, Action.PUBLISH, resource) == wanted
            assert not allows(write, Action.DELIVER, resource)
        assert allows(read, Action.DELIVER, exchange) == wanted
        assert allows(read, Action.CONSUME, f"{space}/{name}", Kind.CURSOR) == wanted


@pytest.mark.parametrize("vhost", ["/", "other"])
def test_the_default_exchange_is_every_queue_for_who_writes(vhost):
    queues = judge(vhost, write=r"^amq\.default$")
    assert allows(queues, Action.PUBLISH, queue_topic(vhost, "any"))
    assert not allows(queues, Action.PUBLISH, f"{exchange_root(vhost, 'x')}/key")
    assert not allows(judge(vhost, configure=r"^amq\.d"), Action.CREATE, queue_topic(vhost, "any"))


@pytest.mark.parametrize("right", ["write", "read"])
def test_which_topics_a_user_may_have_is_said_by_rules_about_topics(right):
    """`amq.topic` of the first virtual host is the topic space of every protocol."""
    for expression in (r"^amq\.topic$", r"^amq\."):
        with pytest.raises(BadRequest, match="onelog acl add"):
            judge("/", **{right: expression})
    action = Action.PUBLISH if right == "write" else Action.DELIVER
    assert allows(judge("other", **{right: r"^amq\.topic$"}), action, "$t@other/a/b")
    assert allows(judge("/", **{right: ".*"}), action, "a/b")


@pytest.mark.parametrize(
    "expression", ["jobs", "jobs$", "^a.c$", "^[ab]$", "^(a|(b))$", "^a+", "^%u$", "^a*", "x" * 101]
)
def test_an_expression_that_no_rule_can_say_is_refused(expression):
    with pytest.raises(BadRequest):
        names_of(expression)


def test_permissions_are_shown_as_they_were_given():
    given = {"configure": "^$", "write": "^(a|b)$", "read": ".*"}
    rules = rules_of("a vhost", "ann", given)
    shown = permissions_of(rules)
    assert shown == [{"user": "ann", "vhost": "a vhost", **given, "configure": ""}]
