"""Mistakes that somebody could make in the machines of replication, and the seed that finds each.

Rules: a mutation breaks one rule of `onelog.cluster`, never the simulation itself, unless the rule
is one of the rim or of the metadata store. Seeds that find it change with every change of the
machines and of the worlds: then the test names the mutations whose seed is to be chosen anew.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.cluster import mutations_of_replicas as replicas
from tests.simulation.cluster import mutations_of_rows as rows
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.cluster.worlds import ApartWorld, StormWorld, SuccessionWorld, WaningWorld

Mutation = Callable[[pytest.MonkeyPatch], None]

MUTATIONS: dict[Mutation, tuple[type[ClusterWorld], int]] = {
    replicas.truncates_by_high_watermark: (StormWorld, 2),
    replicas.opens_without_a_comparison: (StormWorld, 7),
    replicas.takes_pieces_of_a_deposed_leader: (StormWorld, 12),
    replicas.says_durable_what_is_written: (StormWorld, 293),
    replicas.copies_anew_while_it_is_eligible: (StormWorld, 69),
    replicas.elects_a_damaged_replica: (StormWorld, 3),
    replicas.shows_what_its_leader_shows: (StormWorld, 0),
    replicas.drops_members_by_the_last_segment: (WaningWorld, 362),
    replicas.counts_a_replica_before_its_epochs_start: (StormWorld, 118),
    replicas.counts_a_replica_that_lags: (StormWorld, 2),
    replicas.answers_before_it_is_durable: (StormWorld, 48),
    replicas.answers_alone: (StormWorld, 8),
    replicas.moves_beyond_the_pending_isr: (StormWorld, 553),
    replicas.shrinks_before_it_is_committed: (StormWorld, 21),
    replicas.answers_with_too_few_replicas: (StormWorld, 2),
    replicas.takes_unknown_for_refused: (StormWorld, 1019),
    replicas.takes_unknown_for_done: (StormWorld, 21),
    replicas.leads_on_in_an_epoch_of_the_process_before: (StormWorld, 70),
    replicas.stays_leader_after_its_row_is_gone: (StormWorld, 12),
    replicas.credits_acknowledgements_of_old_feeds: (StormWorld, 11),
    rows.takes_a_lease_for_a_lock: (StormWorld, 59),
    rows.controls_without_a_fence: (StormWorld, 63),
    rows.trusts_every_proof: (StormWorld, 2),
    rows.takes_a_registration_before_its_members_row: (ApartWorld, 2),
    rows.proves_with_the_process_of_today: (StormWorld, 5),
    rows.ignores_the_elr: (StormWorld, 32),
    rows.keeps_the_elr: (StormWorld, 0),
    rows.elects_any_replica: (StormWorld, 2),
    rows.elects_a_draining_replica: (StormWorld, 10),
    rows.ends_a_reassignment_at_once: (StormWorld, 29),
    rows.keeps_the_elr_when_promises_change: (SuccessionWorld, 432),
    rows.raises_the_level_at_once: (StormWorld, 8),
    rows.raises_the_level_to_what_it_heard: (SuccessionWorld, 205),
    rows.elects_on_request_who_was_in_sync: (StormWorld, 111),
    rows.forgets_a_loss_at_an_opening: (StormWorld, 93),
    rows.leaves_out_who_lags_in_silence: (StormWorld, 21),
    rows.refuses_what_it_has_appended: (StormWorld, 0),
}
"""Each with a world and a seed that find it."""
