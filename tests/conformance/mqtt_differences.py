"""Where Mosquitto answers otherwise than we do: the scenario, and what Mosquitto 2.0 does.

Rules: each row is a test that passes on ours and has to fail on Mosquitto. docs/reference/mqtt.md
explains the rows to users.
"""

from __future__ import annotations

DIFFERENCES: dict[str, str] = {
    "test_a_release_of_an_unknown_packet_id_is_answered_with_0x92": "it answers 0x00",
    "test_overlapping_subscriptions_get_one_copy_with_every_identifier": (
        "it takes the QoS of the last subscription, not the highest"
    ),
    "test_a_publish_that_nobody_gets_is_in_the_log_all_the_same": (
        "it keeps nothing that nobody subscribed to, and answers 0x10"
    ),
    "test_an_alias_of_zero_ends_the_connection_with_0x94": "it answers 0x81",
    "test_more_unanswered_publishes_than_the_broker_takes_end_the_connection_with_0x93": (
        "its receive maximum is its in-flight window, 100 here"
    ),
}
