"""Failed logins: late answers, then a ban of the address, and both are bounded."""

from __future__ import annotations

import asyncio

import pytest

import onelog.security.bans
from onelog.base.clock import ManualClock
from onelog.base.errors import ConfigError, NotAuthenticated, NotFound
from onelog.security.bans import ADDRESSES_MAX, AddressBanned, Bans, BanSettings

HOST = "192.0.2.1"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bans(clock: ManualClock) -> Bans:
    return Bans(BanSettings(), clock)


def test_each_failure_doubles_the_delay_and_the_tenth_bans(bans: Bans) -> None:
    delays = []
    for _ in range(10):
        assert bans.admits(HOST)
        delays.append(bans.failed(HOST))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0, 4.0, 4.0]
    assert not bans.admits(HOST)
    assert bans.admits("192.0.2.2")


def test_a_ban_is_over_after_its_time_and_begins_with_a_clean_sheet(
    bans: Bans, clock: ManualClock
) -> None:
    for _ in range(10):
        bans.failed(HOST)
    clock.advance(599.9)
    assert not bans.admits(HOST)
    (row,) = bans.rows()
    assert (row.address, row.until_ms - row.since_ms) == (HOST, 600_000)
    clock.advance(0.2)
    assert not bans.rows()
    assert bans.admits(HOST)
    assert bans.failed(HOST) == 0.1


def test_other_settings_count_from_the_next_failure_on_and_a_ban_lasts_as_it_was_said(
    bans: Bans, clock: ManualClock
) -> None:
    for _ in range(3):
        bans.failed(HOST)
    bans.settings = BanSettings(failures=4, ban_s=60.0, delay_s=0.2)
    assert bans.failed(HOST) == 1.6
    (row,) = bans.rows()
    assert row.until_ms - row.since_ms == 60_000
    bans.settings = BanSettings(failures=0, ban_s=3600.0)
    assert not bans.admits(HOST)
    clock.advance(60.1)
    assert bans.admits(HOST)
    assert bans.failed(HOST) == 0.0


def test_failures_that_are_far_apart_never_ban(bans: Bans, clock: ManualClock) -> None:
    for _ in range(1_000):
        assert bans.failed(HOST) <= 0.2
        clock.advance(6.1)
    assert bans.admits(HOST)


def test_an_ipv6_address_counts_by_its_network_and_a_mapped_one_as_ipv4(bans: Bans) -> None:
    for number in range(10):
        bans.failed(f"2001:db8:0:1::{number}")
    assert not bans.admits("2001:db8:0:1:ffff::1")
    assert bans.admits("2001:db8:0:2::1")
    for _ in range(10):
        bans.failed(f"::ffff:{HOST}")
    assert not bans.admits(HOST)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", ""])
def test_this_machine_is_exempt_unless_the_operator_says_otherwise(
    bans: Bans, clock: ManualClock, host: str
) -> None:
    assert {bans.failed(host) for _ in range(100)} == {0.0}
    assert bans.admits(host)
    strict = Bans(BanSettings(exempt=()), clock)
    for _ in range(10):
        strict.failed(host)
    assert strict.admits(host) == (host == "")
    own = Bans(BanSettings(exempt=("192.0.2.0/24",)), clock)
    for _ in range(10):
        own.failed(HOST)
    assert own.admits(HOST)


def test_no_failures_means_no_bans_and_no_delays(clock: ManualClock) -> None:
    bans = Bans(BanSettings(failures=0), clock)
    assert {bans.failed(HOST) for _ in range(100)} == {0.0}
    assert bans.admits(HOST)


def test_a_network_that_is_none_is_an_error_of_the_configuration(clock: ManualClock) -> None:
    with pytest.raises(ConfigError, match=r"security\.bans\.exempt"):
        Bans(BanSettings(exempt=("10.0.0.1/8",)), clock)


def test_65_537_addresses_that_fail_are_bounded_and_the_oldest_is_forgotten(bans: Bans) -> None:
    hosts = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(65_537)]
    for host in hosts:
        assert bans.failed(host) == 0.1
    assert len(bans._failing) == ADDRESSES_MAX == 65_536
    assert bans.failed(hosts[0]) == 0.1, "it was forgotten"
    assert bans.failed(hosts[-1]) == 0.2


def test_bans_are_bounded_and_the_oldest_is_lifted(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onelog.security.bans, "ADDRESSES_MAX", 100)
    bans = Bans(BanSettings(failures=1), clock)
    for number in range(101):
        bans.failed(f"10.0.0.{number}")
    assert len(bans) == len(bans.rows()) == 100
    assert not bans._failing
    assert bans.admits("10.0.0.0")
    assert not bans.admits("10.0.0.100")


def test_a_ban_is_lifted_by_its_address_or_by_one_in_its_network(bans: Bans) -> None:
    for _ in range(10):
        bans.failed(HOST)
        bans.failed("2001:db8::1")
    assert [row.address for row in bans.rows()] == [HOST, "2001:db8::/64"]
    bans.lift(HOST)
    assert bans.admits(HOST)
    bans.lift("2001:db8::/64")
    assert bans.admits("2001:db8::1")
    for address in (HOST, "nonsense", ""):
        with pytest.raises(NotFound):
            bans.lift(address)


async def test_a_guard_counts_what_fails_and_asks_nothing_of_the_banned(
    clock: ManualClock,
) -> None:
    bans = Bans(BanSettings(delay_s=0.0), clock)
    asked = 0

    async def wrong() -> str:
        nonlocal asked
        asked += 1
        raise NotAuthenticated("wrong")

    async def right() -> str:
        return "ann"

    assert await bans.guard(HOST, right) == "ann"
    for _ in range(10):
        with pytest.raises(NotAuthenticated, match="wrong"):
            await bans.guard(HOST, wrong)
    for check in (wrong, right):
        with pytest.raises(AddressBanned, match="onelog ban lift"):
            await bans.guard(HOST, check)
    assert asked == 10
    names = {row.name: row.value for row in bans.samples()}
    assert names == {"onelog_bans": 1, "onelog_bans_total": 1, "onelog_logins_failed_total": 10}


async def test_a_failed_login_is_answered_after_its_delay(clock: ManualClock) -> None:
    bans = Bans(BanSettings(delay_s=0.02), clock)
    loop = asyncio.get_running_loop()

    async def wrong() -> None:
        raise NotAuthenticated("wrong")

    began = loop.time()
    with pytest.raises(NotAuthenticated):
        await bans.guard(HOST, wrong)
    assert loop.time() - began >= 0.019
