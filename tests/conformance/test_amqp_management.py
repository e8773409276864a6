"""RabbitMQ's management API beside RabbitMQ's own: fields, statuses and errors of every path."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest

from tests.conformance.amqp_brokers import LACKS_RABBITMQ, find_rabbitmq
from tests.conformance.amqp_management_brokers import Api, ManagedRabbitMq, managed_onelog
from tests.conformance.amqp_management_differences import (
    ERLANG,
    LEFT_OUT,
    NODE_PREFIXES,
    ONLY_OURS,
)
from tests.conformance.mqtt_brokers import ROOT

NOT_FOUND = {"error": "Object Not Found", "reason": "Not Found"}
VALUES = {"arguments", "capabilities", "client_properties", "socket_opts", "cluster_state"}
"""Objects whose names are somebody's values."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Iterator[Api]:
    server = managed_onelog(tmp_path_factory.mktemp("managed")).start()
    yield Api(server)
    assert server.stop() == 0
    assert not server.errors()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Iterator[Api]:
    if find_rabbitmq() is None:
        pytest.skip(LACKS_RABBITMQ)
    server = ManagedRabbitMq(tmp_path_factory.mktemp("rabbitmq")).start()
    yield Api(server)
    server.stop()


@pytest.fixture(params=["ours", pytest.param("theirs", marks=pytest.mark.rabbitmq_peer)])
def api(request) -> Api:
    """Ours, then RabbitMQ's."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def host(api) -> Iterator[str]:
    """A virtual host of its own."""
    name = f"host-{time.monotonic_ns()}"
    assert api.ask("PUT", f"/vhosts/{name}").status == 201
    yield name
    assert api.ask("DELETE", f"/vhosts/{name}").status == 204


# -- the fields of every path

PATHS = (
    "overview",
    "nodes",
    "whoami",
    "cluster-name",
    "vhosts",
    "vhosts/%2F",
    "vhosts/%2F/connections",
    "vhosts/%2F/channels",
    "exchanges",
    "exchanges/%2F",
    "exchanges/%2F/ex",
    "exchanges/%2F/ex/bindings/source",
    "exchanges/%2F/ex2/bindings/destination",
    "queues",
    "queues/%2F",
    "queues/%2F/classic",
    "queues/%2F/quorum",
    "queues/%2F/classic/bindings",
    "queues?page=1&page_size=1&columns=name",
    "bindings",
    "bindings/%2F",
    "bindings/%2F/e/ex/q/classic",
    "bindings/%2F/e/ex/q/classic/a.b",
    "bindings/%2F/e/ex/e/ex2",
    "connections",
    "channels",
    "consumers",
    "consumers/%2F",
    "users",
    "users/ann",
    "users/ann/permissions",
    "permissions",
    "permissions/%2F/ann",
    "vhosts/%2F/permissions",
    "topic-permissions",
    "policies",
    "parameters",
    "vhost-limits",
    "definitions",
    "definitions/%2F",
    "aliveness-test/%2F",
    "health/checks/alarms",
    "health/checks/local-alarms",
    "health/checks/virtual-hosts",
    "health/checks/node-is-quorum-critical",
    "health/checks/node-is-mirror-sync-critical",
    "health/checks/protocol-listener/amqp",
)


QUEUES = ("classic", "quorum")


class Shown:
    """A broker with something of everything in it, and what its API shows then."""

    def __init__(self, api: Api) -> None:
        self._api = api
        for name in ("ex", "ex2"):
            api.do("PUT", f"/exchanges/%2F/{name}", {"type": "topic", "durable": True})
        api.do("PUT", "/queues/%2F/classic", {"durable": True, "arguments": {"x-max-length": 9}})
        quorum = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
        api.do("PUT", "/queues/%2F/quorum", quorum)
        api.do("POST", "/bindings/%2F/e/ex/q/classic", {"routing_key": "a.b"})
        api.do("POST", "/bindings/%2F/e/ex/e/ex2", {"routing_key": "a.b"})
        api.do("PUT", "/users/ann", {"password": "secret-1", "tags": "administrator"})
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        # From here on there is an administrator, and who has no name is none.
        api.user = "ann:secret-1"
        api.do("PUT", "/permissions/%2F/ann", everything)
        port = api.server.ports["amqp"]
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                port,
                credentials=pika.PlainCredentials("ann", "secret-1"),
                client_properties={"connection_name": "x"},
            )
        )
        channel = self.connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("ex", "a.b", b"one")
        reader = self.connection.channel()
        reader.basic_qos(prefetch_count=5)
        reader.basic_consume("classic", lambda *_: None)
        channel.basic_publish("", "quorum", b"one")
        reader.basic_get("quorum")
        self._until_counted()
        self.answers = {path: api.get(f"/{path}") for path in PATHS}
        name = quote(self.answers["connections"][0]["name"], safe="")
        self.answers["connections/{name}"] = api.get(f"/connections/{name}")
        self.answers["connections/{name}/channels"] = api.get(f"/connections/{name}/channels")
        self.answers["channels/{name}"] = api.get(f"/channels/{name}%20%282%29")
        self.answers["nodes/{name}"] = api.get(f"/nodes/{self.answers['overview']['node']}")
        port_check = f"health/checks/port-listener/{port}"
        self.answers["health/checks/port-listener"] = api.get(f"/{port_check}")
        api.publish("%2F", "ex", "a.b", "two", content_type="text/plain", headers={"n": 1})
        self.answers["publish"] = {"routed": True}
        self.connection.close()
        self.answers["get"] = api.take("%2F", "classic", 1)

    def _until_counted(self) -> None:
        """RabbitMQ counts now and then."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            classic, quorum = (self._api.get(f"/queues/%2F/{name}") for name in QUEUES)
            channels = [row for row in self._api.get("/channels") if row.get("message_stats")]
            is_counted = classic.get("message_stats", {}).get("deliver") and "messages" in quorum
            if is_counted and len(channels) == 2:
                return
            self.connection.process_data_events(0.2)
        pytest.fail("nothing was counted in time")


