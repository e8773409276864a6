"""Limits of connections, on a clock that the test moves."""

from __future__ import annotations

from onelog.base.clock import ManualClock
from onelog.net import Gate, GateLimits


def gate(clock: ManualClock | None = None, **limits: int) -> Gate:
    return Gate(GateLimits(**limits), clock or ManualClock())


def test_without_limits_everybody_comes_in():
    free = gate()
    assert all(free.enter() for _ in range(1000))
    assert free.take_host("192.0.2.1") == ""
    assert (free.open, free.accepted) == (1000, 1000)


def test_the_total_holds_until_somebody_leaves():
    small = gate(total_max=2)
    assert [small.enter() for _ in range(3)] == [True, True, False]
    assert (small.open, small.refused_total) == (2, 1)
    small.leave()
    assert small.enter()


def test_a_host_has_its_own_limit_and_others_are_not_touched():
    small = gate(per_host_max=1)
    key = small.take_host("192.0.2.1")
    assert key
    assert small.take_host("192.0.2.1") is None
    assert small.take_host("192.0.2.2")
    assert small.refused_host == 1
    small.enter()
    small.leave(key)
    assert small.take_host("192.0.2.1")


def test_an_ipv6_host_is_its_network_of_64_bits():
    small = gate(per_host_max=1)
    assert small.take_host("2001:db8::1")
    assert small.take_host("2001:db8::ffff:1%eth0") is None
    assert small.take_host("2001:db8:0:1::1")


def test_an_ipv4_address_written_as_ipv6_is_the_same_host():
    small = gate(per_host_max=1)
    assert small.take_host("192.0.2.1")
    assert small.take_host("::ffff:192.0.2.1") is None


def test_the_rate_is_a_bucket_that_fills_with_time():
    clock = ManualClock()
    slow = gate(clock, per_second_max=10)
    assert sum(slow.enter() for _ in range(30)) == 10
    assert slow.refused_rate == 20
    clock.advance(0.25)
    assert sum(slow.enter() for _ in range(30)) == 2
    clock.advance(60)
    assert sum(slow.enter() for _ in range(30)) == 10


def test_a_wall_clock_that_jumps_gives_no_tokens():
    clock = ManualClock()
    slow = gate(clock, per_second_max=1)
    assert slow.enter()
    clock.set_wall_ms(clock.now_ms() + 3_600_000)
    assert not slow.enter()


def test_metrics_tell_who_was_refused_and_why():
    small = gate(total_max=1, per_host_max=1)
    small.enter()
    small.enter()
    small.take_host("192.0.2.1")
    small.take_host("192.0.2.1")
    values = {(item.name, item.labels[-1][1]): item.value for item in small.samples("mqtt")}
    assert values["onelog_connections", "mqtt"] == 1
    assert values["onelog_connections_refused_total", "total"] == 1
    assert values["onelog_connections_refused_total", "host"] == 1
    assert values["onelog_connections_refused_total", "rate"] == 0
