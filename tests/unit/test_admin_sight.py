"""While there are access rules, nobody but an administrator learns the name of a hidden topic.

Everything that the broker has is there twice: under `public`, and under `secret`. A viewer who has
rights to the first only asks everything that can be asked.
"""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

from onelog.admin.api.logins import LoginSessions
from onelog.admin.api.table import operations
from onelog.base.clock import ManualClock
from onelog.broker import EARLIEST, LATEST, LOCAL, Message, StreamConfig
from onelog.objects.store import StoreSettings, open_store
from onelog.protocols.mqtt.packets import Will
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord
from onelog.queues.settings import QueueRecord
from onelog.record.headers import RETAIN
from onelog.security.access.rules import make_rule
from onelog.security.principals import Principal
from onelog.security.roles import AdminRole
from tests.support.access import rule
from tests.support.admin import client_of, new_desk, whole_api

RULES = (
    "allow user:eve subscribe topic:public/#",
    "allow user:eve describe topic:$q/public-q",
    "allow user:eve describe topic:$x/public-x/#",
    "allow user:eve describe cursor:group/public-*",
    "allow user:eve describe cursor:transaction/public-*",
    "allow user:eve describe cursor:session/public-*",
    "allow user:eve describe cursor:share/public-*",
    "allow user:op publish topic:secret/#",
)


async def taken_over() -> None:
    pass


async def furnish(api, word: str) -> None:
    """One of everything."""
    broker = api.broker
    await broker.streams.create(StreamConfig(name=f"{word}-stream", captures=(f"{word}/own/#",)))
    for topic in (f"{word}/t", f"{word}/own/t"):
        message = Message(topic, word.encode(), headers=((RETAIN, b"1"),))
        await broker.publish(message, principal=LOCAL)
    await broker.views.create(f"{word}-view", f"{word}/#")
    desk = broker.cursors
    await desk.open_offset(f"{word}-offset", [f"{word}/t"], start=EARLIEST, principal=LOCAL)
    await desk.open_queue(f"share/{word}-g/{word}/#", [f"{word}/#"], principal=LOCAL)
    kept = await desk.open_queue(f"{word}-queue", [f"{word}/t"], start=LATEST, principal=LOCAL)
    await desk.close_cursor(kept)
    desk.open_tail([f"{word}/#"], principal=LOCAL)
    await broker.sessions.attach(
        f"{word}-client",
        protocol="mqtt",
        owner=word,
        expiry_ms=60_000,
        clean=True,
        on_takeover=taken_over,
    )
    await desk.open_session(f"mqtt/{word}-client", [f"{word}/#"], principal=LOCAL)
    await api.mqtt.wills.keep(
        f"{word}-client", Principal(word, "mqtt"), Will(topic=f"{word}/w", payload=b"x")
    )
    await api.kafka.groups.offsets.commit(
        f"{word}-group", {("public.t", 0): (1, -1, ""), ("secret.t", 0): (1, -1, "")}
    )
    vhost = api.amqp.vhosts.all()[0]
    await vhost.declare_exchange(
        ExchangeRecord(name=f"{word}-x", type="direct", durable=True), passive=False
    )
    await vhost.declare_queue(QueueRecord(name=f"{word}-q", durable=True), None, passive=False)
    to = Destination("queue", f"{word}-q")
    await vhost.bind(Binding(source="amq.topic", destination=to, routing_key=f"{word}.#"))
    await vhost.bind(Binding(source=f"{word}-x", destination=to, routing_key=word))
    broker.troubles.note("test", f"{word}/t", ValueError(f"at {word}/t"), topic=f"{word}/t")
    broker.troubles.stand("test-standing", word, f"{word}/t fails", blocks=False)


NAMES = {
    "stream": "{word}-stream",
    "partition": "0",
    "cursor": "{word}-offset",
    "view": "{word}-view",
    "topic": "{word}%2Ft",
    "group": "{word}-group",
    "client": "{word}-client",
    "vhost": "%2F",
    "queue": "{word}-q",
}


