"""What operators make and remove over the API: exchanges, queues, bindings, retained messages, open
transactions. Each with its rights, and with exact answers to what is wrong."""

from __future__ import annotations

import asyncio
import json

import pytest

from onelog.broker import LOCAL, Message
from onelog.protocols.kafka.errors import KafkaError
from onelog.protocols.kafka.transactions.state import State
from onelog.record.headers import RETAIN
from onelog.security.quotas.entities import parse_entity
from onelog.security.roles import AdminRole
from tests.support.access import rule
from tests.support.admin import whole_api
from tests.support.brokers import history
from tests.support.mqtt import until

X, Q, B = "/amqp/exchanges/%2F/", "/amqp/queues/%2F/", "/amqp/bindings/%2F"


@pytest.fixture
async def api(tmp_path):
    async with whole_api(tmp_path) as found:
        yield found


async def head(api, name: str, role: AdminRole) -> dict[str, str]:
    """The token of a user with a role."""
    await api.authenticator.users.add(name, "password", scram=False, role=role)
    token, _info = await api.tokens.create("t", role, 100_000, owner=name)
    return {"authorization": f"Bearer {token}"}


async def restricted(api, *rules: str) -> dict[str, str]:
    """An operator, mia, under these rules."""
    api.broker.access.know_users(api.authenticator)
    found = await head(api, "mia", AdminRole.OPERATOR)
    await api.broker.access.change([rule(text) for text in rules])
    return found


async def names(api, path: str, field: str = "name") -> set[str]:
    return {row[field] for row in await api.items(path)}


# -- exchanges, queues, bindings


async def test_exchanges_queues_and_bindings_are_made_and_removed(api):
    made = await api.ask("PUT", X + "alarms", {"type": "topic"})
    assert (made.status_code, made.json()["type"], made.json()["durable"]) == (200, "topic", True)
    made = await api.ask("PUT", Q + "jobs", {"arguments": {"x-message-ttl": 60_000}})
    assert (made.status_code, made.json()["topic"]) == (200, "$q/jobs")
    asked = {"source": "alarms", "destination": "jobs", "routing_key": "plant.#"}
    made = await api.ask("POST", B, asked)
    assert (made.status_code, made.json()["key"]) == (201, "plant.%23")
    for again in (
        await api.ask("PUT", X + "alarms", {"type": "topic"}),
        await api.ask("PUT", Q + "jobs", {"arguments": {"x-message-ttl": 60_000}}),
        await api.ask("POST", B, asked),
    ):
        assert again.status_code in (200, 201)
    vhost = api.amqp.vhosts.all()[0]
    assert vhost.router.route("alarms", "plant.7", {}) == {"jobs"}
    assert (await api.ask("DELETE", X + "alarms?if_unused=true")).status_code == 409
    gone = "?source=alarms&destination=jobs&routing_key=plant.%23"
    assert (await api.ask("DELETE", B + gone)).status_code == 204
    assert (await api.ask("DELETE", B + gone)).status_code == 404
    assert (await api.ask("DELETE", X + "alarms?if_unused=true")).status_code == 204
    assert "alarms" not in await names(api, "/amqp/exchanges")
    assert await names(api, "/amqp/queues") == {"jobs"}


async def test_queues_of_the_api_count_for_their_user_and_not_as_one_client(api):
    quotas, ann = api.broker.client_quotas, await head(api, "ann", AdminRole.OPERATOR)
    for entity in ("client", "user,client", "listener"):
        await quotas.change(parse_entity(entity), {"queues": 1})
    for name in ("a", "b"):
        assert (await api.ask("PUT", Q + name, {}, headers=ann)).status_code == 200
    await quotas.change(parse_entity("user:ann"), {"queues": 2})
    told = await api.ask("PUT", Q + "c", {}, headers=ann)
    assert told.status_code == 400
    assert "queue limit of user 'ann' (2) is reached" in told.json()["error"]["message"]


async def test_an_exchange_is_bound_to_an_exchange_and_a_key_tells_bindings_apart(api):
    for name in ("a", "b"):
        assert (await api.ask("PUT", X + name, {"type": "headers"})).status_code == 200
    asked = {"source": "a", "destination": "b", "destination_type": "exchange"}
    for color in ("red", "blue"):
        body = {**asked, "arguments": {"color": color}}
        assert (await api.ask("POST", B, body)).status_code == 201
    gone = B + "?source=a&destination=b&destination_type=exchange"
    told = await api.ask("DELETE", gone)
    keys = [row["key"] for row in await api.items("/amqp/bindings")]
    assert (told.status_code, len(keys)) == (409, 2)
    assert all(key in told.json()["error"]["message"] for key in keys)
    assert (await api.ask("DELETE", f"{gone}&key={keys[0]}")).status_code == 204
    assert [row["key"] for row in await api.items("/amqp/bindings")] == keys[1:]


