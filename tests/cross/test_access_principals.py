"""Whom rules mean: users, groups, certificates, claims of tokens, `%u` and `%c`, by real clients.

One broker with logins. For each kind of principal: what a rule allows is done, its neighbour is
refused, and a rule that comes while the connection is open counts at once.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator

import jwt
import pika
import pytest
import trustme
from confluent_kafka import KafkaException, Producer

from onelog.base.names import to_dotted
from tests.conformance.mqtt_brokers import Onelog
from tests.conformance.mqtt_raw import Raw
from tests.unit.test_security_tokens import KEY, write_keys

DEADLINE_S = 30.0
Try = Callable[[str], bool]
"""Publishes to a topic; whether that was allowed."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server(tmp_path_factory, authority) -> Iterator[Onelog]:
    folder = tmp_path_factory.mktemp("principals")
    own = authority.issue_cert("localhost", "127.0.0.1")
    own.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    write_keys(folder / "jwks.json", KEY)
    tls = "listeners.mqtt_tls.tls"
    found = Onelog(
        folder,
        "security.anonymous=never",
        "security.tokens.jwks_file=jwks.json",
        "security.tokens.issuer=us",
        "security.tokens.audience=broker",
        'security.tokens.claims=["role"]',
        "security.tokens.roles_claim=job",
        'security.tokens.operators=["operator"]',
        'security.tokens.admins=["boss"]',
        "listeners.amqp_management.enabled=true",
        "listeners.mqtt_tls.enabled=true",
        f"{tls}.cert_file=server.pem",
        f"{tls}.key_file=server.pem",
        f"{tls}.client_ca_file=ca.pem",
        f"{tls}.client_cert=required",
        listeners=("mqtt_tls", "amqp_management"),
    ).start()
    for name in ("ann", "bob"):
        found.user(name, "secret-1")
    found.command("user", "groups", "ann", "lab")
    for rule in (
        ("allow", "everyone", "publish", "topic:of-user/%u"),
        ("allow", "everyone", "publish", "topic:of-client/%c"),
        ("allow", "user:ann", "publish", "topic:of-ann"),
        ("allow", "group:lab", "publish", "topic:of-lab"),
        ("allow", "certificate:device7", "publish", "topic:of-device"),
        ("allow", "claim:role=writer", "publish", "topic:of-writers"),
    ):
        found.command("acl", "add", *rule)
    yield found
    assert found.stop() == 0
    assert not found.errors()


def token(**claims: object) -> str:
    rows = {"sub": "tess", "exp": int(time.time()) + 600, "iss": "us", "aud": "broker", **claims}
    return jwt.encode(rows, KEY, "ES256", headers={"kid": "k0"})


def mqtt(server: Onelog, user: str = "ann", client: str = "c1", **options) -> Iterator[Try]:
    tls = options.get("tls")
    with Raw(server.ports["mqtt_tls" if tls else "mqtt"], 5, tls=tls) as raw:
        secret = options.get("secret", "secret-1")
        login = {} if tls else {"username": user, "password": secret.encode()}
        assert raw.connect(client_id=client, **login).connack.reason == 0
        yield lambda topic: raw.publish(topic, b"x", 1) < 0x80


def amqp(server: Onelog, user: str = "ann", password: str = "secret-1") -> Iterator[Try]:
    login = pika.PlainCredentials(user, password)
    where = pika.ConnectionParameters("127.0.0.1", server.ports["amqp"], credentials=login)
    connection = pika.BlockingConnection(where)

    def publish(topic: str) -> bool:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish("amq.topic", topic.replace("/", "."), b"x")
        except pika.exceptions.ChannelClosedByBroker as error:
            assert error.reply_code == 403
            return False
        channel.close()
        return True

    yield publish
    connection.close()


def kafka(server: Onelog, user: str = "ann", **options) -> Iterator[Try]:
    login = {"sasl.mechanisms": "PLAIN", "sasl.username": user, "sasl.password": "secret-1"}
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}",
            "security.protocol": "SASL_PLAINTEXT",
            "topic.metadata.refresh.interval.ms": 200,
            **(options or login),
        }
    )

    def publish(topic: str) -> bool:
        told = []
        until = time.monotonic() + 2
        while True:
            try:
                producer.produce(
                    to_dotted(topic), b"x", on_delivery=lambda error, _message: told.append(error)
                )
                break
            except KafkaException as error:  # the client remembers a refusal for a while
                assert error.args[0].name() == "TOPIC_AUTHORIZATION_FAILED"
                if time.monotonic() > until:
                    return False
                producer.poll(0.05)
        assert producer.flush(DEADLINE_S) == 0
        assert told[0] is None or told[0].name() == "TOPIC_AUTHORIZATION_FAILED", told
        return told[0] is None

    yield publish


def make(server: Onelog, *topics: str) -> None:
    """Topics that Kafka finds: an administrator makes them."""
    for topic in topics:
        name = topic.replace("/", "-")
        if name not in server.command("stream", "list"):
            server.command("stream", "create", name, "--capture", topic)


WAYS = {"mqtt": mqtt, "amqp": amqp, "kafka": kafka}


