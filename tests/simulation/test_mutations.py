"""The simulation is able to fail: each rule of a world is broken in the product, and is found out.

Rules: a mutation is what somebody could write by mistake: a sync that is not waited for, a position
that moves too early, a check that is left out. The seeds are fixed, so each of these is found every
time or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from onelog.broker.broker import Broker
from onelog.broker.kept import KeptTable
from onelog.broker.live import Live
from onelog.cursors.checkpoint import CheckpointStore
from onelog.cursors.cursor import Reading
from onelog.cursors.routed import RoutedCursor
from onelog.cursors.table import TableCursor
from onelog.log.cleaning import AbortedRanges, KeyMap
from onelog.log.needs import NeededOffsets
from onelog.log.partition import Partition
from onelog.log.producers import Producers
from onelog.log.visibility import Visibility
from onelog.protocols.kafka.groups.offset_store import Offsets
from onelog.protocols.kafka.transactions.completion import Completion, Work
from onelog.record.batch import Marker
from onelog.storage.kv.database import KvDatabase
from onelog.storage.segment.flight import Flight
from tests.simulation.compacting import Compacting
from tests.simulation.following import Following
from tests.simulation.life import Life
from tests.simulation.machine import SimulatedSyncer
from tests.simulation.rocks import LifeOnRocks
from tests.simulation.seeds import run_seeds
from tests.simulation.thinning import Thinning
from tests.simulation.transactions import Transactions
from tests.simulation.world import World

SEEDS_MAX = 150

Mutation = Callable[[pytest.MonkeyPatch], None]


def answers_before_it_syncs(patch: pytest.MonkeyPatch) -> None:
    honest = Partition.request_sync

    def request_sync(partition: Partition) -> None:
        honest(partition)
        partition.visible.advance(partition.end_offset)

    patch.setattr(Partition, "request_sync", request_sync)


def before_it_is_answered(patch: pytest.MonkeyPatch, act: Callable[[Any, Any], None]) -> None:
    """Call `act(flight, ticket)` when a sync that the kernel began is over."""
    honest = SimulatedSyncer.ask

    def ask(syncer: SimulatedSyncer, file: Any, done: Any) -> Any:
        def answer(ticket: Any) -> None:
            if hasattr(done, "settle"):  # otherwise it is a `Flight` of the storage
                act(done, ticket)
            done(ticket)

        return honest(syncer, file, answer)

    patch.setattr(SimulatedSyncer, "ask", ask)


def counts_what_came_after_the_sync_began(patch: pytest.MonkeyPatch) -> None:
    before_it_is_answered(patch, lambda flight, _ticket: setattr(flight, "end", flight.log.end))
    honest = Flight.settle

    def settle(flight: Flight, ticket: Any) -> None:
        flight._end = flight._held.end
        honest(flight, ticket)

    patch.setattr(Flight, "settle", settle)


def counts_a_failed_sync(patch: pytest.MonkeyPatch) -> None:
    before_it_is_answered(patch, lambda _flight, ticket: setattr(ticket, "error", 0))
    honest = Flight.settle

    def settle(flight: Flight, ticket: Any) -> None:
        ticket.error = 0
        honest(flight, ticket)

    patch.setattr(Flight, "settle", settle)


def saves_cursors_without_waiting(patch: pytest.MonkeyPatch) -> None:
    honest = CheckpointStore.save

    async def save(store: CheckpointStore, *cursors: Any) -> None:
        task = asyncio.get_running_loop().create_task(honest(store, *cursors))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    patch.setattr(CheckpointStore, "save", save)


def decides_before_the_row_is_durable(patch: pytest.MonkeyPatch) -> None:
    honest = KeptTable.put

    def put(table: KeptTable, rows: Any) -> asyncio.Future[None]:
        honest(table, rows).add_done_callback(lambda done: done.cancelled() or done.exception())
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        loop.call_soon(lambda: answer.done() or answer.set_result(None))
        return answer

    patch.setattr(KeptTable, "put", put)


def forgets_markers_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    honest = Completion.begin

    def begin(completion: Completion, facts: Any, decider: Any, *, recovered: bool) -> Work:
        work = honest(completion, facts, decider, recovered=recovered)
        if recovered:
            work._unmarked = []
        return work

    patch.setattr(Completion, "begin", begin)


def commits_what_was_aborted(patch: pytest.MonkeyPatch) -> None:
    honest = Partition.append_marker

    def append_marker(partition: Partition, _marker: Marker, *numbers: Any) -> Any:
        return honest(partition, Marker.COMMIT, *numbers)

    patch.setattr(Partition, "append_marker", append_marker)


def shows_aborted_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "aborted_between", lambda *_: [])


def marks_one_partition_only(patch: pytest.MonkeyPatch) -> None:
    honest = Work._mark_here

    def mark(work: Work, marker: Marker) -> Any:
        del work._unmarked[1:]
        return honest(work, marker)

    patch.setattr(Work, "_mark_here", mark)


def drops_the_groups_offsets(patch: pytest.MonkeyPatch) -> None:
    honest = Offsets.complete
    patch.setattr(
        Offsets,
        "complete",
        lambda store, group, producer, _commit, epoch: honest(store, group, producer, False, epoch),
    )


def takes_repeated_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "check", lambda *_: None)


def counts_aborted_records_as_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AbortedRanges, "holds", lambda *_: False)


def compacts_the_last_record_too(patch: pytest.MonkeyPatch) -> None:
    honest = KeyMap.superseded
    patch.setattr(KeyMap, "superseded", lambda keys, key, at: honest(keys, key, at - 1))


def compacts_records_of_other_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("onelog.log.cleaning._short", lambda key: key[:1])


def thins_what_is_needed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NeededOffsets, "count", lambda *_: 0)


def trims_what_is_pinned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Broker, "_pin", lambda *_: None)


def keeps_no_places(patch: pytest.MonkeyPatch) -> None:
    honest = RoutedCursor.take_parts

    def take_parts(cursor: RoutedCursor) -> dict[str, bytes | None]:
        honest(cursor)
        return {}

    patch.setattr(RoutedCursor, "take_parts", take_parts)


def says_it_routed_more(patch: pytest.MonkeyPatch) -> None:
    honest = RoutedCursor.state

    def state(cursor: RoutedCursor) -> Any:
        for places in cursor._places.values():
            places.routed_to += 3
        return honest(cursor)

    patch.setattr(RoutedCursor, "state", state)


def moves_the_position_first(patch: pytest.MonkeyPatch) -> None:
    honest = Live._recover

    def recover(live: Live, source: Any, failure: Exception) -> None:
        source.position += 1
        honest(live, source, failure)

    patch.setattr(Live, "_recover", recover)


def reads_no_gaps(patch: pytest.MonkeyPatch) -> None:
    def read_back(visible: Visibility) -> bool:
        visible.gap_start = visible.gap_end
        return True

    patch.setattr(Visibility, "_read_back", read_back)
    patch.setattr(Live, "_read_on", lambda *_: None)


def feeds_the_last_record_again(patch: pytest.MonkeyPatch) -> None:
    honest = Live._read_on

    def read_on(live: Live, source: Any) -> None:
        source.position = max(0, source.position - 1)
        honest(live, source)

    patch.setattr(Live, "_read_on", read_on)


def does_not_wait_for_the_old_home(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Live, "_hold", lambda *_: False)


def reads_ahead_of_the_old_home(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reading, "_limits", lambda *_: {})


def leaves_removed_topics_in_the_table(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableCursor, "_remove", lambda *_: None)


def never_syncs_rocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KvDatabase, "sync", lambda *_: None)


MUTATIONS: tuple[tuple[type[World], Mutation], ...] = (
    (Life, answers_before_it_syncs),
    (Life, counts_what_came_after_the_sync_began),
    (Life, counts_a_failed_sync),
    (Life, saves_cursors_without_waiting),
    (Transactions, answers_before_it_syncs),
    (Transactions, decides_before_the_row_is_durable),
    (Transactions, forgets_markers_after_a_restart),
    (Transactions, commits_what_was_aborted),
    (Transactions, shows_aborted_records),
    (Transactions, marks_one_partition_only),
    (Transactions, drops_the_groups_offsets),
    (Transactions, takes_repeated_batches),
    (Transactions, counts_aborted_records_as_the_newest),
    (Compacting, answers_before_it_syncs),
    (Compacting, compacts_the_last_record_too),
    (Compacting, compacts_records_of_other_keys),
    (Compacting, reads_ahead_of_the_old_home),
    (Thinning, thins_what_is_needed),
    (Thinning, trims_what_is_pinned),
    (Thinning, keeps_no_places),
    (Thinning, says_it_routed_more),
    (Following, moves_the_position_first),
    (Following, reads_no_gaps),
    (Following, feeds_the_last_record_again),
    (Following, does_not_wait_for_the_old_home),
    (Following, leaves_removed_topics_in_the_table),
    (LifeOnRocks, never_syncs_rocks),
)


@pytest.mark.fault_long
@pytest.mark.parametrize(
    ("world", "mutation"),
    MUTATIONS,
    ids=[f"{world.__name__}-{mutation.__name__}" for world, mutation in MUTATIONS],
)
def test_a_broker_that_breaks_a_rule_is_found_out(
    monkeypatch: pytest.MonkeyPatch, world: type[World], mutation: Mutation
) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError, match="ONELOG_SEED") as found:
        run_seeds(world, range(SEEDS_MAX))
    finding: BaseException | None = found.value
    while finding is not None:
        assert isinstance(finding, AssertionError), f"the mutation itself is broken: {finding!r}"
        finding = finding.__cause__
