"""The audit trail: what is written, what is gathered, and what a full disk does to it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import NotAuthenticated, NotAuthorized, StorageError
from onelog.broker import (
    AUDIT_FILTER,
    AUDIT_STREAM,
    LOCAL,
    Action,
    AuditEvent,
    AuditTrail,
    Broker,
    Message,
    Principal,
    gathering,
    login_failed,
)
from onelog.broker.audit import AUDIT_TROUBLE, WAITING_MAX
from onelog.broker.audit_event import TEXT_CHARS_MAX, decode_event, encode_event
from onelog.broker.audit_reading import AuditChoice, behind, newest
from onelog.broker.audited import shown_fields
from onelog.broker.gathering import WINDOWS_MAX
from tests.support.access import rule
from tests.support.brokers import history, running

AGE_MS, SIZE = 1_000_000, 1_000_000


async def opened(broker: Broker) -> AuditTrail:
    return await AuditTrail.open(broker, SystemClock(), age_ms=AGE_MS, size_bytes=SIZE)


async def events(broker: Broker) -> list[AuditEvent]:
    """Everything in the trail, the oldest first."""
    page = await newest(broker, AuditChoice(), 1000)
    return [row.event for row in reversed(page.rows)]


def done(action: str = "user.add", **fields: object) -> AuditEvent:
    return AuditEvent(door="control", actor="root", action=action, **fields)


def refused(number: int, address: str = "10.0.0.1") -> AuditEvent:
    return login_failed("mqtt", address, f"user{number}", NotAuthenticated("no"))


async def test_an_event_is_one_record_of_its_own_topic(tmp_path):
    async with running(tmp_path) as broker:
        trail = await opened(broker)
        trail.write(done("user.add", resource="ann"))
        trail.write(done("stream.delete", resource="s"))
        await trail.flush()
        found = await events(broker)
        assert [(row.action, row.resource) for row in found] == [
            ("user.add", "ann"),
            ("stream.delete", "s"),
        ]
        assert all(row.time_ms > 0 for row in found)
        values = await history(broker, "$audit/user/add")
        (text,) = values
        assert decode_event(text.partition("=")[2].encode()).resource == "ann"
        assert len(await history(broker, AUDIT_FILTER)) == 2
        assert await history(broker, "#") == []
        await trail.close()


async def test_the_trail_outlives_a_restart_and_takes_another_retention(tmp_path):
    async with running(tmp_path) as broker:
        trail = await opened(broker)
        trail.write(done())
        await trail.close()
    async with running(tmp_path) as broker:
        trail = await AuditTrail.open(broker, SystemClock(), age_ms=5, size_bytes=7)
        kept = broker.streams.get(AUDIT_STREAM).config.retention
        assert (kept.age_ms, kept.bytes, kept.pin_bytes_max) == (5, 7, 0)
        assert len(await events(broker)) == 1
        await trail.close()


async def test_a_flood_of_failed_logins_is_a_first_record_and_one_count(tmp_path):
    async with running(tmp_path) as broker:
        trail = await opened(broker)
        for number in range(100_000):
            trail.write(refused(number))
        await trail.flush()
        (first,) = await events(broker)
        assert (first.count, first.actor, first.outcome) == (1, "user0", "refused")
        await trail.close()
        last = (await events(broker))[-1]
        assert last.count == 99_999
        assert last.actor == ""
        assert last.detail["actors"][0] == "user1"
        assert len(await events(broker)) == 2
        assert trail.failed_logins == 100_000


async def test_a_flood_from_many_addresses_is_bounded_and_counts_everybody(tmp_path):
    async with running(tmp_path) as broker:
        trail = await opened(broker)
        for number in range(100_000):
            trail.write(refused(0, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"))
            if not number % 500:
                await trail.flush()
        await trail.close()
        found = await events(broker)
        assert len(found) <= 2 * (WINDOWS_MAX + 1)
        assert sum(row.count for row in found) == 100_000
        assert not trail.lost


async def test_a_window_ends_by_itself_and_the_next_failure_is_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "WINDOW_S", 0.05)
    async with running(tmp_path) as broker:
        trail = await opened(broker)
        for number in range(3):
            trail.write(refused(number))
        page = await behind(broker, AuditChoice(), 0, 5_000)
        page = await behind(broker, AuditChoice(), page.next, 5_000)
        assert [row.event.count for row in page.rows] == [2]
        trail.write(refused(9))
        page = await behind(broker, AuditChoice(), page.next, 5_000)
        assert [(row.event.count, row.event.actor) for row in page.rows] == [(1, "user9")]
        await trail.close()


async def test_changes_that_were_carried_out_are_never_gathered(tmp_path):
    async with running(tmp_path) as broker:
        trail = await opened(broker)
        for _ in range(50):
            trail.write(done(resource="same"))
        await trail.close()
        assert len(await events(broker)) == 50


async def test_a_trail_that_cannot_be_written_is_a_trouble_and_is_written_later(
    tmp_path, monkeypatch
):
    async with running(tmp_path) as broker:
        trail = await opened(broker)
        partition = broker.streams.get(AUDIT_STREAM).partitions[0]
        real = type(partition).append_built

        def full(it, *arguments):
            if it is partition:
                raise StorageError("the disk is full")
            return real(it, *arguments)

        monkeypatch.setattr(type(partition), "append_built", full)
        trail.write(done(resource="ann"))  # does not raise
        await asyncio.sleep(0)
        await trail.flush()
        (trouble,) = broker.troubles.standing()
        assert (trouble.kind, trouble.place, trouble.blocks) == (AUDIT_TROUBLE, AUDIT_STREAM, False)
        for number in range(WAITING_MAX + 5):
            trail.write(done(resource=str(number)))
        assert trail.lost == 6
        monkeypatch.setattr(type(partition), "append_built", real)
        await trail.flush()
        assert broker.troubles.standing() == []
        assert (await newest(broker, AuditChoice(resource="ann"), 5)).rows
        assert trail.written == WAITING_MAX
        await trail.close()


def test_an_event_is_bounded_whatever_a_peer_chose():
    event = done(
        resource="x" * 10_000,
        reason="half a character \ud800",
        detail={str(number): ["y" * 10_000] * 1_000 for number in range(100)},
    )
    data = encode_event(event)
    found = decode_event(data)
    assert len(found.resource) == TEXT_CHARS_MAX + 1
    assert len(found.detail) == 32
    assert len(data) < 400_000
    assert msgspec.json.decode(data)["reason"].startswith("half a character")


def test_fields_that_may_be_secret_are_not_shown():
    fields = {
        "name": "ann",
        "password": "canary",
        "new_secret": "canary",
        "token": "canary",
        "text": "canary",
        "base64": "canary",
        "key": "canary",
        "settings": {"partitions": 3, "client_secret": "canary"},
        "options": {"azure_storage_account_key": "canary", "google_service_account": "canary"},
        "headers": [{"name": "x", "value": "canary"}],
        "groups": ["a", "b"],
    }
    found = shown_fields(fields)
    assert found == {
        "name": "ann",
        "password": "(not shown)",
        "settings.partitions": 3,
        "groups": ["a", "b"],
    }
    assert shown_fields({"password": None, "role": "viewer"}) == {"role": "viewer"}


@pytest.mark.parametrize("principal", [LOCAL, Principal("ann", "mqtt")])
async def test_nobody_publishes_into_the_trail(tmp_path, principal):
    async with running(tmp_path) as broker:
        trail = await opened(broker)
        with pytest.raises(NotAuthorized):
            await broker.publish(Message("$audit/user/add", b"forged"), principal=principal)
        assert broker.publisher.route("$audit/user/add", principal) is None
        with pytest.raises(NotAuthorized):
            await broker.streams.delete(AUDIT_STREAM)
        assert await events(broker) == []
        await trail.close()


async def test_without_rules_administrators_alone_read_the_trail_and_with_rules_the_rules_say(
    tmp_path,
):
    async with running(tmp_path) as broker:
        access = broker.access
        access.is_administrator = lambda name: name == "root"
        ann, root = Principal("ann", "mqtt"), Principal("root", "mqtt")

        def may(who: Principal, action: Action) -> bool:
            return access.allows(who, action, AUDIT_FILTER)

        assert access.allows(ann, Action.SUBSCRIBE, "a/b")
        assert access.allows(ann, Action.SUBSCRIBE, "$auditor/x")
        assert not may(ann, Action.SUBSCRIBE)
        assert may(root, Action.SUBSCRIBE)
        assert may(LOCAL, Action.SUBSCRIBE)
        await access.add(rule("allow user:ann subscribe topic:$audit/#"))
        assert may(ann, Action.SUBSCRIBE)
        assert not may(root, Action.SUBSCRIBE)
        await access.add(rule("allow everyone all topic:#"))
        for action in (Action.PUBLISH, Action.CREATE, Action.DELETE, Action.CONFIGURE):
            assert not may(root, action)
            assert not access.explain(root, action, AUDIT_FILTER).allowed


async def test_records_are_found_by_choice_page_by_page(tmp_path):
    async with running(tmp_path) as broker:
        trail = await opened(broker)
        for number in range(1_200):
            who = "ann" if number % 100 else "bob"
            trail.write(
                AuditEvent(door="admin", actor=who, action="user.add", resource=str(number))
            )
            if not number % 300:
                await trail.flush()
        await trail.flush()
        choice = AuditChoice(actor="bob", action="user")
        page = await newest(broker, choice, 5)
        assert [row.event.resource for row in page.rows] == ["1100", "1000", "900", "800", "700"]
        page = await newest(broker, choice, 50, page.next)
        assert [row.event.resource for row in page.rows][-1] == "0"
        assert page.next is None
        assert not (await newest(broker, AuditChoice(action="use"), 5)).rows
        assert not (await newest(broker, AuditChoice(since_ms=2**61), 5)).rows
        await trail.close()