async def test_bad_topology_has_exact_answers(api):
    await api.ask("PUT", X + "x", {"type": "topic"})
    await api.ask("PUT", Q + "q", {})
    deep = {"a": json.loads("[" * 200 + "]" * 200)}
    end = {"source": "x", "destination": "q"}
    for method, path, body, status in (
        ("PUT", X + "y", {"type": "round"}, 400),
        ("PUT", X + "y", {"kind": "topic"}, 400),
        ("PUT", X + "y", {"arguments": {"a": None}}, 400),
        ("PUT", X + "y", {"arguments": deep}, 400),
        ("PUT", X + "x", {"type": "fanout"}, 409),
        ("PUT", X + "amq.mine", {}, 403),
        ("PUT", X + "n" * 256, {}, 400),
        ("PUT", "/amqp/exchanges/none/y", {}, 404),
        ("DELETE", X + "none", None, 404),
        ("DELETE", X + "amq.topic", None, 403),
        ("DELETE", X + "x?if_unused=perhaps", None, 400),
        ("DELETE", X + "x?force=true", None, 400),
        ("PUT", Q + "q", {"durable": False}, 409),
        ("PUT", Q + "r", {"arguments": {"x-message-ttl": -1}}, 400),
        ("PUT", Q + "r", {"arguments": {"x-queue-type": "odd"}}, 400),
        ("PUT", Q + "r", {"exclusive": True}, 400),
        ("PUT", "/amqp/queues/none/r", {}, 404),
        ("POST", B, {"source": "x"}, 400),
        ("POST", B, {"source": "", "destination": "q"}, 400),
        ("POST", B, {**end, "destination": "none"}, 404),
        ("POST", B, {**end, "source": "none"}, 404),
        ("POST", B, {**end, "destination_type": "exchange"}, 404),
        ("POST", B, {**end, "destination_type": "topic"}, 400),
        ("POST", "/amqp/bindings/none", end, 404),
        ("DELETE", B + "?source=x", None, 400),
        ("DELETE", B + "?source=x&destination=q", None, 404),
    ):
        answer = await api.ask(method, path, body)
        assert answer.status_code == status, (method, path, body, answer.text)
        assert answer.json()["error"]["message"]


async def test_a_viewer_changes_nothing(api):
    viewer = await head(api, "eve", AdminRole.VIEWER)
    for method, path, body in (
        ("PUT", X + "x", {}),
        ("DELETE", X + "x", None),
        ("PUT", Q + "q", {}),
        ("POST", B, {"source": "x", "destination": "q"}),
        ("DELETE", B + "?source=x&destination=q", None),
        ("DELETE", "/mqtt/retained?filter=%23", None),
        ("POST", "/kafka/transactions/t/abort", None),
        ("POST", "/stored-backups/%2Fsrv/list", {}),
        ("POST", "/stored-backups/%2Fsrv/verify", {}),
        ("POST", "/stored-backups/%2Fsrv/prune", {}),
    ):
        answer = await api.ask(method, path, body, headers=viewer)
        assert answer.status_code == 403, (method, path, answer.text)


async def test_an_operator_needs_the_rights_of_a_client_and_what_it_makes_is_judged_as_it(api):
    mia = await restricted(
        api,
        "allow user:mia create,delete,publish topic:$x/mine/#",
        "allow user:mia create,publish topic:$q/mine",
        "allow user:mia subscribe topic:plant/#",
    )
    await api.ask("PUT", X + "theirs", {}, headers=await head(api, "root", AdminRole.ADMIN))

    async def status(method: str, path: str, body=None) -> int:
        return (await api.ask(method, path, body, headers=mia)).status_code

    assert await status("PUT", X + "mine", {"type": "topic"}) == 200
    assert await status("PUT", X + "mine-too", {}) == 403
    assert await status("PUT", X + "mine", {"arguments": {"alternate-exchange": "other"}}) == 403
    assert await status("PUT", Q + "mine", {}) == 200
    assert await status("PUT", Q + "other", {}) == 403
    dead = {"arguments": {"x-dead-letter-exchange": "mine"}}
    assert await status("PUT", Q + "mine", dead) == 403  # it may not consume what it would pass on
    # Rights come first: whether something is there is not told.
    assert await status("DELETE", X + "theirs") == 403
    assert await status("DELETE", X + "none") == 403
    plant = {"source": "amq.topic", "destination": "mine", "routing_key": "plant.#"}
    assert await status("POST", B, plant) == 201
    assert await status("POST", B, {**plant, "routing_key": "#"}) == 403
    assert await status("POST", B, {**plant, "destination": "other"}) == 403
    (bound,) = api.amqp.vhosts.all()[0].router.bindings()
    assert bound.maker is not None
    assert bound.maker.name == "mia"
    # A rule that comes later holds for what comes through the binding.
    await api.broker.access.change([rule("deny user:mia subscribe topic:plant/secret")])
    for topic in ("plant/open", "plant/secret"):
        await api.broker.publish(Message(topic, b"x"), principal=LOCAL)
    for _ in range(20):
        await asyncio.sleep(0)
    assert api.amqp.vhosts.all()[0].queues["mine"].ready.size == 1
    assert await status("DELETE", X + "mine") == 204


