"""How long a login counts (KIP-368), and what becomes of a connection that changes its own user."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from kio.index import load_request_schema

from onelog.config import Config
from onelog.config.kafka import Kafka, KafkaLimits
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.kafka_entities import entity
from tests.support.kafka_hub import Client, Desk, desk

K = ApiKey
E = ErrorCode
REAUTH_MS = 60_000


@pytest.fixture
async def here(tmp_path):
    config = Config(kafka=Kafka(limits=KafkaLimits(reauth_ms=REAUTH_MS)))
    async with desk(tmp_path, config) as made:
        for name in ("alice", "bob"):
            await made.hub.authenticator.users.add(name, "secret")
        yield made


async def ask(client: Client, key: ApiKey, version: int, **body: Any) -> Any:
    frame = client.frame(key, version, entity(load_request_schema(int(key), version), body))
    client.send(frame)
    ((_, answer),) = await client.wait_for(1)
    return answer


async def log_in(client: Client, name: str = "alice", password: str = "secret") -> Any:
    await ask(client, K.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    proof = f"\0{name}\0{password}".encode()
    return await ask(client, K.SASL_AUTHENTICATE, 2, auth_bytes=proof)


async def is_served(client: Client) -> bool:
    body = entity(load_request_schema(int(K.METADATA), 1), {"topics": []})
    client.send(client.frame(K.METADATA, 1, body))
    if client.line.closed:
        return False
    await client.wait_for(1)
    return True


def pass_ms(here: Desk, some_ms: int) -> None:
    here.hub.clock.advance(some_ms / 1000)


async def test_a_login_counts_for_as_long_as_it_was_told(here) -> None:
    client = here.client()
    told = await log_in(client)
    assert told.session_lifetime.total_seconds() * 1000 == REAUTH_MS
    pass_ms(here, REAUTH_MS - 1)
    assert await is_served(client)
    pass_ms(here, 1)
    assert not await is_served(client)


async def test_who_logs_in_again_in_time_or_late_goes_on_with_the_same_connection(here) -> None:
    client = here.client()
    for wait_ms in (REAUTH_MS // 2, REAUTH_MS - 1, REAUTH_MS + 5):
        assert (await log_in(client)).error_code is E.none
        assert await is_served(client)
        pass_ms(here, wait_ms)
    assert (await log_in(client)).error_code is E.none  # its time was over, and this is allowed
    assert await is_served(client)


@pytest.mark.parametrize(("name", "password"), [("bob", "secret"), ("alice", "wrong")])
async def test_another_user_or_a_wrong_password_ends_the_connection(here, name, password) -> None:
    client = here.client()
    await log_in(client)
    assert (await log_in(client, name, password)).error_code is E.sasl_authentication_failed
    assert client.line.closed


async def test_who_needs_no_login_needs_none_again(here) -> None:
    client = here.client()
    pass_ms(here, 10 * REAUTH_MS)
    assert await is_served(client)


async def test_without_a_limit_a_login_counts_for_ever(tmp_path) -> None:
    async with desk(tmp_path) as here:
        await here.hub.authenticator.users.add("alice", "secret")
        client = here.client()
        assert (await log_in(client)).session_lifetime.total_seconds() == 0
        pass_ms(here, 1000 * REAUTH_MS)
        assert await is_served(client)


async def test_who_changes_its_own_user_hears_of_it_before_the_connection_ends(here) -> None:
    own, other, admin = here.client(), here.client(), here.client()
    for client, name in ((own, "alice"), (other, "alice"), (admin, "bob")):
        await log_in(client, name)
    salted = hashlib.pbkdf2_hmac("sha256", b"new", b"salt", 4096)
    change = {
        "name": "alice",
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": salted,
    }
    told = await ask(own, K.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[change])
    assert [row.error_code for row in told.results] == [E.none]
    assert own.line.closed
    assert other.line.closed
    assert not admin.line.closed
    wrong = change | {"name": "bob", "iterations": 1}
    told = await ask(admin, K.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[wrong])
    assert [row.error_code for row in told.results] == [E.unacceptable_credential]
    assert await is_served(admin)
