"""RabbitMQ's permissions as access rules: they take the names that the expression takes."""

from __future__ import annotations

import re

import msgspec
import pytest

from onelog.admin.rabbitmq.permission_forms import names_of, permissions_of, rules_of
from onelog.admin.rabbitmq.requests import BadRequest
from onelog.admin.rabbitmq.shown_permissions import shown_permissions
from onelog.broker import Action, Kind, Principal
from onelog.queues.addresses import exchange_root, queue_topic
from onelog.security.access.judging import AccessJudge, selectors_of
from onelog.security.access.rules import check_rule
from tests.support import amqp
from tests.support.access import rule

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


# -- rules that others made


def shown(*texts: str, vhost: str = "/", groups: tuple[str, ...] = ()) -> dict[str, str] | None:
    """What ann may do by these rules, as this API shows it."""
    users = {"ann": selectors_of(ANN, groups)}
    rows = shown_permissions([rule(text) for text in texts], (vhost,), users)
    if not rows:
        return None
    (row,) = rows
    assert (row.pop("user"), row.pop("vhost")) == ("ann", vhost)
    return row


@pytest.mark.parametrize(
    ("text", "configure", "write", "read"),
    [
        ("allow user:ann publish topic:$q/jobs", "", "^jobs$", ""),
        ("allow user:ann publish topic:$x/app.logs/#", "", r"^app\.logs$", ""),
        ("allow user:ann subscribe topic:$x/logs/#", "", "", "^logs$"),
        ("allow user:ann consume cursor:queue/jobs", "", "", "^jobs$"),
        ("allow user:ann consume cursor:queue/app-*", "", "", "^app-.*"),
        ("allow user:ann consume cursor:queue/*", "", "", ".*"),
        ("allow user:ann all topic:$q/jobs", "^jobs$", "^jobs$", "^jobs$"),
        ("allow user:ann create,configure,delete prefix:$q/app-", "^app-.*", "", ""),
        ("allow user:ann all topic:#", ".*", ".*", ".*"),
        ("allow everyone publish topic:$q/jobs", "", "^jobs$", ""),
        ("allow group:lab publish topic:$q/jobs", "", "^jobs$", ""),
        ("allow user:ann publish topic:$q/#", "", r"^amq\.default$", ""),
    ],
)
def test_rules_of_the_command_line_are_shown_as_permissions(text, configure, write, read):
    found = shown(text, groups=("lab",))
    assert found == {"configure": configure, "write": write, "read": read}
    for right, expression in found.items():
        if expression:  # it says no more than the rule does
            made = rules_of("/", "ann", {**dict.fromkeys(found, ""), right: expression})
            assert {(row.target, row.pattern) for row in made} & {
                (rule(text).target, rule(text).pattern)
            }


@pytest.mark.parametrize(
    "text",
    [
        "deny user:ann publish topic:$q/jobs",
        "allow user:bob publish topic:$q/jobs",
        "allow group:ops publish topic:$q/jobs",
        "allow user:ann create topic:$q/jobs",  # configure is more than that
        "allow user:ann publish topic:sensors/#",
        "allow user:ann publish topic:$q/%u",
        "allow user:ann publish topic:$q@other/jobs",
        "allow user:ann publish topic:$x/logs/a/#",
        "allow user:ann consume cursor:group/jobs",
        "allow user:ann admin server",
    ],
)
def test_what_no_permission_says_is_not_shown(text):
    assert shown(text) is None


def test_rules_of_another_virtual_host_are_shown_there():
    text = "allow user:ann publish topic:$q@other/jobs"
    assert shown(text, vhost="other") == {"configure": "", "write": "^jobs$", "read": ""}


def test_permissions_that_were_given_and_rules_of_others_are_shown_together():
    given = rules_of("/", "ann", {"configure": "^$", "write": "^(a|b)$", "read": ".*"})
    other = [rule("allow everyone publish topic:$q/jobs"), rule("allow everyone all topic:$q/c")]
    (row,) = shown_permissions([*given, *other], ("/",), {"ann": selectors_of(ANN, ())})
    wanted = {"configure": "^c$", "write": "^(a|b)$|^c$|^jobs$", "read": ".*"}
    assert row == {"user": "ann", "vhost": "/", **wanted}


async def test_a_change_takes_the_place_of_rules_of_this_user_and_host_alone(tmp_path):
    async with amqp.serving(tmp_path) as node, amqp.management(node) as client:
        users, access = node.hub.authenticator.users, node.broker.access
        await users.add("boss", "secret-1", administrator=True)
        await users.add("ann", "secret-1")
        access.know_users(node.hub.authenticator)
        boss, path = ("boss", "secret-1"), "/api/permissions/%2F/ann"
        await access.change(
            [
                rule("allow user:ann publish topic:$q/jobs"),
                rule("allow user:ann,user:bob publish topic:$q/shared"),
                rule("allow user:ann publish topic:sensors/#"),
            ]
        )
        assert (await client.get(path, auth=boss)).json()["write"] == "^jobs$|^shared$"
        listed = (await client.get("/api/users/ann/permissions", auth=boss)).json()
        assert [row["write"] for row in listed] == ["^jobs$|^shared$"]
        body = {"configure": "^$", "write": "^other$", "read": "^$"}
        assert (await client.put(path, json=body, auth=boss)).status_code == 204
        assert (await client.get(path, auth=boss)).json()["write"] == "^other$|^shared$"
        assert not access.allows(ANN, Action.PUBLISH, "$q/jobs")
        assert access.allows(ANN, Action.PUBLISH, "sensors/t")
        assert (await client.delete(path, auth=boss)).status_code == 204
        assert (await client.get(path, auth=boss)).json()["write"] == "^shared$"
        refused = await client.delete(path, auth=boss)
        assert (refused.status_code, "onelog acl" in refused.json()["reason"]) == (400, True)
