"""A topic that only cold bytes know: the loop goes on while they come."""

from __future__ import annotations

import asyncio

import pytest

from onelog.broker import LOCAL, Message
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.cold import make_cold
from tests.support.kafka_admin import desk

E = ErrorCode


@pytest.mark.parametrize(
    ("name", "code"),
    [("sensors.1.t", E.topic_already_exists), ("sensors.9.t", E.none)],
    ids=["has records", "has none"],
)
async def test_a_topic_of_cold_records_is_looked_for_without_holding_the_loop(
    tmp_path, monkeypatch, name, code
):
    engines = make_cold(monkeypatch)
    async with desk(tmp_path) as admin:
        for number in range(5):
            await admin.broker.publish(Message(f"sensors/{number}/t", b"x"), principal=LOCAL)
        (engine,) = engines
        engine.gate.clear()
        asked = asyncio.create_task(admin.create(name))
        done, _waiting = await asyncio.wait([asked], timeout=0.2)
        assert not done, "it waits for a courier"
        engine.gate.set()
        assert (await asked).error_code is code
        assert engine.in_loop == []