@pytest.fixture(scope="module")
def shown(ours, theirs) -> dict[str, dict[str, Any]]:
    """What both show."""
    with ThreadPoolExecutor(2) as threads:
        mine, other = threads.map(Shown, (ours, theirs))
    return {"ours": mine.answers, "theirs": other.answers}


def fields_of(value: Any, path: str = "") -> set[str]:
    """The names in an answer, with those of the objects in it."""
    if isinstance(value, list):
        return set().union(*(fields_of(row, path) for row in value)) if value else set()
    if not isinstance(value, dict):
        return set()
    found = set()
    for name, inner in value.items():
        here = f"{path}.{name}" if path else name
        found.add(here)
        is_rate = isinstance(inner, dict) and set(inner) == {"rate"}
        if name not in VALUES | ERLANG and not is_rate:
            found |= fields_of(inner, here)
    return found


ALL_PATHS = (
    *PATHS,
    "connections/{name}",
    "connections/{name}/channels",
    "channels/{name}",
    "nodes/{name}",
    "health/checks/port-listener",
    "get",
)


def is_known(field: str, kind: str) -> bool:
    """Whether it is written down that ours lacks a field."""
    last = field.rpartition(".")[2]
    known = LEFT_OUT.get(kind, frozenset())
    if last in ERLANG or field in known or any(field.startswith(f"{row}.") for row in known):
        return True
    return kind == "nodes" and field.startswith(NODE_PREFIXES)


