"""Is the address that a client of another node hears one that it can reach?"""

from __future__ import annotations

import pytest

from onelog.broker import address_at
from onelog.config.listeners import Listeners, MqttListener, reached_urls
from tests.support.kafka_nodes import FakeCluster, place


@pytest.mark.parametrize(
    ("bound", "advertised", "told"),
    [
        ("mqtt://10.0.0.2:1883", "", "10.0.0.2:1883"),
        ("mqtt://0.0.0.0:1883", "", None),
        ("mqtt://[::]:1883", "", None),
        ("mqtt://0.0.0.0:1883", "b.example:1884", "b.example:1884"),
    ],
)
def test_a_client_is_sent_to_what_is_advertised_and_never_to_every_address(
    bound: str, advertised: str, told: str | None
) -> None:
    listeners = Listeners(mqtt=MqttListener(advertised=advertised))
    cluster = FakeCluster()
    cluster.places = [place(0), place(1, **reached_urls(listeners, {"mqtt": bound}))]
    assert address_at(cluster, 1, "mqtt") == told