CLOSED = ("/config", "/pipelines")
"""What names topics all over: for administrators only, while there are rules."""


def gets() -> list[str]:
    rows = operations(new_desk(), LoginSessions(ManualClock()), ManualClock())
    found = [row.path for row in rows if row.method == "GET" and row.role is AdminRole.VIEWER]
    assert len(found) > 20
    return found


def filled(path: str, word: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: NAMES.get(match[1], "none").format(word=word), path)


def is_furnished(path: str) -> bool:
    """Whether there is something at a path; else what it answers is only searched for names."""
    return set(re.findall(r"\{(\w+)\}", path)) <= NAMES.keys()


@pytest.fixture
async def api(tmp_path):
    async with whole_api(tmp_path) as found:
        found.broker.access.know_users(found.authenticator)
        found.broker.objects.store = open_store(StoreSettings(url="memory://sight"))
        for word in ("public", "secret"):
            await furnish(found, word)
        for _ in range(20):
            await asyncio.sleep(0)
        users = found.authenticator.users
        await users.add("eve", "password", scram=False, role=AdminRole.VIEWER)
        await users.add("root", "password", scram=False, administrator=True)
        await found.broker.access.change([rule(text) for text in RULES])
        found.heads = {
            name: {
                "authorization": "Bearer "
                + (await found.tokens.create("t", role, 100_000, owner=name))[0]
            }
            for name, role in (("eve", AdminRole.VIEWER), ("root", AdminRole.ADMIN))
        }
        yield found


async def everything(api, path: str, who: str) -> tuple[int, bytes]:
    answer = await api.get(path, headers=api.heads[who])
    return answer.status_code, answer.content


@pytest.mark.parametrize("path", gets())
async def test_no_answer_names_what_the_rules_hide(api, path):
    status, body = await everything(api, filled(path, "public"), "eve")
    assert b"secret" not in body
    assert status < 500, body
    if is_furnished(path):
        assert status == (403 if path in CLOSED else 200), body
        status, body = await everything(api, filled(path, "secret"), "root")
        assert status == 200
    if is_furnished(path) and "{" in path:
        status, body = await everything(api, filled(path, "secret"), "eve")
        assert status in (403, 404), body


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("/streams", 3),  # main and an exchange hold public topics, too
        ("/views", 1),
        ("/topics", 2),
        ("/topic-tree", 1),
        ("/sessions", 1),
        ("/mqtt/retained", 2),
        ("/mqtt/wills", 1),
        ("/kafka/groups", 1),
        ("/amqp/exchanges?search=-x", 1),
        ("/amqp/queues", 1),
        ("/amqp/bindings", 2),
        ("/cursors?search=public", 6),
        ("/messages?filter=%23", 2),
    ],
)
async def test_what_the_rules_show_is_shown(api, path, count):
    """Else a list that is always empty would pass the test above."""
    status, body = await everything(api, path, "eve")
    assert status == 200
    assert len(msgspec.json.decode(body)["items"]) == count, body
    status, whole = await everything(api, path.replace("search=public", "search="), "root")
    assert b"secret" in whole


async def test_the_words_of_troubles_are_for_administrators(api):
    for path in ("/api/v1/overview", "/health"):
        eve = await api.client.get(path, headers=api.heads["eve"])
        root = await api.client.get(path, headers=api.heads["root"])
        assert "secret" not in eve.text
        assert "secret/t" in root.text
        assert "test-standing" in eve.text  # that there is one is no secret


async def streams_of(api, headers) -> dict[str, float]:
    """The sizes of streams in a scrape."""
    text = (await api.client.get("/metrics", headers=headers)).text
    rows = re.findall(r'^onelog_stream_partitions{stream="(.*)"} (.*)$', text, re.MULTILINE)
    return {name: float(value) for name, value in rows}