@pytest.mark.parametrize("protocol", WAYS)
def test_users_groups_and_percent_u_mean_the_user_in_every_protocol(server, protocol):
    make(server, "of-user/ann", "of-user/bob", "of-ann", "of-lab", f"new-{protocol}")
    for attempt in WAYS[protocol](server):
        assert [attempt(topic) for topic in ("of-user/ann", "of-ann", "of-lab")] == [True] * 3
        assert not attempt("of-user/bob")
        assert not attempt(f"new-{protocol}")
        rule = ("allow", "user:ann", "publish", f"topic:new-{protocol}")
        server.command("acl", "add", *rule, "--name", f"new-{protocol}")
        assert attempt(f"new-{protocol}"), "while it is open"
        server.command("acl", "remove", f"new-{protocol}")
        assert not attempt(f"new-{protocol}")
    for attempt in WAYS[protocol](server, "bob"):
        assert attempt("of-user/bob")
        assert [attempt(topic) for topic in ("of-user/ann", "of-ann", "of-lab")] == [False] * 3


def test_percent_c_means_the_client_of_mqtt(server):
    for attempt in mqtt(server, client="c7"):
        assert attempt("of-client/c7")
        assert not attempt("of-client/c8")
    for attempt in amqp(server):
        assert not attempt("of-client/c7")


def test_a_certificate_means_who_proved_its_name_by_one(server, authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert("device7.example", common_name="device7").configure_cert(context)
    for attempt in mqtt(server, tls=context):
        assert attempt("of-device")
        assert attempt("of-user/device7")
        assert not attempt("of-ann")
    server.user("device7", "secret-1")
    for attempt in mqtt(server, "device7"):
        assert not attempt("of-device"), "the name alone is no certificate"


# -- tokens


def oauth(server: Onelog, secret: str) -> Iterator[Try]:
    end = time.time() + 600
    given = {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": lambda _config: (secret, end)}
    return kafka(server, **given)


def asked(
    server: Onelog, listener: str, secret: str, method: str, path: str, body: object = None
) -> tuple[int, object]:
    """The status and body of an answer to who shows a bearer token."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports[listener], timeout=DEADLINE_S)
    try:
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def management(server: Onelog, secret: str) -> Iterator[Try]:
    def publish(topic: str) -> bool:
        body = {
            "properties": {},
            "routing_key": topic.replace("/", "."),
            "payload": "x",
            "payload_encoding": "string",
        }
        path = "/api/exchanges/%2F/amq.topic/publish"
        status, told = asked(server, "amqp_management", secret, "POST", path, body)
        assert (status == 200) or told["reason"].startswith("403 ACCESS_REFUSED"), told
        return status == 200

    yield publish


def admin_api(server: Onelog, secret: str) -> Iterator[Try]:
    def publish(topic: str) -> bool:
        body = {"topic": topic, "text": "x"}
        status, told = asked(server, "admin", secret, "POST", "/api/v1/messages", body)
        assert status in (201, 403), told
        return status == 201

    yield publish


TOKEN_WAYS: dict[str, Callable[[Onelog, str], Iterator[Try]]] = {
    "mqtt": lambda server, secret: mqtt(server, "", secret=secret),
    "mqtt with a name": lambda server, secret: mqtt(server, "tess", secret=secret),
    "amqp": lambda server, secret: amqp(server, "", secret),
    "kafka": oauth,
    "management": management,
    "admin": admin_api,
}


@pytest.mark.parametrize("way", TOKEN_WAYS)
def test_a_claim_means_who_has_it_in_a_token(server, way):
    make(server, "of-writers", "of-user/tess")
    for role, may in (("writer", True), ("reader", False)):
        for attempt in TOKEN_WAYS[way](server, token(role=role, job="operator")):
            assert attempt("of-writers") is may
            assert attempt("of-user/tess")


def test_the_management_api_takes_a_token_for_what_its_owner_may(server):
    def ask(secret: str, method: str, path: str, body: object = None) -> int:
        return asked(server, "amqp_management", secret, method, f"/api{path}", body)[0]

    plain, boss = token(role="writer"), token(job="boss")
    told = asked(server, "amqp_management", plain, "GET", "/api/whoami")
    assert told == (200, {"name": "tess", "tags": ["management"]})
    told = asked(server, "amqp_management", boss, "GET", "/api/whoami")
    assert told == (200, {"name": "tess", "tags": ["administrator"]})
    assert ask(plain, "GET", "/queues") == 401, "there are rules, and none gives it"
    assert ask(boss, "GET", "/queues") == 200
    assert ask(boss, "GET", "/aliveness-test/%2F") == 200
    server.command("acl", "add", "deny", "user:tess", "admin", "server", "--name", "not-tess")
    assert ask(boss, "GET", "/queues") == 401, "deny wins"
    server.command("acl", "remove", "not-tess")
    own = {"password": "long-enough", "tags": ""}
    server.command("acl", "add", "allow", "claim:role=writer", "admin", "server", "--name", "may")
    assert ask(plain, "GET", "/queues") == 200, "a rule about its claim"
    assert ask(plain, "PUT", "/users/tess", own) == 401, "it makes no login that lasts"
    server.command("acl", "remove", "may")
    assert "tess" not in server.command("user", "list")
    assert ask(boss, "PUT", "/users/new-one", own) == 201
    assert ask(boss, "DELETE", "/users/new-one") == 204


@pytest.mark.parametrize("listener", ["amqp_management", "admin"])
def test_a_token_that_does_not_count_is_no_login_and_never_taken_for_none(server, listener):
    path = "/api/whoami" if listener == "amqp_management" else "/api/v1/session"
    expired = {"exp": int(time.time()) - 60}
    for secret in (token(**expired), token(aud="other"), token(iss="them"), "a.b.c", "abc", ""):
        assert asked(server, listener, secret, "GET", path)[0] == 401, secret
