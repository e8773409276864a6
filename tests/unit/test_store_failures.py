"""Which test proves what each failure of an object store does? One row for each failure and place.

Rules: a row names tests that exist. Whoever takes one away finds another proof for its row.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
TIER, LAKE, OBJECT = "tier", "lakehouse", "object"
ROWS: dict[tuple[str, str], tuple[str, ...]] = {
    ("away", TIER): (
        "fault/test_tier_store.py::test_a_store_that_is_away_stops_nothing_here",
        "unit/test_tiering.py::test_a_store_that_is_away_is_asked_again_later_and_nothing_is_lost",
        "cross/test_tier.py::test_readers_wait_for_a_bucket_that_is_away_and_then_have_everything"
        "_once",
    ),
    ("away", LAKE): (
        "fault/test_lakehouse_s3.py::test_a_bucket_that_was_away_gets_each_record_once",
    ),
    ("away", OBJECT): (
        "fault/test_object_engine_faults.py::test_a_store_that_is_away_holds_answers_back_then"
        "_refuses_and_then_goes_on",
        "unit/test_object_watching.py::test_a_store_that_stays_away_blocks_readiness_until_it_is"
        "_back",
    ),
    ("slow", TIER): (
        "fault/test_tier_store.py::test_a_store_that_is_slow_gets_everything_and_holds_up_nobody"
        "_here",
        "fault/test_object_store_faults.py::test_a_store_that_hangs_is_away_within_the_deadline",
    ),
    ("killed at a step", TIER): (
        "fault/test_store_kills.py::test_a_tier_loses_nothing_when_the_store_is_killed_at_a_step",
        "fault/test_store_kills.py::test_a_broker_that_is_killed_at_a_step_finds_everything_in_the"
        "_bucket",
    ),
    ("killed at a step", LAKE): (
        "fault/test_store_kills.py::test_a_table_has_each_row_once_when_the_store_is_killed_at_a"
        "_step",
        "fault/test_store_kills.py::test_a_broker_that_is_killed_leaves_each_row_once_in_the_bucket",
        "fault/test_store_kills.py::test_a_lake_process_that_is_killed_leaves_each_row_once_in_the"
        "_bucket",
    ),
    ("killed at a step", OBJECT): (
        "fault/test_object_engine_faults.py::test_what_was_answered_survives_a_kill_at_every_step",
        "fault/test_object_engine_faults.py::test_what_was_answered_survives_a_kill_of_the_store_at"
        "_every_step",
    ),
    ("throttled", TIER): (
        "unit/test_couriers.py::test_couriers_halve_when_the_store_throttles_and_grow_again",
    ),
    ("throttled", LAKE): (
        "fault/test_lakehouse_s3.py::test_answers_that_are_lost_and_throttling_write_each_row_once",
    ),
    ("throttled", OBJECT): (
        "unit/test_chain.py::test_the_linger_grows_while_the_store_throttles_and_shrinks_again",
        "fault/test_object_engine_faults.py::test_lost_answers_and_throttling_change_nothing_but"
        "_time",
    ),
    ("partial upload", TIER): (
        "fault/test_object_store_faults.py::test_a_part_of_a_large_object_that_fails_once_is_sent"
        "_again",
        "fault/test_object_store_faults.py::test_a_large_object_whose_parts_do_not_arrive_is_not"
        "_there",
    ),
    ("answer lost", TIER): (
        "fault/test_tier_store.py::test_answers_that_are_lost_cost_nothing_and_write_nothing_twice",
    ),
    ("answer lost", LAKE): (
        "unit/test_lake_process.py::test_a_catalog_whose_answer_is_lost_gets_each_row_once",
    ),
    ("answer lost", OBJECT): (
        "unit/test_chain.py::test_a_lost_answer_is_read_back_and_counts_once",
    ),
    ("keys lost or changed", TIER): (
        "fault/test_tier_store.py::test_keys_that_are_lost_and_changed_while_it_runs_lose_nothing",
        "unit/test_tiering.py::test_a_store_that_refuses_us_is_an_alarm_at_once_and_asked_each"
        "_minute",
    ),
    ("keys lost or changed", LAKE): (
        "fault/test_lakehouse_s3.py::test_keys_that_are_replaced_are_used_by_the_lake_process_too",
    ),
    ("keys lost or changed", OBJECT): (
        "fault/test_object_keys.py::test_keys_that_are_lost_while_it_runs_stop_answers_and_lose"
        "_nothing",
    ),
    ("clock wrong", TIER): (
        "fault/test_tier_store.py::test_a_clock_that_the_store_refuses_is_told_with_the_difference"
        "_and_loses_nothing",
    ),
    ("clock wrong", OBJECT): (
        "fault/test_object_engine_faults.py::test_a_clock_that_is_refused_is_told_with_the"
        "_difference_and_loses_nothing",
    ),
    ("two writers", TIER): (
        "fault/test_tier_store.py::test_two_brokers_in_one_prefix_do_not_overwrite_each_other",
    ),
    ("two writers", LAKE): (
        "unit/test_lake_process.py::test_a_commit_behind_another_mark_is_refused",
        "unit/test_object_tables.py::test_a_broker_that_was_replaced_commits_nothing",
    ),
    ("two writers", OBJECT): (
        "fault/test_object_engine_faults.py::test_of_two_writers_the_older_one_stops_with_words_and"
        "_loses_nothing",
    ),
    ("bytes bad or gone", TIER): (
        "fault/test_tier_store.py::test_an_object_with_a_bit_flipped_is_damaged_and_only_its_range"
        "_is_lost",
        "fault/test_tier_store.py::test_an_object_that_is_gone_is_damaged_and_never_out_of_range",
    ),
    ("bytes bad or gone", LAKE): (
        "unit/test_lake_process.py::test_a_file_that_is_gone_or_damaged_is_told_with_its_name",
    ),
    ("bytes bad or gone", OBJECT): (
        "unit/test_object_failures.py::test_a_data_object_that_is_harmed_at_rest_stops_its_range_and"
        "_nothing_else",
        "fault/test_object_engine_faults.py::test_a_damaged_or_missing_object_before_the_fence_stops"
        "_the_start_with_its_name",
    ),
    ("emptied or wrong place", TIER): (
        "fault/test_tier_store.py::test_a_bucket_that_was_emptied_and_a_wrong_prefix_are_refused",
        "fault/test_object_store_faults.py::test_a_bucket_that_is_missing_is_not_an_object_that_is"
        "_missing",
    ),
    ("emptied or wrong place", LAKE): (
        "fault/test_lakehouse_s3.py::test_another_warehouse_or_catalog_is_refused_and_the_right_one"
        "_goes_on",
        "fault/test_lakehouse_s3.py::test_a_warehouse_in_a_bucket_that_is_missing_gets_nothing_and"
        "_loses_nothing",
    ),
    ("emptied or wrong place", OBJECT): (
        "fault/test_object_emptied.py::test_a_store_that_was_emptied_is_refused_and_goes_on_when_it"
        "_is_back",
        "fault/test_object_moves.py::test_a_wrong_prefix_is_refused_with_what_is_missing",
    ),
    ("disk of the cache full", TIER): (
        "unit/test_cold_cache.py::test_a_full_disk_makes_runs_stay_in_memory_and_the_cache_smaller",
    ),
    ("catalog away", LAKE): (
        "unit/test_table_tier.py::test_a_catalog_that_is_away_delays_commits_and_nothing_else",
    ),
    ("lake process hangs or dies", LAKE): (
        "unit/test_lake_process.py::test_a_process_that_hangs_is_ended_and_one_that_is_only_slow_is"
        "_not",
        "unit/test_lake_process.py::test_a_kill_at_any_step_leaves_each_record_once",
    ),
    ("left unnamed", TIER): (
        "unit/test_tiered.py::test_a_sweep_takes_what_a_failed_upload_left_and_nothing_else",
        "unit/test_object_storage.py::test_the_daily_sweep_goes_on_after_a_day_that_failed",
    ),
    ("left unnamed", LAKE): (
        "unit/test_lake_process.py::test_snapshots_expire_and_files_that_only_they_named_are_deleted",
        "unit/test_object_tables.py::test_a_deletion_is_finished_by_a_broker_with_an_empty"
        "_directory",
    ),
    ("left unnamed", OBJECT): (
        "unit/test_object_rows.py::test_a_sweep_takes_what_older_epochs_left_and_nothing_that"
        "_counts",
    ),
}


@cache
def named_in(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_the_row_of_a_failure_has_a_test(row):
    for named in ROWS[row]:
        path, _, name = named.partition("::")
        assert name in named_in(path), f"{named} proves nothing of {row}: it does not exist"