# -- retained messages


async def retain(api, *topics: str) -> None:
    for topic in topics:
        await api.broker.publish(Message(topic, b"x", None, ((RETAIN, b"1"),)), principal=LOCAL)
    for _ in range(20):
        await asyncio.sleep(0)


async def cleared(api, text: str, **options):
    answer = await api.ask("DELETE", f"/mqtt/retained?filter={text}", **options)
    for _ in range(20):
        await asyncio.sleep(0)
    return answer


async def test_retained_messages_of_a_filter_are_cleared_and_stay_in_the_log(api, monkeypatch):
    monkeypatch.setattr("onelog.admin.api.retained.PIECE", 2)
    await retain(api, "a/1", "a/2", "a/3", "b")
    assert (await cleared(api, "a/%2B")).json() == {"topics": 3}
    assert await names(api, "/mqtt/retained", "topic") == {"b"}
    assert "a/1=x" in await history(api.broker, "a/#")
    assert (await cleared(api, "a/%2B")).json() == {"topics": 0}
    for wrong in ("a/%23/b", "", "a%00"):
        assert (await cleared(api, wrong)).status_code == 400
    assert (await api.ask("DELETE", "/mqtt/retained")).status_code == 400


async def test_who_may_not_publish_clears_nothing_and_what_is_hidden_stays(api):
    mia = await restricted(
        api, "allow user:mia subscribe topic:a/#", "allow user:mia publish topic:a/1"
    )
    await retain(api, "a/1", "a/2", "b")
    refused = await cleared(api, "%23", headers=mia)
    assert (refused.status_code, "a/2" in refused.text) == (403, True)
    assert len(api.mqtt.retained) == 3
    await api.broker.access.change([rule("allow user:mia publish topic:a/#")])
    assert (await cleared(api, "%23", headers=mia)).json() == {"topics": 2}
    assert [record.topic for record in [await api.mqtt.retained.record(number)
            for number in api.mqtt.retained.matching("#")] if record] == ["b"]  # fmt: skip


# -- transactions


async def begin(api, name: str, topic: str):
    kafka = api.kafka
    producer = await kafka.transactions.init_producer(name, 60_000)
    await kafka.transactions.add(name, producer, frozenset({(topic, 0)}))
    return producer


async def test_an_open_transaction_is_aborted_and_its_producer_fenced(api):
    await api.broker.publish(Message("shop", b"x"), principal=LOCAL)
    producer = await begin(api, "pay", "shop")
    answer = await api.ask("POST", "/kafka/transactions/pay/abort")
    assert (answer.status_code, answer.json()["epoch"]) == (200, producer.epoch + 1)
    await until(lambda: api.kafka.transactions.find("pay").state is State.COMPLETE_ABORT)
    with pytest.raises(KafkaError, match="is over"):
        await api.kafka.transactions.end("pay", producer, commit=True)
    again = await api.ask("POST", "/kafka/transactions/pay/abort")
    assert (again.status_code, "no transaction" in again.text) == (409, True)
    assert (await api.ask("POST", "/kafka/transactions/none/abort")).status_code == 404


async def test_a_transaction_is_aborted_only_by_who_sees_all_of_it(api):
    for topic in ("a", "b"):
        await api.broker.publish(Message(topic, b"x"), principal=LOCAL)
    await begin(api, "pay", "a")
    await begin(api, "ship", "b")
    mia = await restricted(
        api,
        "allow user:mia describe cursor:transaction/pay",
        "allow user:mia subscribe topic:other",
    )
    path = "/kafka/transactions/{}/abort"
    assert (await api.ask("POST", path.format("ship"), headers=mia)).status_code == 404
    assert (await api.ask("POST", path.format("pay"), headers=mia)).status_code == 403
    await api.broker.access.change([rule("allow user:mia publish topic:a")])
    assert (await api.ask("POST", path.format("pay"), headers=mia)).status_code == 200