@pytest.mark.rabbitmq_peer
@pytest.mark.parametrize("path", ALL_PATHS)
def test_every_field_of_rabbitmq_is_there_or_written_down(shown, path):
    words = re.split(r"[/?]", path)
    kind = words[2] if words[0] in ("vhosts", "connections") and words[2:] else words[0]
    mine, other = fields_of(shown["ours"][path]), fields_of(shown["theirs"][path])
    assert other or shown["theirs"][path] == [], "RabbitMQ shows nothing: the test is empty"
    assert {field for field in other - mine if not is_known(field, kind)} == set()
    assert mine - other - ONLY_OURS.get(kind, frozenset()) == set()


@pytest.mark.rabbitmq_peer
@pytest.mark.parametrize("path", ALL_PATHS)
def test_values_have_the_types_that_rabbitmq_gives_them(shown, path):
    """A typed client reads both."""
    loose = {"arguments", "socket_opts", "headers", "client_properties", "properties"}

    def check(mine: Any, other: Any, at: str) -> None:
        if mine is None or other is None:
            return
        if isinstance(other, bool) or not isinstance(other, int | float):
            assert type(mine) is type(other), f"{at}: {mine!r} and {other!r}"
        else:
            assert isinstance(mine, int | float), f"{at}: {mine!r} and {other!r}"
            assert not isinstance(mine, bool), at
        if isinstance(other, dict):
            for name in (mine.keys() & other.keys()) - loose:
                check(mine[name], other[name], f"{at}.{name}")
        elif isinstance(other, list) and mine and other:
            check(mine[0], other[0], f"{at}[0]")

    check(shown["ours"][path], shown["theirs"][path], path)


def test_every_field_that_ours_lacks_is_named_in_the_reference():
    page = (ROOT / "docs" / "reference" / "amqp-management.md").read_text()
    names = set(ERLANG).union(*LEFT_OUT.values())
    words = {name.rpartition(".")[2].removesuffix("_details") for name in names}
    assert {word for word in words if f"`{word}`" not in page} == set()
    assert {word for word in NODE_PREFIXES if word not in page} == set()


# -- what changes things

