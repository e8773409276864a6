"""Each command and request that may change something is one record in the audit trail."""

from __future__ import annotations

import asyncio
import enum
import json
import re
import types
import typing
from contextlib import asynccontextmanager

import msgspec
import pytest

from onelog.__main__ import _run_offline
from onelog.admin.api.auditing import action_of
from onelog.admin.api.declaring import NOTHING
from onelog.admin.api.logins import LoginSessions
from onelog.admin.api.table import operations
from onelog.app import Server
from onelog.base.clock import ManualClock, SystemClock
from onelog.broker import AuditEvent, AuditTrail, Broker, stream_commands, view_commands
from onelog.broker.audit_reading import AuditChoice, ListAudit, decode_audit_answer, newest
from onelog.broker.audited import READING_VERBS, command_event, is_secret
from onelog.config import load
from onelog.net.control import call
from onelog.protocols.kafka.admin.auditing import AUDITED
from onelog.protocols.kafka.apis import SERVED, ApiKey
from onelog.security import commands as user_commands
from onelog.security import token_commands
from onelog.security.access import commands as access_commands
from onelog.security.roles import AdminRole
from tests.support.admin import admin_api, new_desk
from tests.unit.test_admin_app import server_in

CANARY = "canary-7c1f"


async def events(broker: Broker) -> list[AuditEvent]:
    page = await newest(broker, AuditChoice(), 1000)
    return [row.event for row in reversed(page.rows)]


# -- the admin API


def every_change():
    table = operations(new_desk(), LoginSessions(ManualClock()), ManualClock())
    return [pytest.param(row, id=f"{row.method} {row.path}") for row in table if row.is_audited]


def test_every_operation_that_is_no_get_is_noted_but_login_and_logout():
    table = operations(new_desk(), LoginSessions(ManualClock()), ManualClock())
    left_out = {row.path for row in table if row.method != "GET" and not row.is_audited}
    assert left_out == {"/login", "/logout"}
    assert not [row for row in table if row.method == "GET" and row.is_audited]


def test_actions_have_a_subject_and_a_verb():
    assert action_of("POST", "/users") == "user.create"
    assert action_of("PATCH", "/users/{user}") == "user.change"
    assert action_of("POST", "/cursors/{cursor}/seek") == "cursor.seek"
    assert action_of("DELETE", "/amqp/vhosts/{vhost}/queues/{queue}") == "queue.delete"
    assert action_of("PUT", "/permissions/{vhost}/{user}") == "permission.set"
    for row in every_change():
        operation = row.values[0]
        action = action_of(operation.method, operation.path)
        assert re.fullmatch(r"[a-z_-]+\.[a-z_-]+", action), action


@asynccontextmanager
async def people(path):
    async with admin_api(path) as api:
        users = api.authenticator.users
        await users.add("root", "secret", scram=False, administrator=True)
        await users.add("eve", "secret", scram=False)
        await users.set_role("eve", AdminRole.VIEWER)
        api.trail = await AuditTrail.open(
            api.broker, SystemClock(), age_ms=1_000_000, size_bytes=1_000_000
        )
        yield api
        await api.trail.close()


async def token(api, user: str, role: AdminRole) -> dict[str, str]:
    text, _info = await api.tokens.create("t", role, 60_000, user)
    return {"authorization": f"Bearer {text}"}


def filled(row) -> str:
    return re.sub(r"\{\w+\}", "7", row.path)


def body_of(kind) -> object:
    """A body that fits as far as its types go, with a canary in every text."""
    if kind is NOTHING:
        return None
    made = {}
    for field in msgspec.structs.fields(kind):
        if is_secret(field.name):
            made[field.encode_name] = CANARY
        elif field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
            made[field.encode_name] = example(field.type)
    return made


def example(kind):
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return example(typing.get_args(kind)[0])
    if origin is typing.Literal:
        return typing.get_args(kind)[0]
    if origin in (typing.Union, types.UnionType):
        return example(typing.get_args(kind)[0])
    if origin in (tuple, list):
        return []
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return body_of(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)[1].value
    return {int: 1, bool: True, str: "name7"}.get(kind, CANARY)


@pytest.mark.parametrize("row", every_change())
async def test_a_request_that_may_change_something_is_one_record_also_when_it_is_refused(
    tmp_path, row
):
    async with people(tmp_path) as api:
        admin = await token(api, "root", AdminRole.ADMIN)
        viewer = await token(api, "eve", AdminRole.VIEWER)
        body = body_of(row.body)
        answer = await api.ask(row.method, filled(row), body, headers=admin)
        await api.trail.flush()
        (event,) = await events(api.broker)
        assert event.action == action_of(row.method, row.path)
        assert (event.door, event.actor, event.address) == ("admin", "root", "127.0.0.1")
        assert event.outcome == ("ok" if answer.status_code < 400 else event.outcome)
        assert (event.outcome == "ok") == (answer.status_code < 400), answer.text
        if not row.role.covers(AdminRole.OPERATOR):
            return
        answer = await api.ask(row.method, filled(row), body, headers=viewer)
        assert answer.status_code == 403
        await api.trail.flush()
        (_first, event) = await events(api.broker)
        assert (event.actor, event.outcome) == ("eve", "refused")


