"""Is a record that a cursor of any node needs never thinned away, whatever happens to owners of
cursors, leaders, and what each node knows of them, while needs are asked for?

The questions and answers are real; nodes, rows and cursors are a model, and chance decides what
happens between any two of them. Owners are deposed and do not know it, rows are seen late, calls
fail, cursors settle, are opened, and come to need old records.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from onelog.base.errors import NotFound, OnelogError, Unavailable
from onelog.base.ids import PartitionId
from onelog.cluster.exact_needs import CLAIMS, NEEDS, ExactNeeds, SeenTerms
from onelog.cluster.kept_words import KEPT, THINNED, KeptWords
from onelog.cluster.rows import ReplicaSet
from onelog.log.needs import KeptRanges, NeededOffsets
from onelog.log.thinnings import ThinnedHere
from onelog.storage.engine import PartitionKey

NODES = (1, 2, 3)
SHARDS = 2
HOMES = [PartitionKey("c", PartitionId(shard)) for shard in range(SHARDS)]
RING = PartitionKey("p", PartitionId(0))
SEEDS = 400
ROUNDS = 24
NEVER = 1 << 40


class Cursors:
    """What the cursors of one shard need, as one node knows it."""

    def __init__(self) -> None:
        self.single: set[int] = set()
        self.upto = NEVER

    def copy(self) -> Cursors:
        found = Cursors()
        found.single, found.upto = set(self.single), self.upto
        return found

    def need(self, offset: int) -> bool:
        return offset >= self.upto or offset in self.single


class World:
    """Three nodes with a copy of one partition each."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.end = 0
        self.claimed_late: set[int] = set()
        """Records that a cursor came to need after it was asked for the last time."""
        self.is_confirming = False
        rows = {key: self.row(1 + at % 3, 1) for at, key in enumerate([*HOMES, RING])}
        self.truth: dict[PartitionKey, ReplicaSet] = rows
        self.nodes = {number: Node(self, number) for number in NODES}
        for shard, key in enumerate(HOMES):
            owner = self.nodes[rows[key].leader]
            owner.cursors[shard] = Cursors()
            owner.owned.add(shard)
        self.thinned = self.copied = 0

    @staticmethod
    def row(leader: int, epoch: int) -> ReplicaSet:
        return ReplicaSet(replicas=NODES, leader=leader, leader_node_epoch=leader, epoch=epoch)

    # -- the truth

    def owner(self, shard: int) -> Node:
        return self.nodes[self.truth[HOMES[shard]].leader]

    def needs(self, offset: int) -> bool:
        return any(self.owner(shard).cursors[shard].need(offset) for shard in range(SHARDS))

    # -- what may happen at any time

    def stir(self) -> None:
        events: list[Callable[[], None]] = [
            self.publish, self.publish, self.route, self.route, self.settle, self.settle,
            self.learn, self.learn, self.learn, self.take, self.take,
            self.open, self.claim, self.elect, self.stale_settle,
        ]  # fmt: skip
        for _ in range(self.chance.choice((0, 0, 0, 1, 2, 5))):
            self.chance.choice(events)()

    def publish(self) -> None:
        for node in self.nodes.values():
            node.log.update(range(self.end, self.end + 5))
        self.end += 5

    def route(self) -> None:
        """An owner's cursors look at what came, and need some of it."""
        shard = self.chance.randrange(SHARDS)
        found = self.owner(shard).cursors[shard]
        if found.upto < NEVER and shard in self.owner(shard).owned:
            new = range(found.upto, self.end)
            found.single.update(at for at in new if self.chance.random() < 0.3)
            found.upto = self.end

    def settle(self) -> None:
        shard = self.chance.randrange(SHARDS)
        if shard in self.owner(shard).owned:
            self._settle(self.owner(shard).cursors[shard])

    def _settle(self, found: Cursors) -> None:
        found.single = {at for at in found.single if self.chance.random() < 0.6}

    def stale_settle(self) -> None:
        """Somebody who owned a shard goes on as if it did."""
        node = self.chance.choice(list(self.nodes.values()))
        for shard in node.owned:
            if self.owner(shard) is not node:
                node.cursors[shard].upto = self.end
                self._settle(node.cursors[shard])

    def open(self) -> None:
        """A cursor is opened: it needs what comes from now on."""
        shard = self.chance.randrange(SHARDS)
        if shard in self.owner(shard).owned:
            found = self.owner(shard).cursors[shard]
            found.upto = min(found.upto, self.end)

    def claim(self) -> None:
        """A cursor is sent back, to a record that the partition's leader still has."""
        shard = self.chance.randrange(SHARDS)
        owner, leader = self.owner(shard), self.nodes[self.truth[RING].leader]
        if shard in owner.owned and leader.log:
            offset = self.chance.choice(sorted(leader.log))
            if not self.needs(offset) and self.is_confirming:
                self.claimed_late.add(offset)
            owner.cursors[shard].single.add(offset)
            owner.claims += 1

    def elect(self) -> None:
        """Another node leads a partition; the next owner has what the last one kept."""
        if self.chance.random() < 0.5:
            return
        key = self.chance.choice([*HOMES, RING])
        before = self.truth[key]
        row = self.row(self.chance.choice(NODES), before.epoch + 1)
        if key != RING:
            shard = HOMES.index(key)
            state = self.nodes[before.leader].cursors[shard].copy()
            heir = self.nodes[row.leader]
            heir.owned.discard(shard)
            heir.cursors[shard] = state
        self.truth[key] = row

    def learn(self) -> None:
        node = self.chance.choice(list(self.nodes.values()))
        node.view = dict(self.truth)
        for shard in list(node.owned):
            if node.view[HOMES[shard]].leader != node.number:
                node.owned.discard(shard)

    def take(self) -> None:
        """An owner that knows of its election has read the rows of its shard."""
        shard = self.chance.randrange(SHARDS)
        owner = self.owner(shard)
        if owner.view[HOMES[shard]] == self.truth[HOMES[shard]]:
            owner.owned.add(shard)

    # -- what the nodes ask of each other

    async def call(self, node: int, method: str, argument: Any, *_: object) -> Any:
        self.stir()
        if self.chance.random() < 0.05:
            raise Unavailable("no link")
        found = self.nodes[node]
        said = {
            NEEDS: found.exact.answer_needs, CLAIMS: found.exact.answer_claims,
            THINNED: found.words.answer_thinned, KEPT: found.words.answer_kept,
        }[method](0, msgspec.Raw(msgspec.msgpack.encode(argument)))  # fmt: skip
        try:
            answer = await said
        finally:
            if method != CLAIMS:
                self.stir()
        return answer

    async def read(self, key: PartitionKey) -> tuple[ReplicaSet, int]:
        if self.chance.random() < 0.02:
            raise NotFound("the store does not answer")
        self.stir()
        return self.truth[key], 0

    # -- thinning

    async def run(self) -> None:
        for _ in range(ROUNDS):
            self.stir()
            node = self.chance.choice(list(self.nodes.values()))
            if node.view[RING].leader == node.number:
                await self.thin(node)
            else:
                await self.copy(node)

    async def thin(self, node: Node) -> None:
        epoch = node.view[RING].epoch
        try:
            needs = await node.exact.of(RING, self.end, [0])
        except OnelogError:
            return
        low = self.chance.randrange(self.end + 1)
        high = self.chance.randint(low, min(needs.upto, self.end)) if low <= needs.upto else low
        self.stir()
        if await self.is_confirmed(needs) and low < high:
            self.take_away(node, {at for at in node.log if low <= at < high and at not in needs})
            if node.here.epoch != epoch:
                node.here = ThinnedHere(epoch)
            node.here.generation += 1 + 1000 * node.number
            node.here.ranges.note(low, high, needs)
            self.thinned += 1

    async def copy(self, node: Node) -> None:
        for said in await node.words.said():
            try:
                kept = await node.words.kept(said)
            except OnelogError:
                continue
            self.stir()
            if await self.is_confirmed(kept):
                leader = self.nodes[self.truth[RING].leader]
                gone = {at for at in node.log if at < kept.upto and at not in kept}
                assert not gone & leader.log, f"a copy keeps less than node {leader.number}"
                node.log -= gone
                self.copied += 1

    async def is_confirmed(self, needs: Any) -> bool:
        self.claimed_late, self.is_confirming = set(), True
        try:
            return await needs.still_hold()
        finally:
            self.is_confirming = False

    def take_away(self, node: Node, gone: set[int]) -> None:
        lost = sorted(at for at in gone if self.needs(at) and at not in self.claimed_late)
        assert not lost, f"{lost[:5]} are needed, and go"
        node.log -= gone


