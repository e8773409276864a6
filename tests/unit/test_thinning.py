"""Thinning: a few records that somebody needs do not keep all the others on the disk."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from pyroaring import BitMap

from onelog.base.errors import Closed, Conflict, NotLeader
from onelog.base.ids import Offset
from onelog.log.config import Retention, StreamConfig
from onelog.log.maintenance import Maintenance
from onelog.log.needs import CHUNK_BITS, NeededOffsets
from onelog.log.partition import Durability, Partition
from onelog.log.thinning import MERGED_AT_ONCE
from onelog.record.batch import Marker
from onelog.record.compression import ZSTD
from tests.logs import Node, held, markers, offsets, put, row

CONSUMED = StreamConfig(
    name="queues",
    engine="memory",
    durability=Durability.OS,
    retention=Retention(age_ms=-1, consumed=True),
)
ENGINES = ("memory", "segment")
PER_BATCH, BATCHES, SEGMENTS = 4, 3, 5
PER_SEGMENT = PER_BATCH * BATCHES


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    await node.start()
    yield node
    await node.stop()


def needing(*wanted: int, upto: int = 1 << 40) -> NeededOffsets:
    needs = NeededOffsets()
    needs.add_from(upto)
    for offset in wanted:
        needs.add({offset >> CHUNK_BITS: BitMap([offset & ((1 << CHUNK_BITS) - 1)])})
    return needs


class Keeper:
    """Maintenance of one partition, and what is needed of it."""

    def __init__(self, node: Node, needs: NeededOffsets) -> None:
        self.needs = needs
        self.maintenance = Maintenance(
            node.catalog, node.syncer, node.clock, self._pin, needs=self._needs
        )

    def _pin(self, _stream: str, _partition: int) -> Offset:
        return Offset(next((at for at in range(ALL) if at in self.needs), self.needs.upto))

    async def _needs(self, _stream: str, _partition: int) -> NeededOffsets:
        return self.needs

    async def run(self, needs: NeededOffsets | None = None) -> None:
        self.needs = needs or self.needs
        await self.maintenance.run_once()
        assert self.maintenance.counters.errors == 0

    @property
    def thinnings(self) -> int:
        return self.maintenance.counters.thinnings


async def written(node: Node, engine: str = "memory", codec: int = 0) -> Partition:
    """A partition with a few sealed segments and one that is not."""
    stream = await node.catalog.create(msgspec.structs.replace(CONSUMED, engine=engine))
    partition = stream.partitions[0]
    for _ in range(SEGMENTS):
        for _ in range(BATCHES):
            fill(partition, codec)
        partition.log.roll()
    fill(partition, codec)
    return partition


def fill(partition: Partition, codec: int = 0) -> None:
    rows = [row(b"k", b"v%d" % (partition.end_offset + at)) for at in range(PER_BATCH)]
    put(partition, *rows, codec=codec)


SEALED = SEGMENTS * PER_SEGMENT
ALL = SEALED + PER_BATCH


@pytest.mark.parametrize("codec", [0, ZSTD])
@pytest.mark.parametrize("engine", ENGINES)
async def test_only_what_is_needed_stays_of_what_is_held_back(engine, codec, node) -> None:
    """I3: who needs a record finds it; the others give their room back."""
    partition = await written(node, engine, codec)
    before = sum(row.size_bytes for row in partition.log.segments())
    keeper = Keeper(node, needing(2, 17, 18))
    await keeper.run()
    kept = held(partition.log)
    assert [one.offset for one in kept] == [2, 17, 18, *range(SEALED, ALL)]
    assert [one.value for one in kept[:3]] == [b"v2", b"v17", b"v18"]
    counters = keeper.maintenance.counters
    after = sum(row.size_bytes for row in partition.log.segments())
    assert counters.bytes_thinned == before - after > 0
    assert partition.start_offset == 0


@pytest.mark.parametrize("engine", ENGINES)
async def test_any_needs_are_met_exactly(engine, node) -> None:
    chosen = random.Random(7)
    partition = await written(node, engine)
    left = set(range(SEALED))
    keeper = Keeper(node, needing(0))
    for share in (0.6, 0.3, 0.1, 0.02):
        left = {offset for offset in left if offset == 0 or chosen.random() < share}
        await keeper.run(needing(*left))
        found = set(offsets(held(partition.log)))
        assert left | set(range(SEALED, ALL)) <= found
    assert found == left | set(range(SEALED, ALL))


async def test_what_nobody_has_looked_at_yet_is_not_touched(node) -> None:
    partition = await written(node)
    await Keeper(node, needing(1, upto=2 * PER_SEGMENT)).run()
    assert offsets(held(partition.log)) == [1, *range(2 * PER_SEGMENT, ALL)]


async def test_what_is_thin_is_not_rewritten_again_until_half_of_it_goes(node) -> None:
    await written(node)
    keeper = Keeper(node, needing(*range(8)))
    await keeper.run()
    first = keeper.thinnings
    for count in (8, 7, 5):
        await keeper.run(needing(*range(count)))
    assert keeper.thinnings == first
    await keeper.run(needing(*range(4)))
    assert keeper.thinnings == first + 1


async def test_a_segment_that_is_needed_for_the_most_part_stays_as_it_is(node) -> None:
    partition = await written(node)
    most = [offset for offset in range(SEALED) if offset % 3]
    keeper = Keeper(node, needing(*most))
    keeper.needs.add({0: BitMap([0])})
    await keeper.run()
    assert offsets(held(partition.log)) == list(range(ALL))
    assert keeper.thinnings == 0


async def test_the_newest_record_of_all_stays(node) -> None:
    """A reader that is behind it would otherwise wait for records that will never come."""
    partition = await written(node)
    partition.log.roll()
    await Keeper(node, needing(2)).run()
    assert offsets(held(partition.log)) == [2, *range(SEALED, ALL)]


async def test_many_small_segments_become_one(node) -> None:
    partition = await written(node, "segment")
    keeper = Keeper(node, needing(0))
    for _ in range(MERGED_AT_ONCE):
        fill(partition)
        partition.log.roll()
        await keeper.run()
    await keeper.run()
    assert len(partition.log.segments()) <= MERGED_AT_ONCE
    assert offsets(held(partition.log))[0] == 0


async def test_what_somebody_came_to_need_meanwhile_is_not_lost(node) -> None:
    """A queue that takes history is given records that nobody needed when thinning began."""
    partition = await written(node)
    claims = iter([0, 0, 1])  # gathered, begun, and when it is to be committed
    needs = NeededOffsets(lambda: next(claims))
    needs.add({0: BitMap([2])})
    keeper = Keeper(node, needs)
    await keeper.run()
    assert offsets(held(partition.log)) == list(range(ALL))
    assert keeper.thinnings == 0


async def test_batches_of_producers_and_the_ends_of_transactions_stay(node) -> None:
    """Replay reads from them where a producer goes on, and which records are committed."""
    stream = await node.catalog.create(CONSUMED)
    partition = stream.partitions[0]
    put(partition, row(b"k", b"plain"))
    put(partition, row(b"k", b"counted"), producer=(7, 0, 0))
    put(partition, row(b"k", b"in"), producer=(9, 0, 0), transactional=True)
    partition.append_marker(Marker.COMMIT, 9, 0)
    put(partition, row(b"k", b"needed"))
    partition.log.roll()
    put(partition, row(b"k", b"active"))
    await Keeper(node, needing(4)).run()
    assert offsets(held(partition.log)) == [1, 2, 4, 5]
    assert markers(partition.log) == [3]


async def test_a_log_that_was_trimmed_meanwhile_is_left_alone(node, monkeypatch) -> None:
    partition = await written(node)
    keeper = Keeper(node, needing(2))

    def trimmed(_start: Offset, _end: Offset) -> None:
        raise Conflict("segments were dropped")

    monkeypatch.setattr(partition.log, "rewrite", trimmed)
    await keeper.run()
    assert keeper.thinnings == 0


async def test_what_is_too_old_and_still_needed_is_thinned_too(node) -> None:
    """Also where retention goes by age, and not by what was consumed."""
    hour_ms = 3600 * 1000
    aged = msgspec.structs.replace(CONSUMED, retention=Retention(age_ms=hour_ms))
    stream = await node.catalog.create(aged)
    partition = stream.partitions[0]
    for _ in range(2):
        put(partition, *(row(b"k", b"v", node.clock.now_ms()) for _ in range(4)))
        partition.log.roll()
    node.clock.advance(hour_ms / 1000 + 1)
    put(partition, row(b"k", b"v", node.clock.now_ms()))
    await Keeper(node, needing(1)).run()
    assert offsets(held(partition.log)) == [1, 8]


async def test_what_was_kept_is_found_by_key_while_it_is_true(node, monkeypatch) -> None:
    partition = await written(node)
    keeper = Keeper(node, needing(2, 17))
    thinnings = keeper.maintenance.thinnings
    key = node.catalog.streams()[0].key(partition.id)
    await keeper.run()
    assert thinnings.told_of(key) is None, "no other node asks"
    thinnings.tells = True
    await keeper.run(needing(2))
    here = thinnings.told_of(key)
    assert here is not None
    assert list(thinnings.told()) == [(key, here)]
    for name, value in (
        ("leader_epoch", 7),
        ("refusal", NotLeader("another")),
        ("stopped", Closed("it is gone")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(partition, name, value)
            assert thinnings.told_of(key) is None, name
            assert list(thinnings.told()) == []
        assert thinnings.told_of(key) is here
    await thinnings.once({})
    assert thinnings.told_of(key) is None, "nothing is held back"
