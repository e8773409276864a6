"""Attempts of an address that is banned, on connections that it still has: no door notes them."""

from __future__ import annotations

import asyncio

import pytest
from kio.index import load_request_schema

from onelog.base.clock import SystemClock
from onelog.broker import AuditEvent
from onelog.protocols.kafka.apis import ApiKey
from onelog.security.authenticator import Authenticator
from onelog.security.bans import Bans, BanSettings
from tests.conformance.amqp_raw import Raw, Refused
from tests.support import amqp, kafka_hub
from tests.support.admin import admin_api


class Noted:
    """An audit trail in memory."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def write(self, event: AuditEvent) -> None:
        self.events.append(event)


def strict(authenticator: Authenticator) -> None:
    """Two failures ban an address, this machine's too; nobody waits for answers."""
    authenticator.bans = Bans(BanSettings(failures=2, delay_s=0.0, exempt=()), SystemClock())


def attempt(port: int) -> None:
    with Raw(port) as raw:
        raw.open(user="ann", password="wrong")


async def test_attempts_of_a_banned_address_are_not_noted_by_amqp(tmp_path):
    async with amqp.serving(tmp_path) as node:
        noted = node.broker.audit = Noted()
        strict(node.hub.authenticator)
        for _ in range(4):  # over connections that stood before the ban, as far as AMQP knows
            with pytest.raises(Refused):
                await asyncio.to_thread(attempt, node.port)
        assert [row.action for row in noted.events] == ["login.failed"] * 2


async def test_attempts_of_a_banned_address_are_not_noted_by_kafka(tmp_path):
    async with kafka_hub.desk(tmp_path) as node:
        noted = node.broker.audit = Noted()
        strict(node.hub.authenticator)
        for _ in range(4):
            client = node.client()
            client.connection.identity = None
            shake = load_request_schema(17, 1)(mechanism="PLAIN")
            client.send(client.frame(ApiKey.SASL_HANDSHAKE, 1, shake))
            await client.wait_for(1)
            proof = load_request_schema(36, 1)(auth_bytes=b"\0ann\0wrong")
            client.send(client.frame(ApiKey.SASL_AUTHENTICATE, 1, proof))
            await client.wait_for(1)
        assert [row.actor for row in noted.events] == ["ann", "ann"]
        client = node.client()
        client.connection.identity = None
        client.send(client.produce(kafka_hub.batch(b"x")))
        assert client.line.is_closing()
        assert len(noted.events) == 2


async def test_attempts_of_a_banned_address_are_not_noted_by_http(tmp_path):
    async with admin_api(tmp_path) as api:
        await api.authenticator.users.add("root", "secret", scram=False, administrator=True)
        noted = api.broker.audit = Noted()
        strict(api.authenticator)
        wrong = {"user": "root", "password": "wrong"}
        bad = {"authorization": "Bearer olt_abc_def"}
        assert (await api.ask("POST", "/login", wrong)).status_code == 401
        assert (await api.get("/streams", headers=bad)).status_code == 401
        for _ in range(2):
            assert (await api.ask("POST", "/login", wrong)).status_code == 429
            assert (await api.get("/streams", headers=bad)).status_code == 429
            asked = await api.ask("POST", "/streams", {}, headers={"origin": "http://evil.example"})
            assert asked.status_code == 403
        assert [row.actor for row in noted.events] == ["root", ""]


async def test_attempts_of_a_banned_address_are_not_noted_by_the_management_api(tmp_path):
    async with amqp.serving(tmp_path) as node:
        noted = node.broker.audit = Noted()
        strict(node.hub.authenticator)
        async with amqp.management(node) as client:
            for _ in range(4):
                answer = await client.get("/api/overview", auth=("ann", "wrong"))
                assert answer.status_code == 401
        assert [row.actor for row in noted.events] == ["ann", "ann"]
