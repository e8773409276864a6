"""Kafka logins with real clients: SASL over TCP and TLS, tokens, certificates, what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
import trustme
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tests.conformance.mqtt_brokers import Onelog

KEY = ec.generate_private_key(ec.SECP256R1())
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    folder: Path = tmp_path_factory.mktemp("kafka-login")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    client = authority.issue_cert("device@example.org", common_name="device")
    client.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    public = json.loads(ECAlgorithm.to_jwk(KEY.public_key())) | {"kid": "k"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
    started = Onelog(
        folder,
        "security.anonymous=never",
        "security.tokens.jwks_file=jwks.json",
        "listeners.kafka_tls.enabled=true",
        "listeners.kafka_tls.tls.cert_file=server.pem",
        "listeners.kafka_tls.tls.key_file=server.pem",
        "listeners.kafka_tls.tls.client_ca_file=ca.pem",
        "listeners.kafka_tls.tls.client_cert=optional",
        listeners=("kafka_tls",),
    ).start()
    started.user("alice", "secret-1", "--administrator")
    yield started
    assert started.stop() == 0
    assert not started.errors()


def settings(server: Onelog, *, tls: bool = False, **more: object) -> dict[str, object]:
    name = "kafka_tls" if tls else "kafka"
    rows: dict[str, object] = {
        "bootstrap.servers": f"127.0.0.1:{server.ports[name]}",
        "socket.timeout.ms": 5000,
        "log_level": 0,
    }
    if tls:
        rows["ssl.ca.location"] = str(server.folder / "ca.pem")
    return rows | {key.replace("_", "."): value for key, value in more.items()}


def can_list(config: dict[str, object]) -> bool:
    """Whether a client is let in; it is told soon when it is not, and would try again for ever."""
    refused: list[KafkaError] = []
    client = AdminClient(config | {"error_cb": refused.append})
    deadline = time.monotonic() + 20
    while not refused:
        assert time.monotonic() < deadline, "neither let in nor refused"
        try:
            client.list_topics(timeout=0.2)
        except KafkaException:
            client.poll(0)
        else:
            return True
    return False


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_logs_in_with_every_mechanism(server, mechanism, tls) -> None:
    protocol = "SASL_SSL" if tls else "SASL_PLAINTEXT"
    config = settings(
        server,
        tls=tls,
        security_protocol=protocol,
        sasl_mechanism=mechanism,
        sasl_username="alice",
        sasl_password="secret-1",
    )
    producer = Producer(config)
    producer.produce("logins", mechanism.encode())
    assert producer.flush(10) == 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("bob", "secret-1"), ("", "")])
def test_a_wrong_name_or_password_is_refused(server, mechanism, name, password) -> None:
    config = settings(
        server,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_username=name or "x",
        sasl_password=password or "y",
    )
    assert not can_list(config)


def test_a_user_that_kafka_s_tools_make_logs_in_by_scram_until_they_take_it_away(server) -> None:
    own = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "alice"}
    admin = AdminClient(settings(server, **own, sasl_mechanism="PLAIN", sasl_password="secret-1"))
    mechanism = ScramMechanism.SCRAM_SHA_256
    carol = own | {"sasl_username": "carol", "sasl_password": "new"}
    config = settings(server, **carol, sasl_mechanism="SCRAM-SHA-256")
    assert not can_list(config)
    made = UserScramCredentialUpsertion("carol", ScramCredentialInfo(mechanism, 4096), b"new")
    for change, allowed in ((made, True), (UserScramCredentialDeletion("carol", mechanism), False)):
        (future,) = admin.alter_user_scram_credentials([change]).values()
        assert future.result(10) is None
        assert can_list(config) == allowed
        if allowed:
            (told,) = admin.describe_user_scram_credentials(["carol"]).values()
            (info,) = told.result(10).scram_credential_infos
            assert (info.mechanism, info.iterations) == (mechanism, 4096)
            assert not can_list(settings(server, **carol, sasl_mechanism="PLAIN"))


def test_nobody_comes_in_without_a_login(server) -> None:
    assert not can_list(settings(server))


def test_a_client_certificate_is_a_login(server) -> None:
    where = str(server.folder / "client.pem")
    config = settings(server, tls=True, security_protocol="SSL")
    assert not can_list(config)
    config |= {"ssl.certificate.location": where, "ssl.key.location": where}
    assert can_list(config)


@pytest.mark.parametrize("proof", ["certificate", "token"])
def test_a_login_that_ends_makes_no_login_that_lasts(server, proof) -> None:
    """A certificate or token of `device` is no right to give `device` a password here."""
    if proof == "certificate":
        where = str(server.folder / "client.pem")
        config = settings(server, tls=True, security_protocol="SSL") | {
            "ssl.certificate.location": where,
            "ssl.key.location": where,
        }
    else:
        until = time.time() + 60
        token = jwt.encode({"sub": "device", "exp": until}, KEY, "ES256", headers={"kid": "k"})
        config = settings(
            server, security_protocol="SASL_PLAINTEXT", sasl_mechanisms="OAUTHBEARER"
        ) | {"oauth_cb": lambda _config: (token, until)}
    admin = AdminClient(config)
    admin.list_topics(timeout=20)  # librdkafka asks for a token when it is polled
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    made = UserScramCredentialUpsertion("device", info, b"for ever")
    (future,) = admin.alter_user_scram_credentials([made]).values()
    with pytest.raises(KafkaException) as refused:
        future.result(20)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_a_signed_token_is_a_login_and_is_renewed_on_the_same_connection(server) -> None:
    asked = []

    def fetch(_config: str) -> tuple[str, float]:
        until = time.time() + 3
        asked.append(until)
        token = jwt.encode({"sub": "alice", "exp": int(until)}, KEY, "ES256", headers={"kid": "k"})
        return token, until

    config = settings(server, security_protocol="SASL_PLAINTEXT", sasl_mechanisms="OAUTHBEARER") | {
        "oauth_cb": fetch
    }
    producer = Producer(config)
    deadline = time.monotonic() + 20
    while not asked or time.time() < asked[0] + 0.5:  # the first token has to grow old
        assert time.monotonic() < deadline
        producer.produce("tokens", b"x")
        assert producer.flush(10) == 0
        time.sleep(0.1)
    assert len(asked) >= 2


def test_a_token_of_somebody_else_is_refused(server) -> None:
    other = ec.generate_private_key(ec.SECP256R1())

    def fetch(_config: str) -> tuple[str, float]:
        until = time.time() + 60
        token = jwt.encode({"sub": "alice", "exp": until}, other, "ES256", headers={"kid": "k"})
        return token, until

    config = settings(server, security_protocol="SASL_PLAINTEXT", sasl_mechanisms="OAUTHBEARER") | {
        "oauth_cb": fetch
    }
    assert not can_list(config)
