"""Quotas in the store: which one counts, who shares it, and what a change does to connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import LimitExceeded, NotFound, QuotaExceeded
from onelog.metadata.local import LocalStore
from onelog.net import Pauses, Throttled
from onelog.observe import Troubles
from onelog.security.quotas import table
from onelog.security.quotas.entities import Limit, parse_entity
from onelog.security.quotas.seat import QuotaSeat
from onelog.security.quotas.table import ClientQuotas


class Held(Throttled):
    """A connection that notes what happens to it."""

    def __init__(self) -> None:
        self.pauses = Pauses()
        self.told: list[str] = []
        self.freed = asyncio.Event()

    def held_back(self, seconds: float) -> None:
        del seconds
        self.told.append("held")

    def let_on(self) -> None:
        self.told.append("free")
        self.freed.set()

    def patience_spent(self) -> None:
        self.told.append("spent")

    def quotas_changed(self) -> None:
        self.told.append("changed")


class Place(NamedTuple):
    quotas: ClientQuotas
    store: LocalStore
    clock: ManualClock
    troubles: Troubles

    async def set(self, entity: str, **limits: float) -> None:
        await self.quotas.change(parse_entity(entity), limits)

    def seat(self, user: str, client: str = "", listener: str = "mqtt") -> QuotaSeat:
        return self.quotas.join(Held(), "kafka", user, client, listener)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    clock = ManualClock()
    store = await LocalStore.open(tmp_path / "metadata.db", clock)
    troubles = Troubles(clock)
    quotas = ClientQuotas(store, clock, troubles)
    await quotas.open()
    yield Place(quotas, store, clock, troubles)
    await quotas.close()
    await store.close()


ORDER = (
    "user:ann,client:c",
    "user:ann,client",
    "user:ann",
    "user,client:c",
    "user,client",
    "user",
    "client:c",
    "client",
)
"""The quotas that count for the client c of ann, the first one first, as in Kafka."""


async def test_the_most_specific_quota_counts_in_the_order_of_kafka(place: Place) -> None:
    for number, entity in enumerate(ORDER):
        await place.set(entity, requests=number + 1)
    seat = place.seat("ann", "c")
    for number, entity in enumerate(ORDER):
        (bucket,) = seat.buckets[Limit.REQUESTS]
        assert bucket.rate == number + 1, entity
        await place.quotas.remove(entity)
    assert not seat.is_paced


async def test_who_is_not_known_is_bounded_by_no_quota_of_that_part(place: Place) -> None:
    for number, entity in enumerate((*ORDER, "listener", "listener:mqtt")):
        await place.set(entity, queues=number + 1)

    def found(client: str | None, listener: str | None) -> list[tuple[str, int]]:
        rows = place.quotas.counted(Limit.QUEUES, "ann", client, listener)
        return [(entity.text, most) for entity, most in rows]

    assert found("c", "mqtt") == [("user:ann,client:c", 1), ("listener:mqtt", 10)]
    assert found(None, "far") == [("user:ann", 3), ("listener:far", 9)]
    assert found(None, None) == [("user:ann", 3)]
    await place.quotas.remove("user:ann")
    assert found(None, None) == [("user:ann", 6)], "the user's by itself, of all users' quota"
    await place.quotas.remove("user")
    assert found(None, None) == []


async def test_each_limit_is_looked_up_by_itself(place: Place) -> None:
    await place.set("user:ann", publish_bytes=5)
    await place.set("user", publish_bytes=7, requests=9)
    seat = place.seat("ann")
    assert seat.buckets[Limit.PUBLISH_BYTES][0].rate == 5
    assert seat.buckets[Limit.REQUESTS][0].rate == 9


@pytest.mark.parametrize(
    ("entity", "shares"),
    [
        ("user:ann", (True, True, False)),
        ("user", (True, True, False)),
        ("client:c", (True, False, True)),
        ("client", (True, False, True)),
        ("user,client", (True, False, False)),
        ("listener", (True, True, True)),
    ],
)
async def test_those_whom_a_quota_names_share_it(
    place: Place, entity: str, shares: tuple[bool, ...]
) -> None:
    """Another connection of the same client, another client of the user, another user."""
    await place.set(entity, requests=10)
    first = place.seat("ann", "c")
    others = [place.seat("ann", "c"), place.seat("ann", "d"), place.seat("bob", "c")]
    own = first.buckets[Limit.REQUESTS][0]
    found = [row.buckets.get(Limit.REQUESTS, [None])[0] is own for row in others]
    assert tuple(found) == shares


async def test_a_listener_s_quota_counts_beside_the_user_s_and_the_longest_wait_holds(
    place: Place,
) -> None:
    await place.set("user:ann", publish_messages=100)
    await place.set("listener:mqtt", publish_messages=10)
    ann, bob, far = place.seat("ann"), place.seat("bob"), place.seat("bob", listener="mqtt_tls")
    assert ann.publish(10, 0) == 0
    assert bob.publish(1, 0) == pytest.approx(0.1), "the listener's ten are used up"
    assert far.publish(1000, 0) == 0
    assert ann.publish(9, 0) == pytest.approx(1.0)


async def test_a_change_applies_to_open_connections_at_once_and_lets_those_go_that_wait(
    place: Place,
) -> None:
    owner = Held()
    seat = place.quotas.join(owner, "mqtt", "ann", "", "mqtt")
    assert seat.publish(10**9, 10**9) == 0
    await place.set("user:ann", publish_messages=1)
    assert owner.told == ["changed"]
    assert seat.paces_publish
    assert seat.publish(11, 0) == pytest.approx(10.0)
    assert seat.is_held
    assert owner.pauses.reasons
    await place.set("user:ann", publish_messages=1000)
    assert owner.told == ["changed", "held", "free", "changed"]
    assert not owner.pauses.reasons
    assert seat.publish(1000, 0) == 0
    await place.quotas.remove("user:ann")
    assert not seat.is_paced


async def test_another_s_change_leaves_a_full_use_as_it_is(place: Place) -> None:
    await place.set("user:ann", requests=10)
    seat = place.seat("ann")
    assert seat.ask(10) == 0
    await place.set("user:bob", requests=10)
    assert seat.ask(5) == pytest.approx(0.5)


async def test_one_who_takes_nothing_does_not_wait_for_those_who_took_too_much(
    place: Place,
) -> None:
    await place.set("listener", requests=10, publish_messages=10)
    greedy, modest = place.seat("ann"), place.seat("bob")
    assert greedy.ask(1000) > 90
    assert modest.ask(0) == 0
    assert modest.publish(1, 10) == 0
    assert modest.fetch(10) == 0
    assert modest.ask(1) > 90


async def test_a_connection_that_leaves_because_of_a_change_stays_gone(place: Place) -> None:
    await place.set("user", requests=10)
    first, second = place.seat("ann"), place.seat("ann")

    class Leaving(Held):
        def quotas_changed(self) -> None:
            first.leave()
            second.leave()

    third = place.quotas.join(Leaving(), "kafka", "ann", "", "mqtt")
    await place.set("user", requests=20)
    third.leave()
    assert not place.quotas._seats
    assert [bucket.sharers for bucket in place.quotas._buckets.values()] == [0]


async def test_connecting_anew_does_not_fill_a_bucket(place: Place) -> None:
    await place.set("user:ann", requests=10)
    seat = place.seat("ann")
    assert seat.ask(30) == pytest.approx(2.0)
    seat.leave()
    assert place.seat("ann").ask(1) == pytest.approx(2.1)
    place.clock.advance(10)
    assert place.seat("ann").ask(1) == 0


async def test_buckets_of_clients_that_are_gone_are_bounded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "RESTING_MAX", 100)
    await place.set("user", requests=10)
    stays = place.seat("stays")
    for number in range(1_000):
        place.seat(f"user-{number}").leave()
    assert len(place.quotas._buckets) == 101
    assert stays.ask(11) > 0
    stays.leave()
    await place.set("user", requests=20)  # other buckets take the place of the old ones
    for number in range(900, 1_000):
        place.seat(f"user-{number}").leave()
    assert len(place.quotas._buckets) <= 101


async def test_connections_are_counted_from_the_first_whenever_the_quota_comes(
    place: Place,
) -> None:
    seats = [place.seat("ann") for _ in range(3)]
    await place.set("user:ann", connections=3)
    with pytest.raises(QuotaExceeded, match="3 connections at once"):
        place.seat("ann")
    place.seat("bob")
    seats.pop().leave()
    seats.append(place.seat("ann"))
    await place.set("user:ann", connections=1)
    seats.pop().leave()
    with pytest.raises(QuotaExceeded):
        place.seat("ann")  # two are left, and nobody was sent away
    for seat in seats:
        seat.leave()
    place.seat("ann")
    assert place.quotas.refusals[Limit.CONNECTIONS] == 2


async def test_a_client_that_changes_its_name_is_counted_by_the_new_one(place: Place) -> None:
    await place.set("client:b", connections=1)
    first, second = place.seat("ann", "a"), place.seat("ann", "b")
    with pytest.raises(QuotaExceeded):
        first.rename("b")
    first.leave()
    second.rename("c")
    place.seat("ann", "b")


async def test_numbers_are_taken_and_given_back(place: Place) -> None:
    await place.set("user:ann", subscriptions=2)
    one, two = place.seat("ann"), place.seat("ann")
    one.take(Limit.SUBSCRIPTIONS)
    two.take(Limit.SUBSCRIPTIONS)
    with pytest.raises(QuotaExceeded):
        one.take(Limit.SUBSCRIPTIONS)
    two.leave()
    one.take(Limit.SUBSCRIPTIONS)
    one.keep(Limit.SUBSCRIPTIONS, -2)
    assert one.held(Limit.SUBSCRIPTIONS) == 0


async def test_an_address_may_connect_so_often_and_its_own_quota_counts_first(
    place: Place,
) -> None:
    assert all(place.quotas.admits("10.0.0.1") for _ in range(100))
    await place.set("ip", connects=1)
    await place.set("ip:10.0.0.1", connects=3)
    assert [place.quotas.admits("10.0.0.1") for _ in range(4)] == [True] * 3 + [False]
    assert [place.quotas.admits("10.0.0.2") for _ in range(2)] == [True, False]
    assert [place.quotas.admits("2001:db8::1"), place.quotas.admits("2001:db8::2")] == [True, False]
    place.clock.advance(1)
    assert place.quotas.admits("10.0.0.2")


async def test_a_wait_that_is_longer_than_the_patience_of_a_protocol_ends_with_it(
    place: Place,
) -> None:
    await place.set("user:ann", requests=1)
    owner = Held()
    seat = place.quotas.join(owner, "mqtt", "ann", "", "mqtt", patience_s=0.01)
    assert seat.ask(1000) > 900
    async with asyncio.timeout(10):
        await owner.freed.wait()
    assert owner.told == ["held", "spent", "free"]


async def test_a_short_wait_ends_by_itself_and_is_counted(place: Place) -> None:
    await place.set("user:ann", requests=100)
    owner = Held()
    seat = place.quotas.join(owner, "kafka", "ann", "", "kafka")
    assert seat.ask(101) == pytest.approx(0.01)
    async with asyncio.timeout(10):
        await owner.freed.wait()
    assert owner.told == ["held", "free"]
    samples = {(row.name, *row.labels): row.value for row in place.quotas.samples()}
    label = ("protocol", "kafka")
    assert samples["onelog_throttled_total", label] == 1
    assert samples["onelog_throttled_seconds_total", label] >= 0.01


async def test_a_connection_that_is_gone_is_not_woken(place: Place) -> None:
    await place.set("user:ann", requests=100)
    owner = Held()
    seat = place.quotas.join(owner, "kafka", "ann", "", "kafka")
    seat.ask(101)
    seat.leave()
    seat.leave()
    await asyncio.sleep(0.02)
    assert owner.told == ["held"]
    assert seat.ask(10**6) == 0


async def test_limits_are_added_dropped_and_removed_and_survive(place: Place) -> None:
    await place.set("user:ann", requests=5)
    await place.set("user:ann", connections=7)
    (row,) = place.quotas.rows
    assert row.limits == {Limit.REQUESTS: 5, Limit.CONNECTIONS: 7}
    again = ClientQuotas(place.store, place.clock, place.troubles)
    await again.open()
    assert again.rows == place.quotas.rows
    await again.close()
    ann = parse_entity("user:ann")
    assert (await place.quotas.replace(ann, {"queues": 1})).limits == {Limit.QUEUES: 1}
    assert await place.quotas.change(ann, {}, ["queues"]) is None
    assert not place.quotas.rows
    with pytest.raises(NotFound):
        await place.quotas.remove("user:ann")
    assert await place.quotas.change(ann, {}, ["queues"]) is None


async def test_the_number_of_quotas_is_bounded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "QUOTAS_MAX", 2)
    await place.set("user:a", requests=1)
    await place.set("user:b", requests=1)
    with pytest.raises(LimitExceeded):
        await place.set("user:c", requests=1)
    await place.set("user:b", requests=2)


async def test_a_row_that_cannot_be_read_bounds_nobody_and_stands_as_a_trouble(
    place: Place,
) -> None:
    await place.set("user:bob", requests=1)
    row = place.quotas._rows
    await row.put("quotas/user:ann", b"{")
    assert place.quotas.unreadable == ("user:ann",)
    assert [trouble.place for trouble in place.troubles.standing()] == ["user:ann"]
    assert not place.seat("ann").is_paced
    assert place.seat("bob").is_paced
    await place.quotas.remove("user:ann")
    assert not place.troubles.standing()