async def test_a_scrape_names_the_streams_that_the_rules_show_and_its_sums_are_right(api):
    whole = await streams_of(api, api.heads["root"])
    seen = await streams_of(api, api.heads["eve"])
    assert {"public-stream", "secret-stream", "main"} <= set(whole)
    assert set(seen) == {"public-stream", "amqp.x.public-x", "main", "~rest"}
    assert sum(seen.values()) == sum(whole.values())
    assert set(await streams_of(api, {})) == {"~rest"}
    await api.broker.access.change([rule("allow anonymous describe server:cluster")])
    assert await streams_of(api, {}) == whole
    text, info = await api.tokens.create("prometheus", AdminRole.VIEWER, 60_000)
    bearer = {"authorization": f"Bearer {text}"}
    assert set(await streams_of(api, bearer)) == {"~rest"}
    named = make_rule("allow", [f"user:token {info.id}"], "describe", "server:cluster", name="p")
    await api.broker.access.change([named])
    assert await streams_of(api, bearer) == whole


async def test_a_probe_without_a_login_does_not_name_streams(api):
    api.desk.health.register("partitions", lambda: "stopped partitions: secret-stream/0")
    probe = await api.client.get("/health/ready")
    assert probe.status_code == 503
    assert probe.json() == {"status": "failing", "checks": {"partitions": "failing"}}
    async with client_of(api.desk, "broker.example", listener_is_loopback=False) as client:
        assert (await client.get("/health/ready")).json() == probe.json()
        access = api.broker.access
        await access.change(remove=[row.id for row in access.rules])
        assert (await client.get("/health/ready")).json() == probe.json(), "nobody logged in"
    assert "secret-stream" in (await api.client.get("/health/ready")).text


async def test_without_rules_viewers_see_everything(api):
    access = api.broker.access
    await access.change(remove=[row.id for row in access.rules])
    _status, body = await everything(api, "/streams", "eve")
    assert b"secret-stream" in body
    assert (await everything(api, "/config", "eve"))[0] == 200


async def test_an_operator_changes_only_what_the_rules_show(api):
    head = {
        "authorization": "Bearer "
        + (await api.tokens.create("t", AdminRole.OPERATOR, 100_000, owner=""))[0]
    }
    for method, path, body in (
        ("DELETE", "/streams/secret-stream", None),
        ("DELETE", "/views/secret-view", None),
        ("DELETE", "/cursors/secret-offset", None),
        ("POST", "/cursors/secret-offset/seek", {"to": "latest"}),
        ("POST", "/cursors/amqp:%2F:secret-q/purge", None),
        ("DELETE", "/kafka/groups/secret-group", None),
        ("DELETE", "/sessions/secret-client", None),
        ("POST", "/amqp/queues/%2F/secret-q/purge", None),
        ("POST", "/views", {"name": "v", "filter": "secret/#"}),
    ):
        answer = await api.ask(method, path, body, headers=head)
        assert answer.status_code in (403, 404), (method, path, answer.text)
    assert api.broker.streams.find("secret-stream") is not None


async def test_an_operator_moves_a_group_only_in_the_topics_that_the_rules_show(api):
    await api.authenticator.users.add("mia", "password", scram=False, role=AdminRole.OPERATOR)
    rules = ("allow user:mia subscribe topic:public/#", "allow user:mia consume cursor:group/*")
    await api.broker.access.change([rule(text) for text in rules])
    token = (await api.tokens.create("t", AdminRole.OPERATOR, 100_000, owner="mia"))[0]
    head = {"authorization": f"Bearer {token}"}

    def stands() -> dict[str, int]:
        row = api.desk.desk("kafka").group("public-group")
        return {place.topic: place.offset for place in row.positions}

    assert stands() == {"public.t": 1, "secret.t": 1}
    one = "/cursors/kafka:public-group"
    assert (await api.ask("POST", one + "/reset", headers=head)).status_code == 200
    assert stands() == {"public.t": 0, "secret.t": 1}
    told = set()
    for topic in ("secret.t", "absent.t"):
        for path, field in ((one, "stream"), ("/kafka/groups/public-group", "topic")):
            body = {field: topic, "to": "earliest"}
            answer = await api.ask("POST", f"{path}/seek", body, headers=head)
            assert answer.status_code == 404
            told.add(answer.text.replace(topic, ""))
    assert len(told) == 1
    assert stands() == {"public.t": 0, "secret.t": 1}
    body = {"topic": "secret.t", "to": "earliest"}
    answer = await api.ask(
        "POST", "/kafka/groups/public-group/seek", body, headers=api.heads["root"]
    )
    assert (answer.status_code, stands()["secret.t"]) == (200, 0)