CHANGES: dict[str, tuple[str, str, Any, int]] = {
    "an exchange without a type": ("PUT", "/exchanges/{host}/e", {}, 201),
    "a queue": ("PUT", "/queues/{host}/q", {"durable": True}, 201),
    "a queue with a flag as text": ("PUT", "/queues/{host}/q", {"durable": "true"}, 201),
    "a queue without a body": ("PUT", "/queues/{host}/q", None, 201),
    "an unknown queue is deleted": ("DELETE", "/queues/{host}/q", None, 404),
    "an unknown exchange is deleted": ("DELETE", "/exchanges/{host}/e", None, 404),
    "an unknown binding is deleted": ("DELETE", "/bindings/{host}/e/a/q/b/k", None, 404),
    "an unknown queue is purged": ("DELETE", "/queues/{host}/q/contents", None, 404),
    "a built-in exchange is deleted": ("DELETE", "/exchanges/{host}/amq.topic", None, 401),
    "an exchange with a reserved name": ("PUT", "/exchanges/{host}/amq.x", {}, 401),
    "a queue with a reserved name": ("PUT", "/queues/{host}/amq.x", {}, 401),
    "an exchange of no type": ("PUT", "/exchanges/{host}/e", {"type": "what"}, 400),
    "a flag that is none": ("PUT", "/queues/{host}/q", {"durable": "yes"}, 400),
    "a flag that is a number": ("PUT", "/queues/{host}/q", {"durable": 1}, 400),
    "an argument that is null": ("PUT", "/queues/{host}/q", {"arguments": {"x": None}}, 400),
    "an argument of a wrong type": (
        "PUT",
        "/queues/{host}/q",
        {"arguments": {"x-message-ttl": "soon"}},
        400,
    ),
    "a body that is a list": ("PUT", "/queues/{host}/q", [1], 400),
    "a binding to nothing": ("POST", "/bindings/{host}/e/amq.topic/q/q", {}, 404),
    "a binding from nothing": ("POST", "/bindings/{host}/e/e/e/amq.topic", {}, 404),
    "a queue in no virtual host": ("PUT", "/queues/no/q", {}, 404),
    "an exchange in no virtual host": ("PUT", "/exchanges/no/e", {}, 404),
    "a list of no virtual host": ("GET", "/queues/no", None, 404),
    "bindings of no virtual host": ("GET", "/bindings/no", None, 404),
    "no such virtual host": ("GET", "/vhosts/no", None, 404),
    "no such queue": ("GET", "/queues/{host}/no", None, 404),
    "no such exchange": ("GET", "/exchanges/{host}/no", None, 404),
    "no such connection": ("DELETE", "/connections/no", None, 404),
    "no such channel": ("GET", "/channels/no", None, 404),
    "no such user": ("GET", "/users/no", None, 404),
    "no such path": ("GET", "/no", None, 404),
    "no such node's virtual host": ("GET", "/aliveness-test/no", None, 404),
    "a wrong method": ("PATCH", "/queues/{host}/q", None, 405),
    "a wrong method of a verb": ("GET", "/queues/{host}/q/get", None, 405),
    "a name that is not UTF-8": ("GET", "/queues/{host}/%ff", None, 404),
    "a name with a bad escape": ("GET", "/queues/{host}/%zz", None, 400),
    "a page that is no number": ("GET", "/queues?page=x", None, 400),
    "a page that is too far": ("GET", "/queues?page=99", None, 400),
    "a page that is too large": ("GET", "/queues?page=1&page_size=501", None, 400),
    "a publish that lacks things": ("POST", "/exchanges/{host}/amq.topic/publish", {}, 400),
    "a get that lacks things": ("POST", "/queues/{host}/q/get", {"count": 1}, 400),
    "a user without tags": ("PUT", "/users/bob", {"password": "x"}, 400),
    "definitions in no virtual host": ("POST", "/definitions/no", {}, 404),
    "definitions of no virtual host": ("GET", "/definitions/no", None, 400),
    "a port that is none": ("GET", "/health/checks/port-listener/x", None, 400),
    "a port without a listener": ("GET", "/health/checks/port-listener/1", None, 503),
    "a protocol without a listener": ("GET", "/health/checks/protocol-listener/no", None, 503),
}

OTHER_WORDS = {
    "an exchange with a reserved name",
    "a queue with a reserved name",
    "a built-in exchange is deleted",
    "an argument of a wrong type",
    "a port without a listener",
    "a protocol without a listener",
    "a name with a bad escape",
    "a publish that lacks things",
}
"""Where the words of the reason differ; status and word of the error are the same."""


@pytest.mark.parametrize("what", CHANGES)
def test_a_request_is_answered_with_rabbitmqs_status_and_error(api, host, what):
    method, path, body, status = CHANGES[what]
    answer = api.ask(method, path.format(host=host), body)
    assert answer.status == status
    if status >= 400 and status != 405 and answer.body:
        assert set(answer.body) >= {"reason"}


@pytest.mark.rabbitmq_peer
@pytest.mark.parametrize(
    "what", [name for name, row in CHANGES.items() if row[3] in (400, 401, 404)]
)
def test_an_error_has_rabbitmqs_body(ours, theirs, what):
    method, path, body, _status = CHANGES[what]
    found = [row.ask(method, path.format(host="%2F"), body).body for row in (ours, theirs)]
    if what not in OTHER_WORDS:
        assert found[0] == found[1]
    elif found[1]:
        assert found[0]["error"] == found[1]["error"]


@pytest.mark.parametrize("raw", [b"{", b"\xff\xfe", b"nonsense", b"[" * 100_000, b"[1]"])
def test_what_is_no_json_object_is_told_so(api, host, raw):
    answer = api.ask("PUT", f"/queues/{host}/q", raw=raw)
    assert (answer.status, answer.body["reason"]) == (400, "not_json")