async def test_what_a_request_made_is_named_where_the_request_names_nothing(tmp_path):
    async with people(tmp_path) as api:
        admin = await token(api, "root", AdminRole.ADMIN)
        rule = {"effect": "allow", "who": ["user:root"], "actions": ["all"], "resource": "topic:#"}
        made = await api.ask("POST", "/access/rules", rule, headers=admin)
        assert made.status_code == 201
        await api.trail.close()
        (event,) = await events(api.broker)
        assert (event.action, event.resource) == ("rule.create", made.json()["id"])


async def test_secrets_of_a_request_are_in_no_record(tmp_path):
    async with people(tmp_path) as api:
        admin = await token(api, "root", AdminRole.ADMIN)
        made = {"name": "ann", "password": CANARY, "role": "viewer"}
        assert (await api.ask("POST", "/users", made, headers=admin)).status_code == 201
        changed = {"password": CANARY + "2"}
        assert (await api.ask("PATCH", "/users/ann", changed, headers=admin)).status_code == 200
        message = {"topic": "a/b", "text": CANARY, "key": CANARY}
        assert (await api.ask("POST", "/messages", message, headers=admin)).status_code == 201
        new = await api.ask("POST", "/tokens", {"label": "l", "role": "viewer"}, headers=admin)
        await api.trail.close()
        found = await events(api.broker)
        assert [row.action for row in found] == [
            "user.create",
            "user.change",
            "message.create",
            "token.create",
        ]
        assert [row.resource for row in found] == ["ann", "ann", "a/b", "l"]
        assert found[1].detail == {"password": "(not shown)"}  # that it was changed is told
        told = json.dumps([msgspec.to_builtins(row) for row in found])
        assert CANARY not in told
        assert new.json()["token"] not in told


async def test_failed_logins_of_the_admin_api_are_noted_and_reading_without_one_is_not(tmp_path):
    async with people(tmp_path) as api:
        wrong = {"user": "root", "password": CANARY}
        assert (await api.ask("POST", "/login", wrong)).status_code == 401
        bad = {"authorization": "Bearer olt_abc_def"}
        assert (await api.get("/streams", headers=bad)).status_code == 401
        assert (await api.get("/streams")).status_code == 200
        right = {"user": "root", "password": "secret"}
        assert (await api.ask("POST", "/login", right)).status_code == 200
        await api.trail.close()
        found = await events(api.broker)
        assert {(row.action, row.door) for row in found} == {("login.failed", "admin")}
        assert sum(row.count for row in found) == 2
        assert found[0].actor == "root"
        assert CANARY not in repr(found)


async def test_administrators_read_the_trail_by_the_api_and_viewers_do_not(tmp_path):
    async with people(tmp_path) as api:
        admin = await token(api, "root", AdminRole.ADMIN)
        viewer = await token(api, "eve", AdminRole.OPERATOR)
        for name in ("one", "two", "three"):
            made = {"name": name, "password": "p" * 8, "role": "none"}
            await api.ask("POST", "/users", made, headers=admin)
        await api.trail.flush()
        assert (await api.get("/audit", headers=viewer)).status_code == 403
        first = (await api.get("/audit?limit=2", headers=admin)).json()
        assert [row["event"]["resource"] for row in first["items"]] == ["three", "two"]
        more = await api.get(f"/audit?cursor={first['next_cursor']}", headers=admin)
        assert [row["event"]["resource"] for row in more.json()["items"]] == ["one"]
        assert more.json()["next_cursor"] is None
        one = await api.get("/audit?resource=tw&action=user&outcome=ok&door=admin", headers=admin)
        assert len(one.json()["items"]) == 1
        peeked = await api.get("/messages?filter=%24audit/%23", headers=viewer)
        assert peeked.status_code == 403
        peeked = await api.get("/messages?filter=%24audit/%23", headers=admin)
        assert len(peeked.json()["items"]) == 3
        trimmed = await api.ask(
            "POST", "/streams/~audit/partitions/0/trim", {"before": 2}, headers=admin
        )
        assert trimmed.status_code == 400


# -- commands