class Node:
    """One node: what it has, and what it believes."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.view = dict(world.truth)
        self.owned: set[int] = set()
        self.cursors: dict[int, Cursors] = {}
        self.claims = 0
        self.log: set[int] = set()
        self.here = ThinnedHere(0)
        broker = Broker(self)
        known = SimpleNamespace(
            node=number,
            row=lambda key: (self.view[key], 0),
            shards=lambda: [[key] for key in HOMES],
            owner_of=lambda shard: self.view[HOMES[shard]].leader,
            nodes=lambda: [SimpleNamespace(id=n) for n in NODES],
        )
        self.exact = ExactNeeds(broker, known, world, world.call)
        self.words = KeptWords(
            broker, known, lambda key: self.view[key].leader == number, world, world.call
        )

    def told(self) -> Iterator[tuple[PartitionKey, ThinnedHere]]:
        if self.here.generation and self.here.epoch == self.view[RING].epoch:
            yield RING, self.here

    def told_of(self, key: PartitionKey) -> ThinnedHere | None:
        return dict(self.told()).get(key)


class Broker:
    """A node as its cursors are asked."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.thinnings = node

    @property
    def shards(self) -> Any:
        return Shards(self._node.owned)

    @property
    def claims(self) -> int:
        return self._node.claims

    def exact_needs(self, _stream_id: str, _number: int) -> NeededOffsets:
        found = NeededOffsets()
        for shard in self._node.owned:
            cursors = self._node.cursors[shard]
            found.add_from(cursors.upto)
            for offset in cursors.single:
                found.add_one(offset)
        return found