def test_a_declaration_is_new_once_and_must_stay_the_same(api, host):
    path, body = f"/queues/{host}/q", {"durable": True, "arguments": {"x-max-length": 5}}
    assert [api.ask("PUT", path, body).status for _ in range(2)] == [201, 204]
    other = api.ask("PUT", path, {"durable": True})
    assert other.status == 400
    assert other.body["reason"].startswith("inequivalent arg 'x-max-length' for queue 'q'")


def test_a_message_goes_in_and_comes_out(api, host):
    api.do("PUT", f"/queues/{host}/q", {})
    api.do("POST", f"/bindings/{host}/e/amq.topic/q/q", {"routing_key": "a.#"})
    properties = {"content_type": "text/plain", "priority": 3, "headers": {"n": 1, "t": "x"}}
    assert api.publish(host, "amq.topic", "a.b", "hello", **properties)
    assert not api.publish(host, "amq.topic", "b", "nobody")
    assert api.publish(host, "amq.default", "q", "direct")
    peeked = api.take(host, "q", 5, "ack_requeue_true")
    assert [row["payload"] for row in peeked] == ["hello", "direct"]
    assert peeked[0] == {
        "payload": "hello",
        "payload_bytes": 5,
        "payload_encoding": "string",
        "exchange": "amq.topic",
        "routing_key": "a.b",
        "redelivered": False,
        "message_count": 1,
        "properties": properties,
    }
    assert peeked[1]["properties"] == []
    taken = api.take(host, "q", 1)
    assert (taken[0]["redelivered"], taken[0]["message_count"]) == (True, 1)
    api.do("DELETE", f"/queues/{host}/q/contents")
    assert api.take(host, "q") == []


def test_bytes_that_are_no_text_come_out_as_base64_and_payloads_are_cut(api, host):
    api.do("PUT", f"/queues/{host}/q", {})
    for payload in ("/wEC", "aGVsbG8="):
        body = {"properties": {}, "routing_key": "q", "payload": payload}
        api.do(
            "POST",
            f"/exchanges/{host}/amq.default/publish",
            body | {"payload_encoding": "base64"},
        )
    body = {"count": 9, "ackmode": "ack_requeue_false", "encoding": "auto", "truncate": 2}
    rows = api.do("POST", f"/queues/{host}/q/get", body)
    shown = [(row["payload_encoding"], row["payload_bytes"], row["payload"]) for row in rows]
    assert shown == [("base64", 3, "/wE="), ("string", 5, "he")]


PROPERTIES = {
    "a number": ({"content_type": 5}, ["not_string", "content_type"]),
    "a text": ({"priority": "high"}, ["not_int", "priority"]),
    "a null": ({"headers": {"n": None}}, "null_not_allowed"),
}


@pytest.mark.parametrize("what", PROPERTIES)
def test_wrong_properties_are_told(api, host, what):
    given, reason = PROPERTIES[what]
    body = {"properties": given, "routing_key": "q", "payload": "", "payload_encoding": "string"}
    answer = api.ask("POST", f"/exchanges/{host}/amq.default/publish", body)
    assert (answer.status, answer.body) == (400, {"error": "bad_request", "reason": reason})


def test_a_message_that_a_full_queue_refuses_is_not_published(api, host):
    arguments = {"x-max-length": 0, "x-overflow": "reject-publish"}
    api.do("PUT", f"/queues/{host}/full", {"arguments": arguments})
    body = {"properties": {}, "routing_key": "full", "payload": "", "payload_encoding": "string"}
    answer = api.ask("POST", f"/exchanges/{host}/amq.default/publish", body)
    assert (answer.status, answer.body["reason"].split()[0]) == (400, "rejected")


