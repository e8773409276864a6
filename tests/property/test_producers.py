"""Producer state is derived: rebuilt from scratch, or from any snapshot, it is the live state."""

import asyncio
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.base.clock import ManualClock
from onelog.base.ids import Offset
from onelog.log.epochs import EpochHistory
from onelog.log.producers import SEQUENCE_MODULUS, Producers, next_sequence
from onelog.log.progress import Role
from onelog.log.replay import STATE_NAME, encode_state, replay_state
from onelog.log.syncer import Syncer
from onelog.record.batch import Marker
from tests.logs import make_partition, memory_log, put, row

producers = st.integers(1, 4)


class Batch(NamedTuple):
    producer: int
    records: int
    transactional: bool
    repeated: bool


class End(NamedTuple):
    producer: int
    marker: Marker
    bumped: bool


class Bump(NamedTuple):
    producer: int


class Lead(NamedTuple):
    """A new leader epoch."""


class Snapshot(NamedTuple):
    """A snapshot of the state as it is now."""


steps = st.one_of(
    st.builds(Batch, producers, st.integers(1, 3), st.booleans(), st.booleans()),
    st.builds(Batch, producers, st.integers(1, 3), st.just(True), st.just(False)),
    st.builds(End, producers, st.sampled_from(Marker), st.booleans()),
    st.builds(Bump, producers),
    st.builds(Lead),
    st.builds(Snapshot),
)


def seen(state: Producers, epochs: EpochHistory) -> dict[str, Any]:
    """All that can be known of a state."""
    return {
        "entries": sorted(state.entries(), key=lambda entry: entry.producer_id),
        "open": state.open_transactions(),
        "first_open": state.first_open_offset,
        "aborted": state.aborted_between(0, 1 << 40),
        "epochs": epochs.rows(),
    }


@settings(deadline=None, max_examples=200)
@given(st.lists(steps, max_size=40), st.integers(SEQUENCE_MODULUS - 6, SEQUENCE_MODULUS - 1))
def test_replay_from_scratch_and_from_any_snapshot_equals_the_live_state(
    script: list[NamedTuple], first_sequence: int
) -> None:
    async def run() -> None:
        clock = ManualClock()
        log = memory_log(clock)
        partition = make_partition(log, Syncer(1), clock)
        epochs = dict.fromkeys(range(1, 5), 0)
        sequences = dict.fromkeys(range(1, 5), first_sequence)
        snapshots: list[tuple[Offset, bytes]] = []
        for step in script:
            if isinstance(step, Batch):
                number = step.producer
                producer = (number, epochs[number], sequences[number])
                rows = [row(b"k", b"v")] * step.records
                end = partition.end_offset
                transactional = step.transactional or partition.producers.is_open(number)
                put(partition, *rows, producer=producer, transactional=transactional)
                sequences[number] = next_sequence(sequences[number], step.records)
                if step.repeated:
                    again = put(partition, *rows, producer=producer, transactional=transactional)
                    assert (again.duplicate, again.base_offset) == (True, end)
                assert partition.end_offset == end + step.records
            elif isinstance(step, End):
                if step.bumped:
                    epochs[step.producer] += 1
                    sequences[step.producer] = 0
                partition.append_marker(step.marker, step.producer, epochs[step.producer])
            elif isinstance(step, Bump):
                epochs[step.producer] += 1
                sequences[step.producer] = 0
            elif isinstance(step, Lead):
                partition.replica.become(Role.LEADER, partition.leader_epoch + 1)
            else:
                state = encode_state(partition.producers, partition.epochs)
                snapshots.append((partition.end_offset, state))
        put(partition, row(b"k", b"v"))  # an epoch that wrote nothing is not in the log
        live = seen(partition.producers, partition.epochs)
        assert seen(*replay_state(log, clock.now_ms())) == live
        for offset, blob in snapshots:
            log.save_state(STATE_NAME, offset, blob)
            assert seen(*replay_state(log, clock.now_ms())) == live
        first_open = partition.producers.first_open_offset
        stable = partition.high_watermark if first_open is None else first_open
        assert partition.last_stable_offset == stable
        open_now = partition.producers.open_transactions()
        assert stable == min([*open_now.values(), partition.high_watermark])

    asyncio.run(run())
