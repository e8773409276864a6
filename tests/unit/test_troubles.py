"""Troubles: what was isolated is counted, told, bounded, and never raises itself."""

from __future__ import annotations

from onelog.base.clock import ManualClock
from onelog.observe import Troubles
from onelog.observe.troubles import FACT_CHARS_MAX, FACTS_MAX, LOG_EVERY_S, PLACES_MAX
from tests.support.admin import new_desk
from tests.unit.test_admin import get


class Untellable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_incident_is_counted_and_logged_at_most_once_in_a_while(capsys):
    clock = ManualClock()
    troubles = Troubles(clock)
    for _ in range(100):
        troubles.note("live-listener", "main/3", ValueError("poison"), offset=7)
    clock.advance(LOG_EVERY_S)
    troubles.note("live-listener", "main/3", ValueError("poison"), offset=8)
    assert troubles.count("live-listener") == 101
    assert troubles.problem() is None, "an incident that is over keeps nobody from being ready"
    told = capsys.readouterr()
    assert (told.out + told.err).count("isolated a failure") == 2


def test_a_standing_trouble_blocks_readiness_until_it_is_cleared():
    troubles = Troubles(ManualClock())
    troubles.stand("disk-full", "/data", "no room", blocks=True)
    troubles.stand("protocol", "amqp", "kept out", blocks=False)
    assert troubles.problem() == "disk-full at /data: no room"
    troubles.clear("disk-full", "/data")
    troubles.clear("disk-full", "/data")
    assert troubles.problem() is None
    assert [row.place for row in troubles.standing()] == ["amqp"]


def test_what_is_kept_is_bounded_whatever_happens_where():
    troubles = Troubles(ManualClock())
    for number in range(65_537):
        troubles.note("waiter", f"s{number}/0", Untellable())
    assert len(troubles.rows()) <= PLACES_MAX + 1
    assert troubles.count("waiter") == 65_537


async def test_health_lists_troubles_and_says_degraded():
    troubles = Troubles(ManualClock())
    desk = new_desk(troubles=troubles)
    assert (await get(desk, "/health")).json()["status"] == "ok"
    troubles.note("live-listener", "main/3", ValueError("poison"))
    answer = await get(desk, "/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"
    (row,) = answer.json()["troubles"]
    assert (row["kind"], row["place"], row["count"]) == ("live-listener", "main/3", 1)
    assert "poison" in row["error"]


async def test_health_shows_topic_partition_and_offset_of_the_last_incident():
    troubles = Troubles(ManualClock())
    desk = new_desk(troubles=troubles)
    troubles.note("live-listener", "mqtt main/3", ValueError("poison"), offset=7, topic="a/b")
    troubles.note("live-listener", "mqtt main/3", ValueError("poison"), offset=9, topic="a/c")
    (row,) = (await get(desk, "/health")).json()["troubles"]
    assert row["place"] == "mqtt main/3"
    assert row["facts"] == {"offset": 9, "topic": "a/c"}


def test_facts_are_bounded_whatever_a_peer_chose():
    troubles = Troubles(ManualClock())
    many = {f"fact{number}": Untellable() for number in range(20)}
    troubles.note("live-listener", "main/3", ValueError("x"), topic="t" * 65_535, none=None, **many)
    (row,) = troubles.rows()
    assert row.facts["topic"] == "t" * FACT_CHARS_MAX
    assert len(row.facts) == FACTS_MAX
    assert "none" not in row.facts