async def test_an_operator_changes_a_stream_only_with_a_right_to_all_of_its_topics(api):
    """A stream is seen in part; a change of it is for every topic in it."""
    await api.authenticator.users.add("mia", "password", scram=False, role=AdminRole.OPERATOR)
    await api.broker.access.change([rule("allow user:mia subscribe topic:public/#")])
    token = (await api.tokens.create("t", AdminRole.OPERATOR, 100_000, owner="mia"))[0]
    head = {"authorization": f"Bearer {token}"}

    async def ask(method: str, path: str, body: object = None) -> int:
        return (await api.ask(method, path, body, headers=head)).status_code

    assert await ask("GET", "/streams/main") == 200
    assert await ask("PATCH", "/streams/main", {"retention_age_ms": 1000}) == 403
    assert await ask("POST", "/streams/main/partitions/0/trim", {"before": 1}) == 403
    for captures in (["secret/new/#"], ["public/new/#", "secret/new/#"], ["+/new/#"], ["#"]):
        assert await ask("POST", "/streams", {"name": "new", "captures": captures}) == 403
    assert await ask("PATCH", "/streams/public-stream", {"capture": ["secret/new/#"]}) == 403
    assert api.broker.streams.find("new") is None
    assert await ask("POST", "/streams", {"name": "new", "captures": ["public/new/#"]}) == 201
    assert await ask("PATCH", "/streams/public-stream", {"retention_age_ms": 1000}) == 200
    assert await ask("POST", "/streams/public-stream/partitions/0/trim", {"before": 1}) == 200
    assert await ask("DELETE", "/streams/public-stream") == 204


async def test_a_look_at_an_offset_does_not_tell_whether_a_hidden_stream_is_there(api):
    texts = set()
    for name in ("secret-stream", "absent-stream"):
        path = f"/messages?start=offset&stream={name}&partition=0&offset=0"
        status, body = await everything(api, path, "eve")
        assert status == 404
        texts.add(body.replace(name.encode(), b""))
        assert (await everything(api, path, "root"))[0] == (200 if name[0] == "s" else 404)
    assert len(texts) == 1


async def test_a_token_is_scoped_by_its_role_and_by_the_rules_for_its_name(api):
    """Of a token with an owner the rules for the owner count; see the other tests here."""
    text, info = await api.tokens.create("ci", AdminRole.VIEWER, 100_000, owner="")
    head = {"authorization": f"Bearer {text}"}
    public, secret = "/messages?filter=public/%23", "/messages?filter=secret/%23"
    for path in (public, secret):
        assert (await api.get(path, headers=head)).status_code == 403
    who = [f"user:token {info.id}"]
    scope = make_rule("allow", who, "subscribe", "topic:public/#", name="scope")
    await api.broker.access.change([scope])
    rows = (await api.get(public, headers=head)).json()["items"]
    assert {row["topic"] for row in rows} == {"public/t", "public/own/t"}
    assert (await api.get(secret, headers=head)).status_code == 403
    body = {"topic": "public/t", "text": "x"}
    assert (await api.ask("POST", "/messages", body, headers=head)).status_code == 403
    assert (await api.get("/session", headers=head)).json()["name"] == f"token {info.id}"
