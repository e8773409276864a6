"""Which test holds which class of error, so that none goes without.

A class was found by somebody outside and is closed by tests of every room it can come from. Who
moves or renames one of them changes this table; who finds a new way in adds a row.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

HELD: dict[str, dict[str, tuple[str, ...]]] = {
    "two connections for one session at once": {
        "tests/unit/test_mqtt_entering.py": (
            "test_the_last_of_several_that_come_at_once_has_the_session",
            "test_a_peer_that_goes_while_it_is_accepted_leaves_its_session_as_it_was",
        ),
    },
    "a read of very many small packets": {
        "tests/unit/test_small_packets.py": (
            "test_a_read_of_many_packets_leaves_the_others_their_turn",
            "test_a_read_of_many_frames_leaves_the_others_their_turn",
        ),
        "tests/unit/test_amqp_small_frames.py": (
            "test_a_read_of_many_frames_leaves_the_others_their_turn",
            "test_frames_that_waited_for_a_method_leave_the_others_their_turn",
            "test_publishes_that_are_staged_among_many_heartbeats_are_confirmed",
        ),
    },
    "more than 128 of something": {
        "tests/contract/test_metadata.py": (
            "test_a_write_takes_any_number_of_operations_in_their_order",
        ),
        "tests/unit/test_amqp_rows.py": (
            "test_a_broker_starts_with_any_number_of_transient_exchanges",
            "test_what_has_many_bindings_is_deleted_and_stays_so",
            "test_a_virtual_host_goes_with_any_number_of_rows",
        ),
        "tests/unit/test_kafka_one_node.py": (
            "test_lists_of_access_lists_may_be_long",
            "test_many_reassignments_are_answered_one_by_one",
        ),
        "tests/unit/test_kafka_opening.py": (
            "test_many_records_that_are_to_blame_are_named_up_to_a_bound",
        ),
        "tests/fuzz/test_targets.py": (
            "test_no_bytes_break_a_connection_its_neighbours_or_the_next_start",
        ),
    },
    "more than 64k of something": {
        "tests/unit/test_kafka_one_node.py": ("test_lists_of_access_lists_may_be_long",),
        "tests/unit/test_kafka_opening.py": (
            "test_many_records_that_are_to_blame_are_named_up_to_a_bound",
        ),
        "tests/unit/test_cursor_session.py": (
            "test_packet_ids_wrap_at_65535_and_pass_over_those_in_flight",
        ),
        "tests/property/test_mqtt_fuzz.py": (
            "test_a_packet_of_one_mib_costs_a_few_times_its_size",
        ),
    },
    "a peer that writes and never reads": {
        "tests/unit/test_net_pace.py": (
            "test_a_peer_that_sends_and_never_reads_costs_bounded_memory",
            "test_a_peer_that_takes_no_bytes_is_cut_off",
        ),
        "tests/unit/test_net_websocket.py": ("test_a_peer_that_pings_and_never_reads_is_cut_off",),
        "tests/unit/test_amqp_unread.py": ("test_who_asks_and_does_not_read_costs_bounded_memory",),
        "tests/unit/test_amqp_pressure.py": ("test_who_does_not_read_costs_bounded_memory",),
        "tests/unit/test_kafka_fetch.py": (
            "test_nothing_new_begins_while_the_consumer_does_not_read",
        ),
        "tests/fault/test_overload.py": (
            "test_promises_hold_while_floods_stalled_readers_and_hoarders_overload_the_broker",
        ),
    },
    "a listener raises": {
        "tests/unit/test_broker_live_isolation.py": (
            "test_a_listener_that_raises_at_a_record_gets_the_next_one_and_nobody_else_notices",
        ),
        "tests/unit/test_listeners.py": (
            "test_every_protocol_hears_of_a_changed_user_though_one_raises",
            "test_every_commit_of_a_batch_is_answered_though_one_answer_raises",
        ),
        "tests/unit/test_visibility.py": (
            "test_a_feed_that_raises_gets_the_next_and_nobody_else_notices",
            "test_a_waiter_that_raises_keeps_nobody_from_being_told_and_the_next_sync_runs",
        ),
        "tests/unit/test_log_alarms.py": (
            "test_a_hook_that_raises_before_a_trim_keeps_the_records_and_stops_nothing",
            "test_a_listener_that_raises_over_changed_streams_keeps_no_change_from_being_whole",
        ),
        "tests/unit/test_broker_publish.py": (
            "test_a_listener_of_ticks_that_raises_keeps_nothing_from_being_written",
            "test_an_answer_that_raises_keeps_no_other_from_its_own",
        ),
        "tests/unit/test_poison_records.py": (
            "test_a_queue_that_raises_costs_no_other_queue_a_message",
        ),
    },
    "an internal stream is damaged": {
        "tests/fault/test_internal_damage.py": (
            "test_a_protocol_does_not_begin_on_state_that_cannot_be_read",
            "test_the_process_serves_what_is_not_affected_and_says_what_is",
            "test_when_cursors_are_not_known_none_begins_anew_and_nothing_they_need_leaves",
            "test_cursors_that_are_repaired_go_on_where_they_were",
            "test_mqtt_clients_hear_that_the_server_is_unavailable",
            "test_amqp_clients_hear_that_it_is_not_served_now",
        ),
        "tests/fault/test_kafka_state_unknown.py": (
            "test_whoever_needs_what_is_not_known_is_told_to_come_later",
            "test_no_request_ends_its_connection_because_state_is_not_known",
            "test_an_open_transaction_is_neither_ended_nor_written_to",
        ),
        "tests/fault/test_kafka_state_clients.py": (
            "test_records_flow_and_a_group_waits_until_the_stream_is_restored",
        ),
    },
    "what was answered is lost in a crash": {
        "tests/simulation/test_simulation.py": ("test_no_crash_takes_back_what_anybody_was_told",),
        "tests/fault/test_kill9.py": (
            "test_every_acknowledged_record_survives_kill_9_once_and_in_order",
        ),
        "tests/fault/test_views_kill9.py": (
            "test_views_of_every_protocol_outlive_kill_9_in_the_middle_of_a_mixed_run",
        ),
        "tests/fault/test_store_soak.py": (
            "test_nothing_is_lost_or_doubled_while_the_store_is_killed_again_and_again",
        ),
    },
    "memory or descriptors grow": {
        "tests/fault/test_overload.py": (
            "test_memory_and_descriptors_stay_flat_while_clients_come_and_go_for_half_an_hour",
        ),
    },
}


@cache
def names_in(file: str) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {row.name for row in ast.parse((ROOT / file).read_text()).body if isinstance(row, kinds)}


@pytest.mark.parametrize("kind", HELD)
def test_each_class_of_error_is_held_by_tests_that_exist(kind):
    gone = [
        f"{file}::{name}"
        for file, names in HELD[kind].items()
        for name in names
        if name not in names_in(file)
    ]
    assert not gone
