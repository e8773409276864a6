"""Where Mosquitto answers otherwise than we do: the scenario, and what Mosquitto 2.0 does.

Rules: each row is a test that passes on ours and has to fail on Mosquitto. docs/reference/mqtt.md
explains the rows to users.
"""

from __future__ import annotations

_BAD_BYTES = "test_bad_bytes_are_answered_with_the_code_that_the_specification_names"

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
    "test_what_an_earlier_connection_left_unreleased_does_not_count": (
        "it counts it, and closes the connection"
    ),
    "test_the_old_connection_of_version_5_is_told_0x8e": "it closes the old connection untold",
    "test_messages_of_qos_0_are_kept_for_an_absent_client_too": (
        "it drops them, unless queue_qos0_messages is set"
    ),
    "test_a_client_that_falls_silent_is_told_0x8d": "it closes the connection untold",
    "test_a_will_waits_no_longer_than_its_session_lives": (
        "it waits for the whole delay, although the session is gone"
    ),
    "test_a_clean_start_ends_the_session_and_so_the_delay_of_its_will": (
        "it drops the will of the session that ends"
    ),
    "test_a_takeover_fires_the_will_of_the_old_connection": "it drops the will",
    "test_a_second_connect_ends_the_connection": "it closes the connection untold",
    f"{_BAD_BYTES}[length of five bytes]": "it closes the connection untold",
    f"{_BAD_BYTES}[property twice]": "it closes the connection untold",
    f"{_BAD_BYTES}[auth without a method]": "it closes the connection untold",
    "test_no_local_on_a_shared_subscription_is_a_protocol_error": "it allows it",
    "test_payload_that_is_not_the_text_it_claims_to_be_is_refused_with_0x99": (
        "it does not look at payloads"
    ),
}
