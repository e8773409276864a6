"""Do a few records that a cursor of any node needs keep the others on the disks of three nodes?"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from onelog.base.errors import NotFound, Unavailable
from onelog.broker import LOCAL, Durability, Retention, RoutedCursor, StreamConfig
from onelog.cluster.kept_words import KeptQuestion, ThinnedRow
from onelog.log.needs import KeptRanges
from onelog.record.record import Message
from tests.logs import held, offsets
from tests.support.cluster_nodes import Nodes, OneNode

RING = StreamConfig(
    name="ring",
    captures=("ring/#",),
    durability=Durability.OS,
    segment_bytes=1 << 20,
    retention=Retention(bytes=0),
)
SEGMENTS, PER_SEGMENT = 4, 20
SEALED = SEGMENTS * PER_SEGMENT
NEEDED = [3, 25, 26, 61]


class Ring:
    """A stream of three nodes, and a queue at a node that does not lead it."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.queue: RoutedCursor
        self.end = 0

    async def begin(self) -> None:
        await self.nodes.start(1, 2, 3)
        stream = await self.nodes[1].broker.streams.create(RING)
        await self.nodes.until_whole("ring")
        self.key = (stream.record.id, 0)
        leader = self.leader
        self.owner = next(n for n in self.nodes.running.values() if n is not leader)
        known, cursors = leader.cluster.known, leader.broker.cursors
        name = next(
            name
            for name in (f"queue-{n}" for n in range(100))
            if known.owner_of(cursors.shard_of(name)) == self.owner.number
        )
        self.queue = RoutedCursor(name, ("ring/#",))
        self.queue.set_routed_to(self.key, 0)
        self.queue.position_of = lambda _key: self.end
        await self.owner.broker.cursors.adopt(self.queue)

    @property
    def leader(self) -> OneNode:
        return self.nodes.leader_of("ring", 0)

    @property
    def follower(self) -> OneNode:
        """The one that has neither the leader nor the queue."""
        others = [n for n in self.nodes.running.values() if n not in (self.leader, self.owner)]
        return others[0]

    async def fill(self) -> None:
        """A few sealed segments on each node, and one that is not."""
        for _ in range(SEGMENTS):
            await self.say(PER_SEGMENT)
            for node in self.nodes.running.values():
                partition_of(node).log.roll()
        await self.say(1)

    async def say(self, count: int) -> None:
        for _ in range(count // 10 or 1):
            messages = [Message("ring/a", b"v%d" % (self.end + n)) for n in range(min(count, 10))]
            await self.leader.broker.publish_many(messages, principal=LOCAL, partition=0)
            self.queue.note_range(self.key, self.end, len(messages))
            self.end += len(messages)
        async with asyncio.timeout(20):
            while any(  # noqa: ASYNC110 - it changes in many places
                partition_of(node).high_watermark < self.end for node in self.nodes.running.values()
            ):
                await asyncio.sleep(0.01)

    def need(self, *wanted: int) -> None:
        """The queue settles all but these."""
        for offset in range(SEALED):
            if offset not in wanted:
                self.queue.settle(self.key, offset)

    async def maintain(self, node: OneNode) -> None:
        pins = node.cluster.node_pins
        assert pins is not None
        await pins.ask()
        await node.broker.maintenance.run_once()
        assert not node.broker.maintenance.counters.errors

    async def maintain_all(self) -> None:
        leader = self.leader
        await self.maintain(leader)
        for node in self.nodes.running.values():
            if node is not leader:
                await self.maintain(node)


def partition_of(node: OneNode):
    return node.broker.streams.get("ring").local[0]


def offsets_at(node: OneNode) -> list[int]:
    return offsets(held(partition_of(node).log))


@pytest.fixture
async def ring(nodes: Nodes) -> Ring:
    made = Ring(nodes)
    await made.begin()
    await made.fill()
    return made


async def test_leader_and_copies_keep_what_a_queue_elsewhere_needs_and_give_back_the_rest(
    ring: Ring,
) -> None:
    """C2, C9: whoever leads next has every record that the queue has not settled."""
    ring.need(*NEEDED)
    sizes = {n: partition_of(node).log.size_bytes for n, node in ring.nodes.running.items()}
    await ring.maintain_all()
    # The queue's lowest place pins retention, and the first record of the epoch is among the gone.
    for number, node in ring.nodes.running.items():
        assert offsets_at(node) == [0, *NEEDED, SEALED], f"node {number}"
        assert partition_of(node).log.size_bytes < sizes[number]
        assert node.broker.maintenance.counters.thinnings == 1
    await ring.maintain_all()
    assert all(n.broker.maintenance.counters.thinnings == 1 for n in ring.nodes.running.values())
    for offset in NEEDED[:3]:
        ring.queue.settle(ring.key, offset)
    await ring.maintain_all()
    left = [0, NEEDED[3], SEALED]
    assert all(offsets_at(node) == left for node in ring.nodes.running.values())
    values = {one.offset: one.value for one in held(partition_of(ring.follower).log)}
    assert values == {offset: b"v%d" % offset for offset in left}


async def test_a_copy_that_begins_anew_from_a_thinned_leader_can_lead(ring: Ring) -> None:
    ring.need(*NEEDED)
    await ring.maintain_all()
    number = ring.follower.number
    folder = ring.follower.folder
    await ring.nodes.stop(number)
    await asyncio.to_thread(_forget, folder / "segment" / ring.key[0])
    await ring.nodes.start(number)
    await ring.nodes.until_whole("ring")
    async with asyncio.timeout(20):
        while partition_of(ring.nodes[number]).high_watermark < ring.end:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert offsets_at(ring.nodes[number]) == [0, *NEEDED, SEALED]
    epochs = {str(partition_of(node).epochs.rows()) for node in ring.nodes.running.values()}
    assert len(epochs) == 1


def _forget(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.rmdir()


async def test_while_an_owner_does_not_answer_nothing_is_thinned(ring: Ring) -> None:
    ring.need(*NEEDED)
    exact = ring.leader.cluster.exact
    assert exact is not None
    honest = exact._call

    async def call(node: int, *rest):
        if node == ring.owner.number:
            raise Unavailable("it does not answer")
        return await honest(node, *rest)

    exact._call = call
    await ring.maintain_all()
    assert all(offsets_at(n) == list(range(ring.end)) for n in ring.nodes.running.values())
    exact._call = honest
    await ring.maintain_all()
    assert offsets_at(ring.leader) == [0, *NEEDED, SEALED]


async def test_what_a_queue_of_another_node_came_to_need_meanwhile_stays(ring: Ring) -> None:
    """A claim between the question and the moment at which segments are replaced."""
    ring.need(*NEEDED)
    exact = ring.leader.cluster.exact
    assert exact is not None
    honest = exact._gather

    async def gather(node, key, shards, into):
        word = await honest(node, key, shards, into)
        if node == ring.owner.number:
            ring.owner.broker.cursors.pins.claim()
            ring.queue.note_range(ring.key, 40, 5)
        return word

    exact._gather = gather
    await ring.maintain(ring.leader)
    assert offsets_at(ring.leader) == list(range(ring.end))
    exact._gather = honest
    await ring.maintain(ring.leader)
    assert offsets_at(ring.leader) == [0, 3, 25, 26, *range(40, 45), 61, SEALED]


async def test_a_copy_forgets_what_a_leader_before_kept(ring: Ring) -> None:
    """The next leader may have records that the last one had thinned away, and show them."""
    ring.need(*NEEDED)
    await ring.maintain(ring.leader)
    words = ring.follower.cluster.words
    assert words is not None
    (said,) = await words.said()
    kept = await words.kept(said)
    assert await kept.still_hold()
    before = ring.leader.number
    await ring.nodes.stop(before)
    await ring.nodes.start(before)
    await ring.nodes.until_whole("ring")
    assert not await kept.still_hold()
    with pytest.raises(Unavailable):
        await words.kept(said)


async def test_a_leader_answers_without_a_look_at_all_its_partitions(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for each piece of each partition that it thinned, and has clients to serve."""
    ring.need(*NEEDED)
    await ring.maintain(ring.leader)
    words, broker = ring.leader.cluster.words, ring.leader.broker
    assert words is not None
    (row,) = await words.answer_thinned(0, msgspec.Raw())
    others = (
        msgspec.structs.replace(row, generation=row.generation + 1),
        msgspec.structs.replace(row, epoch=row.epoch + 1),
        msgspec.structs.replace(row, partition=1),
        msgspec.structs.replace(row, stream_id="another"),
    )

    def question(of: ThinnedRow) -> msgspec.Raw:
        return msgspec.Raw(msgspec.msgpack.encode(KeptQuestion(of, 0)))

    def walked(*_: object) -> None:
        raise AssertionError("it walked over all of them")

    # An answer does not wait, so nothing else of the node runs in this block.
    with monkeypatch.context() as patch:
        patch.setattr(broker.maintenance.visits, "partitions", walked)
        patch.setattr(broker.streams, "streams", walked)
        assert await words.answer_thinned(0, msgspec.Raw()) == (row,)
        patch.setattr(broker.thinnings, "told", walked)
        word = await words.answer_kept(1, question(row))
        for other in others:
            with pytest.raises(NotFound):
                await words.answer_kept(1, question(other))
    kept = KeptRanges()
    kept.ranges = sorted(word.ranges)
    kept.kept.add_piece(word.piece)
    assert [at for at in range(SEALED) if at in kept] == [0, *NEEDED]