class Shards:
    def __init__(self, owned: set[int]) -> None:
        self.owned = set(owned)

    def __len__(self) -> int:
        return SHARDS


async def sweep(seeds: int) -> tuple[int, int]:
    thinned = copied = 0
    for seed in range(seeds):
        world = World(seed)
        try:
            await world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        thinned, copied = thinned + world.thinned, copied + world.copied
    return thinned, copied


async def test_no_record_that_is_needed_is_thinned_away() -> None:
    """C9, C11."""
    thinned, copied = await sweep(SEEDS)
    assert thinned > SEEDS // 4
    assert copied > SEEDS // 20


async def _nothing_new(*_: object) -> bool:
    return True


def believes_deposed_owners(patch: pytest.MonkeyPatch) -> None:
    honest = SeenTerms.holds

    async def holds(terms: SeenTerms) -> bool:
        return len(terms._terms) > 1 or await honest(terms)

    patch.setattr(SeenTerms, "holds", holds)


def believes_deposed_leaders(patch: pytest.MonkeyPatch) -> None:
    honest = SeenTerms.holds

    async def holds(terms: SeenTerms) -> bool:
        return len(terms._terms) == 1 or await honest(terms)

    patch.setattr(SeenTerms, "holds", holds)


def asks_only_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExactNeeds, "_still", _nothing_new)


def thins_what_came_since(patch: pytest.MonkeyPatch) -> None:
    honest = ExactNeeds.of
    patch.setattr(
        ExactNeeds, "of", lambda exact, key, _end, starts: honest(exact, key, NEVER, starts)
    )


def keeps_less_than_was_said(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeptRanges, "__contains__", lambda kept, offset: offset in kept.kept)


BUGS = [
    believes_deposed_owners,
    believes_deposed_leaders,
    asks_only_once,
    thins_what_came_since,
    keeps_less_than_was_said,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
async def test_a_planted_bug_is_found(bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        await sweep(20 * SEEDS)
