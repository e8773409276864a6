"""MQTT logins by a signed token in place of a password, and their end."""

from __future__ import annotations

import contextlib

import pytest

from onelog.protocols.mqtt import connecting
from onelog.protocols.mqtt.packets import Connack, Connect, Disconnect
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.security.authenticator import Authenticator, SecuritySettings
from onelog.security.tokens import TokenSettings
from tests.support.mqtt import Client, dial, serving
from tests.support.oidc import provider


@contextlib.asynccontextmanager
async def taking_tokens(node, found):
    tokens = TokenSettings(jwks_url=f"{found.url}/keys", issuer=found.url, audience="broker")
    settings = SecuritySettings(anonymous="never", tokens=tokens)
    hub = node.hub
    made = await Authenticator.open(node.broker.store, hub.clock, settings, node.broker.troubles)
    before, hub.authenticator = hub.authenticator, made
    try:
        yield
    finally:
        hub.authenticator = before
        await made.close()


async def log_in(node, token: str, username: str | None) -> tuple[Client, Connack]:
    client = Client(*await dial(node.port), 5)
    await client.send(
        Connect(client_id="c", version=5, clean_start=True, username=username,
                password=token.encode())
    )  # fmt: skip
    return client, await client.receive(Connack)


@pytest.mark.parametrize("username", ["anything", None])
async def test_a_token_as_the_password_says_who_it_is(tmp_path, username):
    with provider() as found:
        async with serving(tmp_path) as node, taking_tokens(node, found):
            client, connack = await log_in(node, found.token(), username)
            assert connack.reason is ReasonCode.SUCCESS
            (connection,) = node.hub.connections
            assert connection.principal.name == "alice"
            await client.disconnect()


async def test_a_token_that_does_not_count_is_refused(tmp_path):
    with provider() as found:
        async with serving(tmp_path) as node, taking_tokens(node, found):
            _client, connack = await log_in(node, found.token(aud="other"), "alice")
            assert connack.reason is ReasonCode.BAD_USER_NAME_OR_PASSWORD


async def test_the_connection_ends_when_its_token_has_expired(tmp_path, monkeypatch):
    monkeypatch.setattr(connecting, "_TOKEN_LOOK_S", 0.05)
    with provider() as found:
        async with serving(tmp_path) as node, taking_tokens(node, found):
            expires = node.hub.clock.now_ms() // 1000 + 1
            client, connack = await log_in(node, found.token(exp=expires), "alice")
            assert connack.reason is ReasonCode.SUCCESS
            ended = await client.receive(Disconnect)
            assert ended.reason is ReasonCode.NOT_AUTHORIZED