def test_bindings_are_told_apart_by_key_and_arguments(api, host):
    api.do("PUT", f"/queues/{host}/q", {})
    path = f"/bindings/{host}/e/amq.headers/q/q"
    for body in ({"routing_key": "a~b c/ä%"}, {"arguments": {"x-match": "any", "k": "v"}}, {}):
        answer = api.ask("POST", path, body)
        assert answer.status == 201
        followed = api.ask("GET", f"/bindings/{host}/e/amq.headers/q/{answer.headers['location']}")
        assert followed.status == 200
        assert followed.body["routing_key"] == body.get("routing_key", "")
    rows = api.get(path)
    assert len({row["properties_key"] for row in rows}) == 3
    assert {row["properties_key"] for row in rows} >= {"~", "a%7Eb+c%2F%C3%A4%25"}
    for row in rows:
        key = quote(row["properties_key"], safe="")
        assert api.ask("DELETE", f"{path}/{key}").status == 204
    assert api.get(path) == []


def test_a_closed_connection_is_told_why(api):
    port = api.server.ports["amqp"]
    with_name = pika.ConnectionParameters("127.0.0.1", port)
    connection = pika.BlockingConnection(with_name)
    deadline = time.monotonic() + 10
    while not (rows := api.get("/connections")) or "peer_port" not in rows[0]:
        assert time.monotonic() < deadline
        connection.process_data_events(0.1)
    name = quote(rows[0]["name"], safe="")
    assert api.ask("DELETE", f"/connections/{name}", headers={"X-Reason": "go"}).status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="CONNECTION_FORCED - go"):
        connection.process_data_events(10)


def test_lists_have_columns_an_order_and_pages(api, host):
    for number in range(5):
        api.do("PUT", f"/queues/{host}/q{number}", {})
    path = f"/queues/{host}?columns=name"
    names = [row["name"] for row in api.get(f"{path}&sort=name&sort_reverse=true")]
    assert names == ["q4", "q3", "q2", "q1", "q0"]
    page = api.get(f"{path}&page=2&page_size=2&sort=name")
    assert page["items"] == [{"name": "q2"}, {"name": "q3"}]
    assert (page["page_count"], page["total_count"], page["item_count"]) == (3, 5, 2)
    found = api.get(f"{path}&page=1&name=Q3")
    assert (found["items"], found["filtered_count"]) == ([{"name": "q3"}], 1)


def administered(api: Api) -> Api:
    """The API for an administrator, whom users in definitions need; RabbitMQ's guest is one."""
    if not api.is_ours:
        return Api(api.server, "guest:guest")
    if api.ask("GET", "/users/ann").status != 200:
        api.do("PUT", "/users/ann", {"password": "secret-1", "tags": "administrator"})
    return Api(api.server, "ann:secret-1")


@pytest.mark.rabbitmq_peer
def test_definitions_are_made_again_elsewhere(ours, theirs):
    """What one exports, the other imports, both ways; an export has no passwords of its users."""
    here, there = administered(ours), administered(theirs)
    for source, target, name in ((here, there, "moved1"), (there, here, "moved2")):
        source.do("PUT", f"/vhosts/{name}")
        source.do("PUT", f"/exchanges/{name}/e", {"type": "fanout", "durable": True})
        arguments = {"x-max-length": 5, "x-queue-type": "quorum"}
        source.do("PUT", f"/queues/{name}/q", {"durable": True, "arguments": arguments})
        source.do("POST", f"/bindings/{name}/e/e/q/q", {"routing_key": "k", "arguments": {"a": 1}})
        target.do("POST", "/definitions", source.get("/definitions"))
        assert target.publish(name, "e", "k", "hello")
        kept = [row.get(f"/definitions/{name}") for row in (source, target)]
        for word in ("exchanges", "queues", "bindings"):
            assert kept[0][word] == kept[1][word]
        for row in (source, target):
            row.do("DELETE", f"/vhosts/{name}")


def test_the_page_of_the_reference_names_every_path():
    page = (ROOT / "docs" / "reference" / "amqp-management.md").read_text()
    words = {re.split(r"[/?]", path)[0] for path in PATHS}
    assert {word for word in words if f"/api/{word}" not in page} == set()
    assert Path(ROOT / "docs" / "index.md").read_text().count("amqp-management.md") == 1
