"""The settings with which benchmarks start brokers are settings that a broker takes."""

from __future__ import annotations

import pytest

from bench.listeners import SWITCHED, closed_but
from onelog.config.load import load


@pytest.mark.parametrize("kept", ["mqtt", "kafka", "amqp"])
def test_a_broker_takes_the_settings_that_leave_one_listener_open(kept):
    port = f"listeners.{kept}.port=1"
    loaded = load(None, environ={}, assignments=[port, *closed_but(kept)])
    listeners = getattr(loaded, "config", loaded).listeners
    assert getattr(listeners, kept).enabled
    assert not any(
        getattr(listeners, name).enabled for name in SWITCHED if name not in (kept, "admin")
    )