COMMANDS = (
    user_commands.Command
    | token_commands.TokenCommand
    | view_commands.ViewCommand
    | stream_commands.StreamCommand
    | access_commands.AccessCommand
)


def every_command():
    for kind in typing.get_args(COMMANDS):
        tag = kind.__struct_config__.tag
        yield pytest.param(kind, tag, id=tag)


@asynccontextmanager
async def served(path):
    server: Server = server_in(path, "listeners.admin.port=0")
    ready = asyncio.Event()
    running = asyncio.create_task(server.run(lambda _info: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert ready.is_set(), running.exception()
    try:
        yield server
    finally:
        server.request_stop()
        await asyncio.wait_for(running, 20)


async def listed(path, count: int) -> list[AuditEvent]:
    """All records, when there are so many."""
    last = ListAudit(start=count - 1, wait_ms=5_000)
    await asyncio.to_thread(call, path, msgspec.json.encode(last))
    command = msgspec.json.encode(ListAudit(limit=1000))
    page = decode_audit_answer(await asyncio.to_thread(call, path, command))
    return [row.event for row in reversed(page.rows)]


async def test_every_command_that_changes_something_is_one_record(tmp_path):
    tags = [row.values[1] for row in every_command()]
    assert len(tags) > 15
    expected = []
    async with served(tmp_path):
        for row in every_command():
            kind, tag = row.values
            message = msgspec.json.encode({**body_of(kind), "type": tag})
            await asyncio.to_thread(call, tmp_path, message)
            if tag.partition(".")[2] not in READING_VERBS:
                expected.append(tag)
            found = await listed(tmp_path, len(expected))
            assert [event.action for event in found] == expected, tag
        assert {event.door for event in found} == {"control"}
        assert all(event.actor.startswith("system:") for event in found)
        assert CANARY not in repr(found)
        assert "ok" in {event.outcome for event in found}
        assert "failed" in {event.outcome for event in found}


def test_the_rules_that_a_command_takes_away_are_named():
    event = command_event(b'{"type":"acl.remove","names":["a","b"]}', b"{}", "control", 0)
    assert event is not None
    assert (event.action, event.resource) == ("acl.remove", "a,b")


async def test_commands_on_a_stopped_server_are_noted_when_it_starts(tmp_path):
    made = {"type": "user.add", "name": "ann", "password": CANARY, "administrator": True}
    await asyncio.to_thread(_run_offline, tmp_path, msgspec.json.encode(made))
    await asyncio.to_thread(_run_offline, tmp_path, msgspec.json.encode(made))
    await asyncio.to_thread(_run_offline, tmp_path, b'{"type":"user.list"}')
    for _start in range(2):  # and once only
        async with served(tmp_path):
            found = await listed(tmp_path, 2)
            assert [(row.door, row.action, row.resource) for row in found] == [
                ("offline", "user.add", "ann")
            ] * 2
            assert [row.outcome for row in found] == ["ok", "failed"]
            assert CANARY not in repr(found)


# -- Kafka


def test_every_kafka_api_that_changes_something_beside_messages_is_noted():
    verbs = ("CREATE", "DELETE", "ALTER", "ELECT", "UPDATE")
    changing = {api.key for api in SERVED.values() if any(v in api.key.name for v in verbs)}
    assert set(AUDITED) == changing
    assert AUDITED[ApiKey.CREATE_TOPICS] == "topic.create"
    assert AUDITED[ApiKey.INCREMENTAL_ALTER_CONFIGS] == "config.alter"
    assert AUDITED[ApiKey.OFFSET_DELETE] == "offset.delete"
    assert AUDITED[ApiKey.ALTER_USER_SCRAM_CREDENTIALS] == "user-scram-credential.alter"
    reading = {"DESCRIBE", "LIST", "FETCH", "METADATA", "VERSIONS", "FIND", "LEADER_EPOCH"}
    messaging = {
        "PRODUCE", "OFFSET_COMMIT", "JOIN_GROUP", "HEARTBEAT", "LEAVE_GROUP", "SYNC_GROUP",
        "SASL_HANDSHAKE", "SASL_AUTHENTICATE", "INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN",
        "ADD_OFFSETS_TO_TXN", "END_TXN", "TXN_OFFSET_COMMIT", "LINK", "NAMES", "COLD",
    }  # fmt: skip
    for api in SERVED.values():
        name = api.key.name
        known = name in messaging or any(word in name for word in reading)
        assert known != (api.key in AUDITED), name


def test_the_settings_of_the_trail_are_configured():
    config = load(None, {}, ['audit.retention_age_ms="3d"', 'audit.retention_bytes="5MB"']).config
    assert config.audit.retention_age_ms == 3 * 86_400_000
    assert config.audit.retention_bytes == 5_000_000
